"""Modules of attention along graphs, with the interfaces of PyG's and torch's layers."""

from graphattn.functional.folding import fold_heads, unfold_heads
from graphattn.layers.edge_attention import EdgeAttention
from graphattn.layers.encoder_layer import EncoderLayer
from graphattn.layers.graph_attention import GraphAttention
from graphattn.layers.graph_gps_conv import GraphGPSConv
from graphattn.layers.graph_transformer_conv import GraphTransformerConv
from graphattn.layers.multihead_attention import MultiheadAttention, from_torch
from graphattn.layers.rotary import RotaryPositions

__all__ = ['EdgeAttention', 'EncoderLayer', 'GraphAttention', 'GraphGPSConv',
           'GraphTransformerConv', 'MultiheadAttention', 'RotaryPositions', 'fold_heads',
           'from_torch', 'unfold_heads']
