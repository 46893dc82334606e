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
    """Define an operator ``graphattn::name`` of torch that changes none of its arguments."""
    # in the syntax of torch's schemas; fake: returns results of the right shapes without values
    arguments = ' '.join(arguments.split())
    torch.library.define(f'graphattn::{name}', f'({arguments}) -> {results}',
                         tags=torch.Tag.pt2_compliant_tag)
    torch.library.register_fake(f'graphattn::{name}', fake)
    return getattr(torch.ops.graphattn, name).default


def differentiate(operator: torch._ops.OpOverload, backward: Callable,
                  save: Callable) -> Callable:
    """Register the gradients of an operator, and return a function to call in its place."""
    # backward: maps (ctx, *grads) to gradients by names of arguments. save: stores in ctx, and may
    # return other results for the caller, of which backward then gets the gradients, except under
    # torch.compile.
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
            results = save(ctx, inputs, output)
            return output if results is None else results

        backward = staticmethod(in_order)

    without_gradient = _without_gradient(operator)

    # outside torch.compile, skips torch's slow dispatch
    def call(*inputs):
        takes_gradient = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return (Differentiable.apply if takes_gradient else without_gradient)(*inputs)

    return call


def differentiate_no_more(operator: torch._ops.OpOverload) -> Callable:
    """Make an operator that computes gradients raise an error if it is differentiated."""
    # torch would treat second derivatives as zero
    def refuse(ctx, *grads: Tensor | None) -> None:
        raise NotImplementedError(f"'{operator.name()}' has no second derivative; pass "
                                  f"backend='gather', which supports all derivatives")

    torch.library.register_autograd(operator, refuse)
    return _without_gradient(operator)


def _without_gradient(operator: torch._ops.OpOverload) -> Callable:
    # outside torch.compile, skips torch's handling of default arguments, which takes as long as the
    # attention of a small graph
    def call(*inputs):
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return operator(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    return call


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of sums: float32 for half precision, else that of ``tensor``."""
    return torch.promote_types(tensor.dtype, torch.float)


def empty_unless(needed: bool, like: Tensor | None, other: Tensor) -> Tensor:
    """Return an uninitialised gradient of ``like``, or ``[0, heads of other]`` if not needed."""
    return like.new_empty(like.shape) if needed else other.new_empty(0, other.size(1))


def empty_max_inv_sum(query: Tensor) -> Tensor:
    """Return uninitialised numbers of softmaxes, ``[heads, num_queries, 2]``."""
    # maximum logit m, and 1 over the sum of exp(logit - m)
    return query.new_empty(query.size(1), query.size(0), 2, dtype=accumulation_dtype(query))


def no_grad(like: Tensor) -> Tensor:
    # what operators return for a gradient that is not needed
    return like.new_empty(0)


def sum_to(grad: Tensor, values: Tensor | None) -> Tensor:
    """Return the gradient of ``values`` ``[num_edges, heads or 1]``, given that of all heads."""
    # also an empty gradient, which is not needed
    if values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)
