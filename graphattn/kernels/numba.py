"""Attention in one pass over the rows of a graph: compiled by numba, for CPUs.

The logits of one query live in a buffer as long as its row, and the backward pass computes them
again from one saved log-sum-exp per query and head: no weight is stored, and nothing of size
edges x channels. Four graphs of 4096 x 4096 with 32 channels took 22, 71 and 229 ms of one core
forward at 1, 5 and 20 % density; MKL's sampled product, this module's softmax and MKL's sparse
product in a row took 42, 88 and 333 ms.
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
    from llvmlite import ir
    from numba import int32, njit, types
    from numba.extending import intrinsic, models, overload, register_model
except ImportError as error:
    raise ImportError("backend 'numba' needs numba: pip install numba") from error

# Sums may be reordered, which is what lets them run in vector registers; NaN and inf stay exact.
_OPTIONS = {'cache': True, 'nogil': True, 'error_model': 'numpy',
            'fastmath': {'reassoc', 'contract', 'nsz', 'arcp'}}
_jit, _jit_inline = njit(**_OPTIONS), njit(**_OPTIONS, forceinline=True)


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
) -> tuple[Tensor, None]:
    """Takes half precision as it is; returns ``None`` for the weights, which are never formed."""
    seed = torch.randint(-2**63, 2**63 - 1, (1,)) if dropout_p > 0 else None
    out, _ = _attention(query, key, value, edge_bias, edge_gate, *_csr(graph), seed, scale,
                        dropout_p)
    return out, None


def edge_dot(query: Tensor, key: Tensor, graph: BipartiteGraph) -> Tensor:
    """``<query_i, key_j>`` on every edge, ``[num_edges, heads]``, in O(num_edges) memory."""
    return _dot(query, key, *_csr(graph))


def _csr(graph: BipartiteGraph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return graph.indptr, graph.key, graph.query_ptr, graph.key_ptr


# Operators ###########################################################################


@torch.library.custom_op('graphattn::edge_attention', mutates_args=(), device_types='cpu')
def _attention(
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, query_ptr: Tensor, key_ptr: Tensor, seed: Tensor | None,
    scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Output ``[num_queries, heads, value_channels]`` and log-sum-exp ``[heads, num_queries]``."""
    dtype, (num_queries, heads, _) = _accumulation_dtype(query), query.shape
    out = query.new_zeros(heads, num_queries, value.size(2), dtype=dtype)
    lse = query.new_full((heads, num_queries), -torch.inf, dtype=dtype)
    rows = [_rows(tensor, dtype) for tensor in (query, key, value)]
    modifiers = _modifiers(edge_bias, edge_gate, seed, scale, dropout_p, dtype)
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, query.size(1))
    graph.run(_attention_forward, graph.split(query.size(2) + value.size(2)),
              *rows, *modifiers, out.flatten(0, 1).numpy(), lse.flatten().numpy())
    return _by_node(out, query.dtype), lse


@_attention.register_fake
def _(query, key, value, *_):
    dtype = _accumulation_dtype(query)
    return (query.new_empty(*query.shape[:2], value.size(2)),
            query.new_empty((query.size(1), query.size(0)), dtype=dtype))


