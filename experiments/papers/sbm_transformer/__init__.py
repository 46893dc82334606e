"""Studies of SBM-Transformer: edges that each head samples from a block model."""
