"""The studies of SparseBERT: which pairs of tokens matter, and masks that are learned."""
