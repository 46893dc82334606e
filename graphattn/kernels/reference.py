"""Dense attention, block by block: the definition that every other kernel is compared with.

Products are formed for every pair of a block, [queries, keys, heads, channels] numbers, so that a
masked pair can be zeroed *before* it is multiplied: only then does NaN in a key or value reach
the queries that attend to it and nothing else, in both directions. For small graphs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn.graph import BipartiteGraph


def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: BipartiteGraph,
    *,
    edge_bias: Tensor | None,
    edge_gate: Tensor | None,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    shape = (graph.num_edges, query.size(1))
    edge_gate = query.new_ones(shape) if edge_gate is None else edge_gate.expand(shape)
    edge_bias = query.new_zeros(shape) if edge_bias is None else edge_bias.expand(shape)
    keep = F.dropout(query.new_ones(shape), dropout_p)
    # Empty, but joined to every argument, should there be no block.
    no_logit = (query[:0] * key[:0]).sum(-1) * edge_gate[:0] + edge_bias[:0]
    out, weight = [no_logit.unsqueeze(-1) * value[:0]], [no_logit]
    for rows, columns, edges in _blocks(graph):
        at = (graph.query[edges] - rows.start, graph.key[edges] - columns.start)
        block_out, block_weight = _dense_attention(
            query[rows], key[columns], value[columns], at,
            edge_bias[edges], edge_gate[edges], keep[edges], scale)
        out.append(block_out)
        weight.append(block_weight[at])
    return torch.cat(out), torch.cat(weight)


def _blocks(graph: BipartiteGraph):
    """The queries, keys and edges of each block, as slices."""
    edge_ptr = graph.indptr[graph.query_ptr]
    pointers = [ptr.tolist() for ptr in (graph.query_ptr, graph.key_ptr, edge_ptr)]
    for begins_and_ends in zip(*(zip(ptr, ptr[1:]) for ptr in pointers)):
        yield tuple(slice(begin, end) for begin, end in begins_and_ends)


def _dense_attention(query, key, value, at, edge_bias, edge_gate, keep, scale):
    mask = query.new_zeros(query.size(0), key.size(0), 1, dtype=torch.bool)
    mask[at] = True
    key_of_pair = torch.where(mask.unsqueeze(-1), key, 0)
    value_of_pair = torch.where(mask.unsqueeze(-1), value, 0)

    def dense(edge_values, fill):
        pairs = edge_values.new_full((*mask.shape[:2], edge_values.size(1)), fill)
        return pairs.index_put(at, edge_values)

    logit = torch.einsum('qhc,qkhc->qkh', query, key_of_pair) * scale
    logit = logit * dense(edge_gate, 1.) + dense(edge_bias, 0.)
    # The last fill also gives a query without keys, whose softmax is 0 / 0, the weights 0.
    softmax = logit.masked_fill(~mask, -torch.inf).softmax(dim=1).masked_fill(~mask, 0.)
    weight = softmax * dense(keep, 0.)
    return torch.einsum('qkh,qkhc->qhc', weight, value_of_pair), weight
