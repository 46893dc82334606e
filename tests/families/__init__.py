"""Every model of transformers, small, before and after it is attached."""
