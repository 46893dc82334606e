"""Attention by its definition: weights of edges, then weighted sums of values.

Each operation is defined in the ``reference`` of its folder on all pairs of a segment, [queries,
keys, heads, channels] values, so it is for small graphs. All other backends are tested against it.
"""

from graphattn.ops.backend import Backend, has_values
from graphattn.ops.edge_dot.reference import edge_dot
from graphattn.ops.weights.reference import attention_weights, weighted_sum

BACKEND = Backend('reference', has_values, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot, has_all_derivatives=True)
