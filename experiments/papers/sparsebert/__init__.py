"""Studies of SparseBERT: the importance of pairs of tokens, and learned masks."""
