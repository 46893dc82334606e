"""Attention by its definition: the weights of edges, and then weighted sums of values.

Each file ``reference`` defines an operation on tensors of all pairs of a segment, [queries, keys,
heads, channels], so for small graphs. Tests compare all other backends with it.
"""

from graphattn.ops.backend import Backend, has_values
from graphattn.ops.edge_dot.reference import edge_dot
from graphattn.ops.weights.reference import attention_weights, weighted_sum

BACKEND = Backend('reference', has_values, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, edge_dot=edge_dot, has_all_derivatives=True)