@torch.library.custom_op('graphattn::edge_attention_backward', mutates_args=(), device_types='cpu')
def _attention_backward(
    grad_out: Tensor, out: Tensor, lse: Tensor,
    query: Tensor, key: Tensor, value: Tensor, edge_bias: Tensor | None, edge_gate: Tensor | None,
    indptr: Tensor, edge_key: Tensor, query_ptr: Tensor, key_ptr: Tensor, seed: Tensor | None,
    scale: float, dropout_p: float, needs_bias: bool, needs_gate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, bias and gate; the last two empty where not needed."""
    dtype, heads = lse.dtype, query.size(1)
    grads = [_zeros_by_head(tensor, dtype) for tensor in (query, key, value)]
    grads += [query.new_empty(edge_key.numel() if needed else 0, heads, dtype=dtype)
              for needed in (needs_bias, needs_gate)]
    rows = [_rows(tensor, dtype) for tensor in (query, key, value, grad_out, out)]
    modifiers = _modifiers(edge_bias, edge_gate, seed, scale, dropout_p, dtype)
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, heads)
    graph.run_to_keys(
        _attention_backward_kernel, graph.split(query.size(2) + value.size(2)),
        (*rows, *modifiers, lse.flatten().numpy(), grads[0].flatten(0, 1).numpy(),
         grads[3].numpy(), grads[4].numpy()), (grads[1], grads[2]))
    rows.clear()  # copies, of which long sequences had better not keep too many at once
    node_grads = [_by_node(grads.pop(0), query.dtype) for _ in range(3)]
    edge_grads = [_sum_to(grad, values) for grad, values in zip(grads, (edge_bias, edge_gate))]
    return *node_grads, *edge_grads


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
    dtype = _accumulation_dtype(query)
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
    dtype = _accumulation_dtype(query)
    grad_query, grad_key = grads = [_zeros_by_head(tensor, dtype) for tensor in (query, key)]
    graph = _Graph.of(indptr, edge_key, query_ptr, key_ptr, query.size(1))
    graph.run_to_keys(
        _dot_backward_kernel, graph.split(query.size(2)),
        (_rows(query, dtype), _rows(key, dtype), grad_dot.to(dtype).contiguous().numpy(),
         grad_query.flatten(0, 1).numpy()), (grad_key,))
    return tuple(_by_node(grad, query.dtype) for grad in grads)


@_dot_backward.register_fake
def _(grad_dot, query, key, *_):
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _save_dot(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_dot(ctx, grad_dot):
    return *_dot_backward(grad_dot, *ctx.saved_tensors), None, None, None, None


_dot.register_autograd(_differentiate_dot, setup_context=_save_dot)


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float)


def _rows(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """``[nodes, heads, channels]`` as ``[heads * nodes, channels]``.

    One head after the other, for the keys of a head are read again and again: with those of other
    heads between them they would fall on a few sets of the cache, which then holds fewer of them.
    """
    return tensor.detach().to(dtype).transpose(0, 1).contiguous().flatten(0, 1).numpy()


def _zeros_by_head(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.new_zeros(tensor.size(1), tensor.size(0), tensor.size(2), dtype=dtype)


def _by_node(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``[heads, nodes, channels]`` as ``[nodes, heads, channels]``."""
    return tensor.to(dtype).transpose(0, 1).contiguous()


def _modifiers(edge_bias: Tensor | None, edge_gate: Tensor | None, seed: Tensor | None,
               scale: float, dropout_p: float, dtype: torch.dtype) -> tuple:
    """What stands between dot products and weights, in types that do not depend on what is given:
    each combination would be compiled once more."""
    bias, gate = (np.empty((0, 1), torch.zeros((), dtype=dtype).numpy().dtype) if values is None
                  else values.detach().to(dtype).contiguous().numpy()
                  for values in (edge_bias, edge_gate))
    seed = np.uint64(0 if seed is None else seed.item() % 2**64)
    threshold = np.uint64(int(dropout_p * 2**64))
    real = bias.dtype.type
    return bias, gate, real(scale), seed, threshold, real(1 / (1 - dropout_p))


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
        # Unsigned, because a signed index might be negative and would cost a test per edge.
        return cls(indptr.numpy(), edge_key.contiguous().numpy().view(np.uint64),
                   query_ptr.numpy(), key_ptr.numpy(), heads)

    def split(self, channels: int) -> list[np.ndarray]:
        """The work of each thread: spans (head, first query, last query, block, is shared).

        Blocks and heads stand in a row and are cut into pieces of equally many edges, so that at
        most the first span of a thread shares its keys with another thread.
        """
        edge_ptr = self.indptr[self.query_ptr]
        num_blocks = len(edge_ptr) - 1
        item = np.arange(num_blocks * self.heads)
        block, head = np.divmod(item, max(self.heads, 1))
        done = np.concatenate([[0], np.cumsum(edge_ptr[block + 1] - edge_ptr[block])])
        num_parts = min(torch.get_num_threads(), 1 + int(done[-1]) * channels // _GRAIN)
        target = done[-1] * np.arange(1, num_parts) // num_parts
        cut_item = np.searchsorted(done, target, side='right') - 1
        cut_query = np.searchsorted(self.indptr, edge_ptr[block[cut_item]] + target
                                    - done[cut_item])
        begin, end = self.query_ptr[block], self.query_ptr[block + 1]
        cut_query = np.clip(cut_query, begin[cut_item], end[cut_item])

        item = np.concatenate([item, cut_item])
        first = np.concatenate([begin, cut_query])
        order = np.lexsort((first, item))
        item, first = item[order], first[order]
        last = end[item]
        same = item[1:] == item[:-1]
        last[:-1][same] = first[1:][same]
        is_shared = first > begin[item]
        spans = np.stack([head[item], first, last, block[item], is_shared], axis=1)
        starts_part = np.flatnonzero(order >= len(block))
        return np.split(spans, starts_part)

    def run(self, kernel, parts: list[np.ndarray], *arguments) -> None:
        """``kernel`` on every part, each in a thread."""
        calls = [(kernel, part, *arguments, self.indptr, self.edge_key, self.key_ptr, self.heads)
                 for part in parts]
        run_calls(calls)

    def run_to_keys(self, kernel, parts: list[np.ndarray], arguments: tuple,
                    grads: tuple[Tensor, ...]) -> None:
        """``run`` for a kernel that adds to rows of keys."""
        private = [self._private(part, grads) for part in parts]
        targets = [grad.flatten(0, 1).numpy() for grad in grads]
        run_calls([(kernel, part, *arguments, *targets, *(grad.numpy() for grad in own),
                    self.indptr, self.edge_key, self.key_ptr, self.heads)
                   for part, own in zip(parts, private)])
        for part, own in zip(parts, private):
            if own[0].size(0):
                head, _, _, block, _ = next(span for span in part if span[4])
                keys = slice(self.key_ptr[block], self.key_ptr[block + 1])
                for grad, addend in zip(grads, own):
                    grad[head, keys] += addend

    def _private(self, part: np.ndarray, grads: tuple[Tensor, ...]) -> list[Tensor]:
        block = part[part[:, 4] != 0, 3]
        num_keys = int((self.key_ptr[block + 1] - self.key_ptr[block]).sum())
        return [grad.new_zeros(num_keys, grad.size(2)) for grad in grads]


_GRAIN = 1 << 17  # multiplications that are worth a thread


# Kernels #############################################################################


_LANES = 16


class _Vector(types.Type):
    """``_LANES`` numbers of a dtype in a register.

    Loops over channels are spelled out in vectors: the compiler would have to guard each of them
    against overlap of the rows it reads and writes.
    """

    def __init__(self, dtype: types.Float):
        self.dtype = dtype
        super().__init__(f'Vector({dtype})')


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector: _Vector):
        scalar = manager[vector.dtype].get_value_type()
        super().__init__(manager, vector, ir.VectorType(scalar, _LANES))


@intrinsic
def _splat(typingctx, scalar):
    def codegen(context, builder, signature, args):
        vector = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        for lane in range(_LANES):
            vector = builder.insert_element(vector, args[0], ir.IntType(32)(lane))
        return vector
    return _Vector(scalar)(scalar), codegen


@intrinsic
def _load(typingctx, array, row, column):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, signature.return_type)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)
    return _Vector(array.dtype)(array, row, column), codegen


