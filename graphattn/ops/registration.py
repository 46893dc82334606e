"""Registration of this library's operators with torch: their schemas, fake kernels and
gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Arguments that describe the edges of a graph, in the order by query (``indptr`` and ``edge_key``)
# and in the order by key (``key_indptr``, ``edge_query`` and ``perm``, the permutation from the
# first order to the second). Only gradients need the order by key. If none is needed, its three
# tensors are empty.
BOTH_ORDERS = ('Tensor indptr, Tensor edge_key, Tensor key_indptr, Tensor edge_query, '
               'Tensor perm')
GRAPH = f'{BOTH_ORDERS}, Tensor query_ptr, Tensor key_ptr'


def define(name: str, arguments: str, results: str, fake: Callable) -> torch._ops.OpOverload:
    """Define an operator ``graphattn::name`` of torch that changes none of its arguments.

    Args:
        name (str): Name of the operator.
        arguments (str): Arguments, in the syntax of torch's schemas.
        results (str): Results, in the syntax of torch's schemas.
        fake (Callable): Fake kernel, which returns results of the right shapes without values.

    Returns:
        OpOverload: The operator, which kernels are registered for.
    """
    arguments = ' '.join(arguments.split())
    torch.library.define(f'graphattn::{name}', f'({arguments}) -> {results}',
                         tags=torch.Tag.pt2_compliant_tag)
    torch.library.register_fake(f'graphattn::{name}', fake)
    return getattr(torch.ops.graphattn, name).default


def differentiate(operator: torch._ops.OpOverload, backward: Callable, save: Callable,
                  finish: Callable = lambda inputs, output: output) -> Callable:
    """Register the gradients of an operator.

    Args:
        operator (OpOverload): The operator.
        backward (Callable): Maps ``(ctx, *grads)`` to a dict from the names of arguments to their
            gradients.
        save (Callable): Function of ``(ctx, inputs, output)`` that stores in ``ctx`` what
            ``backward`` needs.
        finish (Callable): Maps ``(inputs, output)`` of the operator to the results that callers
            get, such as ``output`` in another dtype. The backward pass gets the gradients of these
            results, in their dtypes.

    Returns:
        Callable: Function to call instead of the operator, with the same arguments, and with the
        results of ``finish``. Outside torch.compile, it skips torch's slow dispatch.
    """
    names = [argument.name for argument in operator._schema.arguments]

    def in_order(ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_of = backward(ctx, *grads)
        return tuple([grad_of.get(name) if needed else None
                      for name, needed in zip(names, ctx.needs_input_grad)])

    torch.library.register_autograd(operator, in_order, setup_context=save)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            with torch._C._AutoDispatchBelowAutograd():
                output = operator(*inputs)
            save(ctx, inputs, output)
            return finish(inputs, output)

        backward = staticmethod(in_order)

    without_gradient = _without_gradient(operator)

    def call(*inputs):
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return Differentiable.apply(*inputs)
        return finish(inputs, without_gradient(*inputs))

    return call


def differentiate_no_more(operator: torch._ops.OpOverload) -> Callable:
    """Make an operator that computes gradients raise an error if it is differentiated. Otherwise,
    torch would treat second derivatives as zero.

    Returns:
        Callable: Function to call instead of the operator, with the same arguments and results.
        Outside torch.compile, it skips torch's handling of default arguments. On a small graph,
        this handling takes as long as the attention.
    """
    def refuse(ctx, *grads: Tensor | None) -> None:
        raise NotImplementedError(f"'{operator.name()}' has no second derivative; pass "
                                  f"backend='gather', which supports all derivatives")

    torch.library.register_autograd(operator, refuse)
    return _without_gradient(operator)


def _without_gradient(operator: torch._ops.OpOverload) -> Callable:
    def call(*inputs):
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return operator(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    return call


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which sums are computed: float32 for half precision, else the dtype of
    ``tensor``."""
    return torch.promote_types(tensor.dtype, torch.float)


def empty_unless(needed: bool, like: Tensor | None, other: Tensor) -> Tensor:
    """Return an uninitialised tensor for the gradient of ``like``, in the shape of ``like``. If the
    gradient is not ``needed``, return an empty tensor ``[0, heads]``, with the heads of ``other``
    ``[nodes, heads, ...]``."""
    return like.new_empty(like.shape) if needed else other.new_empty(0, other.size(1))


def empty_max_inv_sum(query: Tensor) -> Tensor:
    """Return an uninitialised tensor ``[heads, num_queries, 2]`` for two numbers of each query's
    softmax: the maximum logit m, and 1 over the sum of ``exp(logit - m)``. ``query`` is
    ``[num_queries, heads, channels]``."""
    return query.new_empty(query.size(1), query.size(0), 2, dtype=accumulation_dtype(query))


def no_grad(like: Tensor) -> Tensor:
    """Return an empty tensor of the dtype and device of ``like``. Operators return it for a
    gradient that is not needed."""
    return like.new_empty(0)


def sum_to(grad: Tensor, values: Tensor | None) -> Tensor:
    """Return the gradient of ``values`` ``[num_edges, heads or 1]``, given the gradients ``grad``
    ``[num_edges, heads]``. They are summed over heads if all heads share ``values``. If ``values``
    is None or ``grad`` is empty, return ``grad``."""
    if values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)
