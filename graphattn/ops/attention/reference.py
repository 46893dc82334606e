"""Dense attention, block by block: the definition that every other kernel is compared with.

Products are formed for every pair of a block, [queries, keys, heads, channels] numbers, so that a
masked pair can be zeroed *before* it is multiplied: only then does NaN in a key or value reach
the queries that attend to it and nothing else, in both directions. For small graphs.
"""

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.backend import Backend, LogitTerms, where_numbers_are


def attention_weights(query: Tensor, key: Tensor, graph: BipartiteGraph,
                      terms: LogitTerms) -> Tensor:
    shape = (graph.num_edges, query.size(1))
    edge_gate = query.new_ones(shape) if terms.gate is None else terms.gate.expand(shape)
    edge_bias = query.new_zeros(shape) if terms.bias is None else terms.bias.expand(shape)
    # Empty, but joined to every argument, should there be no block.
    weight = [(query[:0] * key[:0]).sum(-1) * edge_gate[:0] + edge_bias[:0]]
    for rows, columns, edges, at, mask in _blocks(graph):
        key_of_pair = torch.where(mask.unsqueeze(-1), key[columns], 0)
        logit = torch.einsum('qhc,qkhc->qkh', query[rows], key_of_pair) * terms.scale
        logit = (logit * _dense(edge_gate[edges], mask, at, 1.)
                 + _dense(edge_bias[edges], mask, at, 0.))
        logit = logit.masked_fill(~mask, -torch.inf)
        # A query with nothing to attend to, whose softmax is 0 / 0, has the weights 0.
        is_nothing = (logit == -torch.inf).all(dim=1, keepdim=True)
        softmax = logit.masked_fill(is_nothing, 0.).softmax(dim=1).masked_fill(is_nothing, 0.)
        weight.append(softmax[at])
    return torch.cat(weight)


def weighted_sum(weight: Tensor, value: Tensor, graph: BipartiteGraph) -> Tensor:
    out = [weight[:0].unsqueeze(-1) * value[:0]]
    for _, columns, edges, at, mask in _blocks(graph):
        value_of_pair = torch.where(mask.unsqueeze(-1), value[columns], 0)
        dense_weight = _dense(weight[edges], mask, at, 0.)
        out.append(torch.einsum('qkh,qkhc->qhc', dense_weight, value_of_pair))
    return torch.cat(out)


def _blocks(graph: BipartiteGraph):
    """The queries, keys and edges of each block, as slices; where the edges are in the block, and a
    mask ``[queries, keys, 1]`` of them."""
    edge_ptr = graph.indptr[graph.query_ptr]
    query, key = graph.query, graph.key
    pointers = [ptr.tolist() for ptr in (graph.query_ptr, graph.key_ptr, edge_ptr)]
    for begins_and_ends in zip(*(zip(ptr, ptr[1:]) for ptr in pointers)):
        rows, columns, edges = (slice(begin, end) for begin, end in begins_and_ends)
        at = (query[edges] - rows.start, key[edges] - columns.start)
        mask = torch.zeros(rows.stop - rows.start, columns.stop - columns.start, 1,
                           dtype=torch.bool, device=graph.device)
        mask[at] = True
        yield rows, columns, edges, at, mask


def _dense(edge_values: Tensor, mask: Tensor, at: tuple[Tensor, Tensor], fill: float) -> Tensor:
    pairs = edge_values.new_full((*mask.shape[:2], edge_values.size(1)), fill)
    return pairs.index_put(at, edge_values)


BACKEND = Backend('reference', where_numbers_are, attention_weights=attention_weights,
                  weighted_sum=weighted_sum, has_all_derivatives=True)
