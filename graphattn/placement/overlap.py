"""Attention over several processes that overlaps with communication.

A process computes attention to its own keys while it receives the keys of other processes. Then it
computes attention to the received keys, and merges both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.ops.attention.schema import dropout_seed
from graphattn.ops.edge_math import no_second_derivative, sink_grad, take_sink
from graphattn.placement.messages import Message


class Split(NamedTuple):
    """The edges to the queries of one process: near ones from its own keys, far ones from others'
    keys."""

    # The fields from send on plan how processes send each other the keys of far edges.
    near: BipartiteGraph
    far: BipartiteGraph  # from the received keys to the queries that have far edges
    rows: Tensor  # these queries, int64
    is_far: Tensor  # bool [num_edges]
    send: Tensor  # own keys to send, in the order of the receiving processes, int64
    send_sizes: list[int]  # number of keys to send to each process
    receive_sizes: list[int]  # number of keys to receive from each process
    order: Tensor  # for each received key, its index in far

    def in_order(self, received: Tensor) -> Tensor:
        """Return the received rows of far keys, reordered to match the keys of ``far``."""
        return received.index_select(0, self.order.argsort())

    def as_received(self, x: Tensor) -> Tensor:
        """Return the rows of the keys of ``far`` in the order of receipt, the inverse of
        :meth:`in_order`."""
        return x.index_select(0, self.order)

    def join(self, near: Tensor, far: Tensor) -> Tensor:
        """Return the values of all edges from those of the near and of the far edges."""
        joined = near.new_empty(len(self.is_far), near.size(1))
        joined[self.is_far], joined[~self.is_far] = far, near
        return joined


# A graph is split if it has at least this number of edges for each query with far edges. Such a
# query is computed twice, and its two outputs are merged, which takes as long as some edges. CPU
# time of a training step with split edges, divided by the time of a step that waits for messages,
# for two processes of one thread and 4 heads of 32 channels:
#
# 4,096 tokens: 0.85 to 0.89 for windows, in which 2 % of the queries have far edges. If all queries
# have far edges: 1.36, 1.26, 1.36, 1.18, 1.05 and 1.05 for 8, 32, 64, 128, 256 and 512 random keys,
# 1.02 for BigBird, 0.96 to 0.99 for a causal graph.
# 65,536 tokens: 0.72 for windows; 1.14, 0.97 and 0.89 for 8, 32 and 256 random keys.
#
# Splitting a graph takes twice as long as a step. So a graph that is used in only one step is not
# split.
EDGES_OF_A_FAR_QUERY = 256


def split_edges(graph: BipartiteGraph, owner: Tensor, is_needed: Tensor, rank: int, send: Tensor,
                send_sizes: list[int], receive_sizes: list[int]) -> Split | None:
    """Split the edges of a process into near and far ones, or return None if that is not faster."""
    # Processes may decide differently, because the messages are the same in both cases.
    is_own = owner == rank
    is_far = ~is_own[graph.key]
    has_far = counts_before(is_far)[graph.csr[0]].diff() > 0
    rows = has_far.nonzero().flatten()
    if len(send_sizes) == 1 or graph.num_edges < EDGES_OF_A_FAR_QUERY * len(rows):
        return None
    # all keys with edges are needed; send includes keys that the process sends to itself
    far, order = is_needed & ~is_own, owner[is_needed & ~is_own].argsort(stable=True)
    parts = send.split(send_sizes)
    others = [other != rank for other in range(len(parts))]
    return Split(
        near=subgraph(graph, is_own, ~is_far),
        far=_rows_of(subgraph(graph, far, is_far), has_far),
        rows=rows, is_far=is_far, order=order,
        send=torch.cat([part for part, is_other in zip(parts, others) if is_other]),
        send_sizes=[size * is_other for size, is_other in zip(send_sizes, others)],
        receive_sizes=[size * is_other for size, is_other in zip(receive_sizes, others)])


def subgraph(graph: BipartiteGraph, is_key: Tensor, keep: Tensor | None = None) -> BipartiteGraph:
    """Return a graph that has only some of the keys and edges."""
    (indptr, key), number = graph.csr, counts_before(is_key)
    # the keys of kept edges must be kept
    if keep is not None:
        indptr, key = counts_before(keep)[indptr], key[keep]
    return BipartiteGraph.from_csr(
        indptr, number[key.long()], int(number[-1]), query_ptr=graph.segments.query_ptr,
        key_ptr=number[graph.segments.key_ptr], validate=False)


def _rows_of(graph: BipartiteGraph, has_edges: Tensor) -> BipartiteGraph:
    # queries that are left out must have no edges
    indptr, key = graph.csr
    return BipartiteGraph.from_csr(
        torch.cat([indptr[:1], indptr[1:][has_edges]]), key, graph.num_keys,
        query_ptr=counts_before(has_edges)[graph.segments.query_ptr],
        key_ptr=graph.segments.key_ptr, validate=False)


def counts_before(is_in: Tensor) -> Tensor:
    """Return the number of true values before each position, and their total number at the end."""
    return torch.cat([is_in.new_zeros(1, dtype=torch.long), is_in.cumsum(0)])


@torch.compiler.disable(reason='near edges are computed between the start and end of a message')
def attend_overlapped(kernel: Backend, query: Tensor, key: Tensor, value: Tensor, terms: LogitTerms,
                      split: Split, group: dist.ProcessGroup) -> Tensor:
    """Return the attention of own queries to all keys, near ones while the far ones arrive."""
    plain = terms._replace(bias=None, gate=None, sink=None)
    seeds = [dropout_seed(terms.dropout_p, query.device) for _ in range(2)]
    near, far = (_Side(kernel, plain, split, is_far, seed)
                 for is_far, seed in zip((False, True), seeds))
    out = _Overlapped.apply(query, key, value, terms.bias, terms.gate, terms.sink, near, far, group)
    return out.to(query.dtype)


class _Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
                gate: Tensor | None, sink: Tensor | None, near: _Side, far: _Side,
                group: dist.ProcessGroup) -> Tensor:
        split = far.split
        widths = [key.size(-1), value.size(-1)]
        sent = torch.cat([x.index_select(0, split.send) for x in (key, value)], dim=-1)
        message = Message(sent, split.send_sizes, split.receive_sizes, group)
        out, max_inv_sum = near.attend(query, key, value, bias, gate)
        received = split.in_order(message.wait())
        far_nodes = [x.contiguous() for x in received.split(widths, dim=-1)]
        if split.far.num_edges > 0:
            _merge(out, max_inv_sum, split.rows, *far.attend(query, *far_nodes, bias, gate))
        take_sink(sink, max_inv_sum, out)
        ctx.way = near, far, group
        ctx.save_for_backward(out, max_inv_sum, query, key, value, *far_nodes, bias, gate, sink)
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        near, far, group = ctx.way
        split = far.split
        if torch.is_grad_enabled():
            raise no_second_derivative(near.kernel.name)
        out, max_inv_sum, query, key, value, *far_nodes, bias, gate, sink = ctx.saved_tensors
        rows, terms = (grad_out, out, max_inv_sum, query), (bias, gate, ctx.needs_input_grad[3:5])
        far_query, *nodes, far_bias, far_gate = far.grads(rows, *far_nodes, *terms)
        message = Message(split.as_received(torch.cat(nodes, dim=-1)), split.receive_sizes,
                        split.send_sizes, group)
        # The softmax of a query is over near and far edges together, so the gradients of each part
        # follow from the output and the softmax denominators of all edges.
        grad_query, *nodes, near_bias, near_gate = near.grads(rows, key, value, *terms)
        grad_query.index_add_(0, split.rows, far_query)
        returned = message.wait().split([key.size(-1), value.size(-1)], dim=-1)
        for grad, part in zip(nodes, returned):
            grad.index_add_(0, split.send, part)
        needs_bias, needs_gate, needs_sink = ctx.needs_input_grad[3:6]
        return (grad_query, *nodes,
                split.join(near_bias, far_bias) if needs_bias else None,
                split.join(near_gate, far_gate) if needs_gate else None,
                sink_grad(sink, max_inv_sum, (out * grad_out).sum(-1)) if needs_sink else None,
                None, None, None)


class _Side(NamedTuple):
    """The near or the far edges of a :class:`Split`, and what a kernel needs along them."""

    kernel: Backend
    terms: LogitTerms  # without tensors
    split: Split
    is_far: bool
    seed: Tensor | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None,
               gate: Tensor | None) -> tuple[Tensor, Tensor]:
        # Returns the output, and the largest logit and the inverse softmax denominator, [..., 2].
        graph, (query,) = self._of_queries(query)
        return self.kernel.attention_part(query, key, value, graph, self._with(bias, gate),
                                          self.seed)

    def grads(self, of_queries: tuple[Tensor, ...], key: Tensor, value: Tensor,
              bias: Tensor | None, gate: Tensor | None,
              needs: tuple[bool, bool]) -> tuple[Tensor, ...]:
        # of_queries, for all queries: gradient of the output, output, (largest logit, inverse
        # softmax denominator), queries. Bias and gate are those of near and far edges; the result
        # is what these edges contribute.
        graph, of_queries = self._of_queries(*of_queries)
        return self.kernel.attention_part_grads(of_queries, key, value, graph,
                                                self._with(bias, gate), self.seed, needs)

    def _of_queries(self, *tensors: Tensor) -> tuple[BipartiteGraph, tuple[Tensor, ...]]:
        split = self.split
        if not self.is_far:
            return split.near, tensors
        return split.far, tuple(x.index_select(0, split.rows) for x in tensors)

    def _with(self, bias: Tensor | None, gate: Tensor | None) -> LogitTerms:
        if bias is gate is None:
            return self.terms
        is_in = self.split.is_far if self.is_far else ~self.split.is_far
        bias, gate = (x if x is None else x[is_in] for x in (bias, gate))
        return self.terms._replace(bias=bias, gate=gate)


def _merge(out: Tensor, max_inv_sum: Tensor, rows: Tensor, far_out: Tensor,
           far_max_inv_sum: Tensor) -> None:
    # In place. rows: the queries that have far edges.
    (own, far), both = joined(torch.stack([max_inv_sum.index_select(0, rows), far_max_inv_sum]))
    out.index_copy_(0, rows, out.index_select(0, rows) * own + far_out * far)
    max_inv_sum.index_copy_(0, rows, both)


def joined(max_inv_sum: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors that merge attention to parts of the keys, and ``max_inv_sum`` of all keys."""
    # max_inv_sum: largest logit, inverse denominator, [num_parts, num_queries, heads, 2]
    row_max, inv_sum = max_inv_sum.unbind(-1)
    is_empty = inv_sum == 0
    row_max = row_max.masked_fill(is_empty, -torch.inf)
    joint_max = row_max.amax(0)
    row_sum = ((row_max - joint_max).exp() / inv_sum).masked_fill(is_empty, 0)
    joint_inv_sum = row_sum.sum(0).reciprocal()
    share = (row_sum * joint_inv_sum).masked_fill(is_empty, 0).unsqueeze(-1)
    joint, has_none = torch.stack([joint_max, joint_inv_sum], dim=-1), is_empty.all(0)
    joint[has_none] = joint.new_tensor([torch.inf, 0])  # kernels mark rows without keys like this
    return share, joint