@intrinsic
def _store(typingctx, array, row, column, vector):
    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature, args, vector)
        builder.store(args[3], pointer, align=array.dtype.bitwidth // 8)
    return types.void(array, row, column, vector), codegen


def _pointer(context, builder, signature, args, vector):
    array_type, row_type, *_ = signature.args
    array = context.make_array(array_type)(context, builder, args[0])
    width = builder.extract_value(array.shape, 1)
    position = builder.add(builder.mul(args[1], width), args[2])
    scalar = builder.gep(array.data, [position])
    return builder.bitcast(scalar, context.get_value_type(vector).as_pointer())


@intrinsic
def _multiply_add(typingctx, x, y, z):
    def codegen(context, builder, signature, args):
        return builder.fadd(builder.fmul(*args[:2], flags=['contract']), args[2],
                            flags=['contract'])
    return x(x, x, x), codegen


@intrinsic
def _add(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.fadd(*args)
    return x(x, x), codegen


@intrinsic
def _sum(typingctx, vector):
    def codegen(context, builder, signature, args):
        total, lanes = args[0], _LANES
        while lanes > 1:
            lanes //= 2
            low, high = (ir.Constant(ir.VectorType(ir.IntType(32), lanes),
                                     list(range(begin, begin + lanes))) for begin in (0, lanes))
            total = builder.fadd(builder.shuffle_vector(total, total, low),
                                 builder.shuffle_vector(total, total, high))
        return builder.extract_element(total, ir.IntType(32)(0))
    return vector.dtype(vector), codegen


@_jit
def _attention_forward(spans, query, key, value, bias, gate, scale, seed, threshold, keep_scale,
                       out, lse, indptr, edge_key, key_ptr, heads):
    logits = np.empty(_longest_row(spans, indptr), query.dtype)
    for span in range(len(spans)):
        head = spans[span, 0]
        first_row, first_key = head * (len(indptr) - 1), head * (len(key) // heads)
        for i in range(spans[span, 1], spans[span, 2]):
            first, last = indptr[i], indptr[i + 1]
            if first == last:
                continue
            row, n = first_row + i, last - first
            keys = edge_key[first:last]
            weight = logits[:n]
            _dots(weight, query, row, key, keys, first_key)
            _modify(weight, bias, gate, scale, first, head)
            lse[row] = _softmax(weight)
            if threshold > 0:
                for e in range(n):
                    weight[e] *= _keep(seed, threshold, keep_scale, (first + e) * heads + head)
            _add_weighted(out, row, weight, value, keys, first_key)


@_jit
def _attention_backward_kernel(
        spans, query, key, value, grad_out, out, bias, gate, scale, seed, threshold, keep_scale,
        lse, grad_query, grad_bias, grad_gate, all_grad_key, all_grad_value,
        own_grad_key, own_grad_value, indptr, edge_key, key_ptr, heads):
    tile = 64
    dots, weights = np.empty(tile, query.dtype), np.empty(tile, query.dtype)
    grad_weights, keeps = np.empty(tile, query.dtype), np.ones(tile, query.dtype)
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        block, is_shared = spans[span, 3], spans[span, 4] == 1
        grad_key = own_grad_key if is_shared else all_grad_key
        grad_value = own_grad_value if is_shared else all_grad_value
        first_row, first_key = head * (len(indptr) - 1), head * (len(key) // heads)
        first_grad = -key_ptr[block] if is_shared else first_key
        for i in range(begin, end):
            row = first_row + i
            delta = query.dtype.type(0)
            for c in range(out.shape[1]):
                delta += grad_out[row, c] * out[row, c]
            for first in range(indptr[i], indptr[i + 1], tile):
                n = min(tile, indptr[i + 1] - first)
                keys = edge_key[first:first + n]
                dot, weight, grad_weight, keep = dots[:n], weights[:n], grad_weights[:n], keeps[:n]
                _dots(dot, query, row, key, keys, first_key)
                _dots(grad_weight, grad_out, row, value, keys, first_key)
                for e in range(n):
                    weight[e] = dot[e]
                _modify(weight, bias, gate, scale, first, head)
                for e in range(n):
                    weight[e] = _exp(weight[e] - lse[row])
                if threshold > 0:
                    for e in range(n):
                        keep[e] = _keep(seed, threshold, keep_scale, (first + e) * heads + head)
                for e in range(n):
                    grad_weight[e] = weight[e] * (grad_weight[e] * keep[e] - delta)
                    weight[e] *= keep[e]
                if grad_bias.shape[0] > 0:
                    for e in range(n):
                        grad_bias[first + e, head] = grad_weight[e]
                if grad_gate.shape[0] > 0:
                    for e in range(n):
                        grad_gate[first + e, head] = grad_weight[e] * dot[e] * scale
                for e in range(n):
                    grad_weight[e] *= scale
                if gate.shape[0] > 0:
                    column = min(head, gate.shape[1] - 1)
                    for e in range(n):
                        grad_weight[e] *= gate[first + e, column]
                _add_weighted(grad_query, row, grad_weight, key, keys, first_key)
                _scatter(grad_key, grad_weight, query, row, keys, first_grad)
                _scatter(grad_value, weight, grad_out, row, keys, first_grad)


@_jit
def _dot_forward(spans, query, key, dot, indptr, edge_key, key_ptr, heads):
    for span in range(len(spans)):
        head = spans[span, 0]
        first_row, first_key = head * (len(indptr) - 1), head * (len(key) // heads)
        for i in range(spans[span, 1], spans[span, 2]):
            first, last = indptr[i], indptr[i + 1]
            _dots(dot[first:last, head], query, first_row + i, key, edge_key[first:last],
                  first_key)


@_jit
def _dot_backward_kernel(spans, query, key, grad_dot, grad_query, all_grad_key, own_grad_key,
                         indptr, edge_key, key_ptr, heads):
    for span in range(len(spans)):
        head, begin, end = spans[span, 0], spans[span, 1], spans[span, 2]
        block, is_shared = spans[span, 3], spans[span, 4] == 1
        grad_key = own_grad_key if is_shared else all_grad_key
        first_row, first_key = head * (len(indptr) - 1), head * (len(key) // heads)
        first_grad = -key_ptr[block] if is_shared else first_key
        for i in range(begin, end):
            first, last = indptr[i], indptr[i + 1]
            row, keys, weight = first_row + i, edge_key[first:last], grad_dot[first:last, head]
            _add_weighted(grad_query, row, weight, key, keys, first_key)
            _scatter(grad_key, weight, query, row, keys, first_grad)


@_jit
def _longest_row(spans, indptr):
    longest = 0
    for span in range(len(spans)):
        for i in range(spans[span, 1], spans[span, 2]):
            longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@_jit_inline
def _dots(dot, x, row, y, keys, first_row):
    """``dot[e] = <x[row], y[first_row + keys[e]]>``, four at once to read ``x`` once."""
    first_row, n, width = np.uint64(first_row), len(keys), x.shape[1]
    whole, zero = width // _LANES * _LANES, x.dtype.type(0)
    for e in range(0, n - 3, 4):
        j0 = first_row + keys[e]
        j1 = first_row + keys[e + 1]
        j2 = first_row + keys[e + 2]
        j3 = first_row + keys[e + 3]
        sum0 = sum1 = sum2 = sum3 = _splat(zero)
        for c in range(0, whole, _LANES):
            x_c = _load(x, row, c)
            sum0 = _multiply_add(x_c, _load(y, j0, c), sum0)
            sum1 = _multiply_add(x_c, _load(y, j1, c), sum1)
            sum2 = _multiply_add(x_c, _load(y, j2, c), sum2)
            sum3 = _multiply_add(x_c, _load(y, j3, c), sum3)
        dot0, dot1, dot2, dot3 = _sum(sum0), _sum(sum1), _sum(sum2), _sum(sum3)
        if whole < width:
            for c in range(whole, width):
                x_c = x[row, c]
                dot0 += x_c * y[j0, c]
                dot1 += x_c * y[j1, c]
                dot2 += x_c * y[j2, c]
                dot3 += x_c * y[j3, c]
        dot[e], dot[e + 1], dot[e + 2], dot[e + 3] = dot0, dot1, dot2, dot3
    for e in range(n // 4 * 4, n):
        j0 = first_row + keys[e]
        sum0 = _splat(zero)
        for c in range(0, whole, _LANES):
            sum0 = _multiply_add(_load(x, row, c), _load(y, j0, c), sum0)
        dot0 = _sum(sum0)
        for c in range(whole, width):
            dot0 += x[row, c] * y[j0, c]
        dot[e] = dot0


@_jit_inline
def _add_weighted(total, row, weight, y, keys, first_row):
    """``total[row] += sum_e weight[e] * y[first_row + keys[e]]``."""
    first_row, n, width = np.uint64(first_row), len(keys), y.shape[1]
    whole = width // _LANES * _LANES
    for c in range(0, whole, _LANES):
        even, odd = _load(total, row, c), _splat(weight.dtype.type(0))
        for e in range(0, n - 1, 2):
            even = _multiply_add(_splat(weight[e]), _load(y, first_row + keys[e], c), even)
            odd = _multiply_add(_splat(weight[e + 1]),
                                _load(y, first_row + keys[e + 1], c), odd)
        if n % 2 == 1:
            j = first_row + keys[n - 1]
            even = _multiply_add(_splat(weight[n - 1]), _load(y, j, c), even)
        _store(total, row, c, _add(even, odd))
    if whole < width:
        for e in range(n):
            j, w = first_row + keys[e], weight[e]
            for c in range(whole, width):
                total[row, c] += w * y[j, c]


@_jit_inline
def _scatter(total, weight, x, row, keys, first_row):
    """``total[first_row + keys[e]] += weight[e] * x[row]``."""
    first_row, n, width = np.uint64(first_row), len(keys), x.shape[1]
    whole = width // _LANES * _LANES
    for c in range(0, whole, _LANES):
        x_c = _load(x, row, c)
        for e in range(n):
            j = first_row + keys[e]
            _store(total, j, c, _multiply_add(_splat(weight[e]), x_c, _load(total, j, c)))
    if whole < width:
        for e in range(n):
            j, w = first_row + keys[e], weight[e]
            for c in range(whole, width):
                total[j, c] += w * x[row, c]


@_jit_inline
def _softmax(logit):
    """Softmax in place; returns the log-sum-exp. One loop per step, so that each is in vectors."""
    high = logit[0]
    for e in range(len(logit)):
        high = max(high, logit[e])
    for e in range(len(logit)):
        logit[e] = _exp(logit[e] - high)
    total = logit.dtype.type(0)
    for e in range(len(logit)):
        total += logit[e]
    inverse = 1 / total
    for e in range(len(logit)):
        logit[e] *= inverse
    return high + logit.dtype.type(math.log(total))


@_jit_inline
def _modify(logit, bias, gate, scale, first, head):
    for e in range(len(logit)):
        logit[e] *= scale
    if gate.shape[0] > 0:
        column = min(head, gate.shape[1] - 1)
        for e in range(len(logit)):
            logit[e] *= gate[first + e, column]
    if bias.shape[0] > 0:
        column = min(head, bias.shape[1] - 1)
        for e in range(len(logit)):
            logit[e] += bias[first + e, column]


@_jit_inline
def _keep(seed, threshold, keep_scale, counter):
    """0 or ``keep_scale`` by the hash of a counter: SplitMix64 (Steele et al., 2014)."""
    bits = seed + np.uint64(counter + 1) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return keep_scale if bits >= threshold else keep_scale * 0


def _exp(x):
    raise NotImplementedError


@intrinsic
def _as_float(typingctx, bits):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))
    return types.float32(types.int32), codegen


@overload(_exp, inline='always')
def _overload_exp(x):
    if x != types.float32:
        return lambda x: math.exp(x)
    log2_e, ln2_high, ln2_low = map(np.float32, (1.44269504, 0.693359375, -2.12194440e-4))
    c2, c3, c4, c5, c6, c7 = map(np.float32, (
        5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3,
        1.9875691500e-4))
    low, half, one = map(np.float32, (-87., 0.5, 1.))
    zero = np.float32(0)

    def exp(x):
        exponent = np.floor(x * log2_e + half)
        r = x - exponent * ln2_high - exponent * ln2_low
        poly = c7
        poly = poly * r + c6
        poly = poly * r + c5
        poly = poly * r + c4
        poly = poly * r + c3
        poly = poly * r + c2
        poly = poly * r * r + r + one
        power = _as_float((int32(exponent) + int32(127)) << int32(23))
        return zero if x < low else poly * power
    return exp
