"""Attention in one pass over the rows of a graph: compiled by numba, for CPUs.

The logits of one query live in a buffer as long as its row, and the backward pass computes them
again from one saved log-sum-exp per query and head: no weight is stored, and nothing of size
edges x channels. MKL's sampled product and sparse product, one after the other, are what a chain
of library calls would be made of, without its softmax. On two cores, for four graphs of 4,096 x
4,096 with 32 channels, they took 4.5, 24 and 89 ms at 1, 5 and 20 % density, and this kernel 4.2,
13 and 47 ms: it reads every key once, and its softmax never leaves the cache.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphattn._threads import run_calls
from graphattn.graph import BipartiteGraph

try:
    from graphattn.kernels.diffusion import (
        accumulation_dtype,
        attention_diffusion,
        attention_weights,
        diffused_attention,
        modifiers,
        weighted_sum,
    )
    from graphattn.kernels.rows import (
        AHEAD,
        GRAIN,
        add_weighted,
        clear_row,
        copy_row,
        cut_into_spans,
        dot_of_rows,
        dots,
        exponentials,
        fetch_row,
        first_from,
        jit,
        jit_inline,
        keep,
        longest_row,
        modify,
        most_rows,
        multiply_row,
        whole_vectors,
    )
    from graphattn.kernels.vectors import LANES, exp, load, multiply_add, splat, store
except ImportError as error:
    raise ImportError("backend 'numba' needs numba: pip install numba") from error


def is_available(device: torch.device) -> bool:
    """Whether ``device`` is a CPU."""
    return device.type == 'cpu'


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
) -> Tensor:
    seed = torch.randint(-2**63, 2**63 - 1, (1,)) if dropout_p > 0 else None
    out, _ = _attention(query, key, value, edge_bias, edge_gate, *_csr(graph), seed, scale,
                        dropout_p)
    return out


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """``<query_i, key_j>`` on every edge, ``[num_edges, heads]``, in O(num_edges) memory."""
    return _dot(query, key, *_csr(graph))


def _csr(graph: BipartiteGraph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *graph.csr, graph.query_ptr, graph.key_ptr


# Operators ###########################################################################


@torch.library.custom_op('graphattn::edge_attention', mutates_args=(), device_types='cpu')
def _attention(
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, query_ptr: Tensor, key_ptr: Tensor, seed: Tensor | None,
    scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Output ``[num_queries, heads, value_channels]`` and log-sum-exp ``[num_queries, heads]``."""
    dtype, (num_queries, heads, _) = accumulation_dtype(query), query.shape
    out = query.new_empty(num_queries, heads, value.size(2), dtype=dtype)
    lse = query.new_empty(num_queries, heads, dtype=dtype)
    rows = [_rows(tensor, dtype) for tensor in (query, key, value)]
    terms = modifiers(edge_bias, edge_gate, seed, scale, dropout_p, dtype)
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, query.size(1))
    graph.run(_attention_forward, graph.split(query.size(2) + value.size(2)),
              *rows, *terms, _rows(out, dtype), lse.flatten().numpy())
    return out.to(query.dtype), lse


@_attention.register_fake
def _(query, key, value, *_):
    dtype = accumulation_dtype(query)
    return (query.new_empty(*query.shape[:2], value.size(2)),
            query.new_empty(query.shape[:2], dtype=dtype))


