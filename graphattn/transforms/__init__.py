"""PyG transforms: structural encodings of nodes."""

from graphattn.transforms.random_walk_pe import RandomWalkPE

__all__ = ['RandomWalkPE']
