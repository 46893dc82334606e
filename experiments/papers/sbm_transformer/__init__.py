"""The studies of SBM-Transformer: edges that each head samples from a block model."""
