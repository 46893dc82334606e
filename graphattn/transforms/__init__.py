"""PyG transforms, which add structural encodings of nodes or the edges of patterns to data."""

from graphattn.transforms.add_attention_edges import AddAttentionEdges
from graphattn.transforms.laplacian_pe import LaplacianPE, RandomSignFlip

__all__ = ['AddAttentionEdges', 'LaplacianPE', 'RandomSignFlip']
