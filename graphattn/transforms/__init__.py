"""PyG transforms: structural encodings of nodes."""

from graphattn.transforms.laplacian_pe import LaplacianPE
from graphattn.transforms.random_sign_flip import RandomSignFlip
from graphattn.transforms.random_walk_pe import RandomWalkPE

__all__ = ['LaplacianPE', 'RandomSignFlip', 'RandomWalkPE']
