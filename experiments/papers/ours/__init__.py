"""Studies that combine the papers or go beyond the papers."""