@torch.library.custom_op('graphattn::edge_attention_backward', mutates_args=(), device_types='cpu')
def _attention_backward(
    grad_out: Tensor, out: Tensor, lse: Tensor,
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, query_ptr: Tensor, key_ptr: Tensor, seed: Tensor | None,
    scale: float, dropout_p: float, needs_bias: bool, needs_gate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, bias and gate; the last two empty where not needed."""
    dtype, heads = lse.dtype, query.size(1)
    grads = [tensor.new_empty(tensor.shape, dtype=dtype) for tensor in (query, key, value)]
    edge_grads = [query.new_empty(edge_key.numel() if needed else 0, heads, dtype=dtype)
                  for needed in (needs_bias, needs_gate)]
    rows = [_rows(tensor, dtype) for tensor in (query, key, value, grad_out, out)]
    terms = modifiers(edge_bias, edge_gate, seed, scale, dropout_p, dtype)
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, heads)
    graph.run_to_keys(
        _attention_backward_kernel, graph.split(query.size(2) + value.size(2)),
        (*rows, *terms, lse.flatten().numpy(), _rows(grads[0], dtype),
         *(grad.numpy() for grad in edge_grads)), grads[1:])
    return (*(grad.to(query.dtype) for grad in grads),
            *(_sum_to(grad, values) for grad, values in zip(edge_grads, (edge_bias, edge_gate))))


@_attention_backward.register_fake
def _(grad_out, out, lse, query, key, value, edge_bias, edge_gate, indptr, edge_key, query_ptr,
      key_ptr, seed, scale, dropout_p, needs_bias, needs_gate):
    edge_grads = [values.new_empty(values.shape) if needed else lse.new_empty(0, query.size(1))
                  for values, needed in ((edge_bias, needs_bias), (edge_gate, needs_gate))]
    return *(tensor.new_empty(tensor.shape) for tensor in (query, key, value)), *edge_grads


def _save_attention(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.dropout_p = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, *tensors)


def _differentiate_attention(ctx, grad_out, _):
    nothing = (None,) * 7
    if grad_out is None:
        return None, None, None, None, None, *nothing
    *nodes, needs_bias, needs_gate = ctx.needs_input_grad[:5]
    *node_grads, grad_bias, grad_gate = _attention_backward(
        grad_out, *ctx.saved_tensors, ctx.scale, ctx.dropout_p, needs_bias, needs_gate)
    return (*node_grads, grad_bias if needs_bias else None, grad_gate if needs_gate else None,
            *nothing)


_attention.register_autograd(_differentiate_attention, setup_context=_save_attention)


@torch.library.custom_op('graphattn::edge_dot', mutates_args=(), device_types='cpu')
def _dot(
    query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor, query_ptr: Tensor,
    key_ptr: Tensor,
) -> Tensor:
    dtype = accumulation_dtype(query)
    dot = query.new_empty(edge_key.numel(), query.size(1), dtype=dtype)
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, query.size(1))
    graph.run(_dot_forward, graph.split(query.size(2)), _rows(query, dtype), _rows(key, dtype),
              dot.numpy())
    return dot.to(query.dtype)


@_dot.register_fake
def _(query, key, indptr, edge_key, query_ptr, key_ptr):
    return query.new_empty(edge_key.numel(), query.size(1))


@torch.library.custom_op('graphattn::edge_dot_backward', mutates_args=(), device_types='cpu')
def _dot_backward(
    grad_dot: Tensor, query: Tensor, key: Tensor, indptr: Tensor, edge_key: Tensor,
    query_ptr: Tensor, key_ptr: Tensor,
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(query)
    grad_query, grad_key = grads = [tensor.new_empty(tensor.shape, dtype=dtype)
                                    for tensor in (query, key)]
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, query.size(1))
    graph.run_to_keys(
        _dot_backward_kernel, graph.split(query.size(2)),
        (_rows(query, dtype), _rows(key, dtype), grad_dot.to(dtype).contiguous().numpy(),
         _rows(grad_query, dtype)), [grad_key])
    return tuple(grad.to(query.dtype) for grad in grads)


@_dot_backward.register_fake
def _(grad_dot, query, key, *_):
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _save_dot(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_dot(ctx, grad_dot):
    return *_dot_backward(grad_dot, *ctx.saved_tensors), None, None, None, None


_dot.register_autograd(_differentiate_dot, setup_context=_save_dot)


def _rows(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """``[nodes, heads, channels]`` as ``[nodes * heads, channels]``."""
    return tensor.detach().to(dtype).contiguous().flatten(0, 1).numpy()


def _sum_to(grad: Tensor, values: Tensor | None) -> Tensor:
    """Sums over heads what all heads share."""
    if values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)


# Work for threads ####################################################################


class _Graph(NamedTuple):
    """A graph as the kernels read it."""

    indptr: np.ndarray
    edge_key: np.ndarray
    query_ptr: np.ndarray
    key_ptr: np.ndarray
    heads: int

    @classmethod
    def of(cls, indptr, edge_key, query_ptr, key_ptr, heads: int) -> _Graph:
        return cls(indptr.numpy(), edge_key.contiguous().numpy(), query_ptr.numpy(),
                   key_ptr.numpy(), heads)

    def split(self, channels: int) -> list[np.ndarray]:
        """The work of each thread: spans (head, first query, last query, block, is shared).

        Blocks and heads stand in a row and are cut into pieces of equally many edges, so that at
        most the first span of a thread shares its keys with another thread.
        """
        num_products = int(self.indptr[-1]) * self.heads * channels
        num_parts = min(torch.get_num_threads(), 1 + num_products // GRAIN)
        spans, part_ptr = cut_into_spans(self.indptr, self.query_ptr, self.heads, num_parts)
        return np.split(spans, part_ptr[1:-1])

    def run(self, kernel, parts: list[np.ndarray], *arguments) -> None:
        """``kernel`` on every part, each in a thread."""
        calls = [(kernel, part, *arguments, self.indptr, self.edge_key, self.key_ptr, self.heads)
                 for part in parts]
        run_calls(calls)

    def run_to_keys(self, kernel, parts: list[np.ndarray], arguments: tuple,
                    grads: list[Tensor]) -> None:
        """``run`` for a kernel with gradients of keys."""
        private = [self._private(part, grads) for part in parts]
        targets = [_rows(grad, grad.dtype) for grad in grads]
        run_calls([(kernel, part, *arguments, *targets, *(grad.numpy() for grad in own),
                    self.indptr, self.edge_key, self.key_ptr, self.heads)
                   for part, own in zip(parts, private)])
        for part, own in zip(parts, private):
            if own[0].size(0):
                head, _, _, block, _ = part[0]
                keys = slice(self.key_ptr[block], self.key_ptr[block + 1])
                for grad, addend in zip(grads, own):
                    grad[keys, head] += addend

    def _private(self, part: np.ndarray, grads: list[Tensor]) -> list[Tensor]:
        """Where a thread puts its gradients of keys that another thread's will be added to."""
        block = part[:1][part[:1, 4] != 0, 3]
        num_keys = int((self.key_ptr[block + 1] - self.key_ptr[block]).sum())
        return [grad.new_empty(num_keys, grad.size(2)) for grad in grads]


# Kernels #############################################################################


# Keys are taken in chunks whose rows stay in the cache, for a query's keys may lie anywhere.


@jit
def _attention_forward(spans, query, key, value, bias, gate, scale, seed, threshold, keep_scale,
                       out, lse, indptr, edge_key, key_ptr, heads):
    longest, num_rows = longest_row(spans, indptr), most_rows(spans)
    weight, position = np.empty(longest, query.dtype), np.empty(num_rows, np.int64)
    high, total = np.empty(num_rows, query.dtype), np.empty(num_rows, query.dtype)
    channels = key.shape[1] + value.shape[1]
    room = _largest_chunk(spans, channels, indptr, key_ptr)
    own, to_value = _aligned(room, channels, key), key.shape[1]
    for span in range(len(spans)):
        head, begin, end, block = spans[span, 0], spans[span, 1], spans[span, 2], spans[span, 3]
        first_key, last_key = key_ptr[block], key_ptr[block + 1]
        chunk = _keys_per_chunk(channels, last_key - first_key, end - begin,
                                indptr[end] - indptr[begin])
        position[:end - begin] = indptr[begin:end]
        high[:end - begin], total[:end - begin] = -np.inf, 0
        for low in range(first_key, max(last_key, first_key + 1), chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            _gather(rows, 0, key, low, head, heads)
            _gather(rows, to_value, value, low, head, heads)
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                for x in (query, out):
                    fetch_row(x, row + AHEAD * heads)
                if low == first_key:
                    clear_row(out, row)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = position[r] - first
                if n > 0:
                    row_key = edge_key[first:]
                    dots(weight, query, row, rows, origin, row_key, n)
                    modify(weight, bias, gate, scale, first, n, head)
                    higher, added = exponentials(weight, n, high[r])
                    if low > first_key and higher > high[r]:
                        fading = exp(high[r] - higher)
                        total[r] *= fading
                        multiply_row(out, row, fading)
                    high[r] = higher
                    total[r] += added
                    if threshold > 0:
                        for e in range(n):
                            weight[e] *= keep(seed, threshold, keep_scale,
                                              (first + e) * heads + head)
                    add_weighted(out, row, weight, rows, origin + to_value, row_key, n)
                if up == last_key:
                    lse[row] = high[r]
                    if indptr[i] < indptr[i + 1]:
                        lse[row] += query.dtype.type(math.log(total[r]))
                        multiply_row(out, row, query.dtype.type(1 / total[r]))


@jit
def _attention_backward_kernel(
        spans, query, key, value, grad_out, out, bias, gate, scale, seed, threshold, keep_scale,
        lse, grad_query, grad_bias, grad_gate, grad_key, grad_value, shared_grad_key,
        shared_grad_value, indptr, edge_key, key_ptr, heads):
    dot, weight = np.empty(_TILE, query.dtype), np.empty(_TILE, query.dtype)
    grad_weight, kept = np.empty(_TILE, query.dtype), np.ones(_TILE, query.dtype)
    num_rows = most_rows(spans)
    position, deltas = np.empty(num_rows, np.int64), np.empty(num_rows, query.dtype)
    channels = 2 * key.shape[1] + 2 * value.shape[1]
    room = _largest_chunk(spans, channels, indptr, key_ptr)
    own, to_value, to_grad = _aligned(room, channels, key), key.shape[1], channels // 2
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        block, is_shared = spans[span, 3], spans[span, 4] == 1
        first_key, last_key = key_ptr[block], key_ptr[block + 1]
        chunk = _keys_per_chunk(channels, last_key - first_key, end - begin,
                                indptr[end] - indptr[begin])
        position[:end - begin] = indptr[begin:end]
        for low in range(first_key, max(last_key, first_key + 1), chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            _gather(rows, 0, key, low, head, heads)
            _gather(rows, to_value, value, low, head, heads)
            rows[:, to_grad:] = 0
            for i in range(begin, end):
                row, r, begin_edge = i * heads + head, i - begin, position[i - begin]
                for x in (query, grad_out, grad_query):
                    fetch_row(x, row + AHEAD * heads)
                if low == first_key:
                    fetch_row(out, row + AHEAD * heads)
                    clear_row(grad_query, row)
                    deltas[r] = dot_of_rows(grad_out, out, row)
                position[r] = first_from(up, last_key, edge_key, begin_edge, indptr[i + 1])
                delta = deltas[r]
                for first in range(begin_edge, position[r], _TILE):
                    n = min(_TILE, position[r] - first)
                    row_key = edge_key[first:]
                    dots(dot, query, row, rows, origin, row_key, n)
                    dots(grad_weight, grad_out, row, rows, origin + to_value, row_key, n)
                    for e in range(whole_vectors(n)):
                        weight[e] = dot[e]
                    modify(weight, bias, gate, scale, first, n, head)
                    if threshold > 0:
                        for e in range(n):
                            kept[e] = keep(seed, threshold, keep_scale,
                                           (first + e) * heads + head)
                    for e in range(whole_vectors(n)):
                        weight[e] = exp(weight[e] - lse[row])
                    for e in range(whole_vectors(n)):
                        grad_weight[e] = weight[e] * (grad_weight[e] * kept[e] - delta)
                        weight[e] *= kept[e]
                    if grad_bias.shape[0] > 0:
                        for e in range(n):
                            grad_bias[first + e, head] = grad_weight[e]
                    if grad_gate.shape[0] > 0:
                        for e in range(n):
                            grad_gate[first + e, head] = grad_weight[e] * dot[e] * scale
                    for e in range(whole_vectors(n)):
                        grad_weight[e] *= scale
                    if gate.shape[0] > 0:
                        column = min(head, gate.shape[1] - 1)
                        for e in range(n):
                            grad_weight[e] *= gate[first + e, column]
                    _add_products(grad_query, query, row, grad_weight, rows, origin, to_grad,
                                  row_key, n)
                    _scatter(rows, origin + to_grad + to_value, weight, grad_out, row, row_key, n)
            if is_shared:
                _put(shared_grad_key, rows, to_grad, low - first_key, 0, 1)
                _put(shared_grad_value, rows, to_grad + to_value, low - first_key, 0, 1)
            else:
                _put(grad_key, rows, to_grad, low, head, heads)
                _put(grad_value, rows, to_grad + to_value, low, head, heads)


_TILE = 64  # edges of a row whose keys and gradients stay in the first level of the cache


@jit
def _dot_forward(spans, query, key, dot, indptr, edge_key, key_ptr, heads):
    longest, position = longest_row(spans, indptr), np.empty(most_rows(spans), np.int64)
    row_dot = np.empty(longest, query.dtype)
    channels = key.shape[1]
    room = _largest_chunk(spans, channels, indptr, key_ptr)
    own = _aligned(room, channels, key)
    for span in range(len(spans)):
        head, begin, end, block = spans[span, 0], spans[span, 1], spans[span, 2], spans[span, 3]
        first_key, last_key = key_ptr[block], key_ptr[block + 1]
        chunk = _keys_per_chunk(channels, last_key - first_key, end - begin,
                                indptr[end] - indptr[begin])
        position[:end - begin] = indptr[begin:end]
        for low in range(first_key, last_key, chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            _gather(rows, 0, key, low, head, heads)
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                fetch_row(query, row + AHEAD * heads)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = position[r] - first
                if n > 0:
                    dots(row_dot, query, row, rows, origin, edge_key[first:], n)
                    for e in range(n):
                        dot[first + e, head] = row_dot[e]


@jit
def _dot_backward_kernel(spans, query, key, grad_dot, grad_query, grad_key, shared_grad_key,
                         indptr, edge_key, key_ptr, heads):
    longest, position = longest_row(spans, indptr), np.empty(most_rows(spans), np.int64)
    weight = np.empty(longest, query.dtype)
    channels = 2 * key.shape[1]
    room = _largest_chunk(spans, channels, indptr, key_ptr)
    own, to_grad = _aligned(room, channels, key), key.shape[1]
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        block, is_shared = spans[span, 3], spans[span, 4] == 1
        first_key, last_key = key_ptr[block], key_ptr[block + 1]
        chunk = _keys_per_chunk(channels, last_key - first_key, end - begin,
                                indptr[end] - indptr[begin])
        position[:end - begin] = indptr[begin:end]
        for low in range(first_key, max(last_key, first_key + 1), chunk):
            up = min(low + chunk, last_key)
            rows, origin = own[:up - low], -low * channels
            _gather(rows, 0, key, low, head, heads)
            rows[:, to_grad:] = 0
            for i in range(begin, end):
                row, r, first = i * heads + head, i - begin, position[i - begin]
                for x in (query, grad_query):
                    fetch_row(x, row + AHEAD * heads)
                if low == first_key:
                    clear_row(grad_query, row)
                position[r] = first_from(up, last_key, edge_key, first, indptr[i + 1])
                n = position[r] - first
                if n > 0:
                    for e in range(n):
                        weight[e] = grad_dot[first + e, head]
                    _add_products(grad_query, query, row, weight, rows, origin, to_grad,
                                  edge_key[first:], n)
            if is_shared:
                _put(shared_grad_key, rows, to_grad, low - first_key, 0, 1)
            else:
                _put(grad_key, rows, to_grad, low, head, heads)


# The keys of a head are read again and again, and an edge reads and writes all that belongs to its
# key: key, value and their gradients are put side by side, on one page of memory. Where they come
# from, other heads stand between them, and they would fall on a few sets of the cache.


@jit_inline
def _aligned(num_rows, width, like):
    """Room that begins at a line of the cache: vectors that lie on two lines take twice as long."""
    room = np.empty(num_rows * width + 64, like.dtype)
    skip = -room.ctypes.data % 64 // room.itemsize
    return room[skip:skip + num_rows * width].reshape(num_rows, width)


@jit
def _gather(rows, shift, x, low, head, heads):
    """Copies one head of ``x`` from ``low`` on to the columns from ``shift`` on."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        fetch_row(x, row + 4 * AHEAD * heads)
        copy_row(rows, j, shift, x, row, 0, x.shape[1])


@jit
def _put(x, rows, shift, low, head, heads):
    """The reverse of ``_gather``."""
    for j in range(len(rows)):
        row = (low + j) * heads + head
        fetch_row(x, row + 4 * AHEAD * heads)
        copy_row(x, row, 0, rows, j, shift, x.shape[1])


@jit
def _keys_per_chunk(channels, num_keys, num_rows, num_edges):
    """As many keys of so many numbers as the cache holds, or as a row has edges to for its visit to
    be worth it."""
    worth_it = num_keys * _EDGES_PER_VISIT * num_rows // max(num_edges, 1)
    return max(1, min(num_keys, max(_CHUNK // max(channels, 1), worth_it)))


_CHUNK = 1 << 18  # numbers, 1 MiB of float32
_EDGES_PER_VISIT = 16


@jit
def _largest_chunk(spans, channels, indptr, key_ptr):
    largest = 0
    for span in range(len(spans)):
        begin, end, block = spans[span, 1], spans[span, 2], spans[span, 3]
        largest = max(largest, _keys_per_chunk(channels, key_ptr[block + 1] - key_ptr[block],
                                               end - begin, indptr[end] - indptr[begin]))
    return largest


@jit_inline
def _scatter(y, shift, weight, x, row, column, n):
    """``y.flat[column[e] * y.shape[1] + shift:] += weight[e] * x[row]``."""
    width, stride = x.shape[1], y.shape[1]
    whole = width // LANES * LANES
    for c in range(0, whole, LANES):
        x_c, at = load(x, row * width + c), shift + c
        for e in range(n):
            y_e = column[e] * stride + at
            store(y, y_e, multiply_add(splat(weight[e]), x_c, load(y, y_e)))
    if whole < width:
        flat = y.reshape(-1)
        for e in range(n):
            y_row = column[e] * stride + shift
            for c in range(whole, width):
                flat[y_row + c] += weight[e] * x[row, c]


@jit_inline
def _add_products(total, x, row, weight, y, shift, to_grad, column, n):
    """``add_weighted`` of ``y`` and, ``to_grad`` columns on, ``_scatter`` in one pass."""
    width, stride = x.shape[1], y.shape[1]
    whole, begin = width // LANES * LANES, row * width
    for c in range(0, whole, LANES):
        sum_c, x_c, at = load(total, begin + c), load(x, begin + c), shift + c
        for e in range(n):
            y_e, many = column[e] * stride + at, splat(weight[e])
            sum_c = multiply_add(many, load(y, y_e), sum_c)
            store(y, y_e + to_grad, multiply_add(many, x_c, load(y, y_e + to_grad)))
        store(total, begin + c, sum_c)
    if whole < width:
        flat = y.reshape(-1)
        for e in range(n):
            y_row = column[e] * stride + shift
            for c in range(whole, width):
                total[row, c] += weight[e] * flat[y_row + c]
                flat[y_row + to_grad + c] += weight[e] * x[row, c]


__all__ = ['attention_diffusion', 'attention_weights', 'diffused_attention', 'edge_attention',
           'edge_dot', 'is_available', 'weighted_sum']
