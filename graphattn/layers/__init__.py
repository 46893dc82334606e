"""Attention as PyG modules."""

from graphattn.layers.edge_attention import EdgeAttention
from graphattn.layers.encoder_layer import EncoderLayer
from graphattn.layers.folding import fold_heads, unfold_heads
from graphattn.layers.graph_attention import GraphAttention
from graphattn.layers.graph_gps_conv import GraphGPSConv
from graphattn.layers.graph_transformer_conv import GraphTransformerConv

__all__ = ['EdgeAttention', 'EncoderLayer', 'GraphAttention', 'GraphGPSConv',
           'GraphTransformerConv', 'fold_heads', 'unfold_heads']
