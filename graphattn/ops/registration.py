"""Registration of this library's operators with torch: their schemas, fake kernels and
gradients."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

# Arguments that describe the edges of a graph, in the order by query (``indptr`` and ``edge_key``)
# and in the order by key (``key_indptr``, ``edge_query`` and ``perm``, the permutation from the
# first order to the second). Only gradients need the order by key. If none is needed, its three
# tensors are empty.
BOTH_ORDERS = ('Tensor indptr, Tensor edge_key, Tensor key_indptr, Tensor edge_query, '
               'Tensor perm')
GRAPH = f'{BOTH_ORDERS}, Tensor query_ptr, Tensor key_ptr'


def define(name: str, arguments: str, results: str, fake: Callable) -> OpOverload:
    """Define an operator ``graphattn::name`` of torch that changes none of its arguments."""
    # arguments: in the syntax of torch's schemas, tensors first; results: names of tensors; fake:
    # as in implement, returns results of the right shapes without values
    arguments = ' '.join(arguments.split())
    returns = ', '.join(f'Tensor {result}' for result in results.split())
    torch.library.define(f'graphattn::{name}', f'({arguments}) -> ({returns})',
                         tags=torch.Tag.pt2_compliant_tag)
    operator = getattr(torch.ops.graphattn, name).default
    torch.library.register_fake(operator, _of_arguments(operator, fake))
    return operator


def implement(name: str, device: str) -> Callable[[Callable], Callable]:
    """Return a decorator of the function that computes an operator on a type of device, given a
    named tuple of its arguments."""
    operator = getattr(torch.ops.graphattn, name).default

    def register(kernel: Callable) -> Callable:
        torch.library.register_kernel(operator, device)(_of_arguments(operator, kernel))
        return kernel
    return register


def _of_arguments(operator: OpOverload, kernel: Callable) -> Callable:
    names, results = _names(operator)
    arguments = namedtuple('Arguments', names)
    # Only operators for gradients have such arguments.
    flags = [names.index(f'needs_{result}') if f'needs_{result}' in names else None
             for result in results]

    def compute(*given):
        found = kernel(arguments(*given))
        if len(flags) == 1:
            return found
        # An operator cannot return None, so a gradient that is not needed is an empty tensor.
        return tuple([given[0].new_empty(0) if result is None or flag and not given[flag]
                      else result for result, flag in zip(found, flags)])

    return compute


def _names(operator: OpOverload) -> tuple[list[str], list[str]]:
    schema = operator._schema
    return [each.name for each in schema.arguments], [each.name for each in schema.returns]


def define_gradients(operator: OpOverload, inputs: str, *, of: str, saved: str = '',
                     rounds: bool = False) -> tuple[Callable, Callable]:
    """Define the operator of the gradients of ``inputs``, and return it and a function to call in
    place of ``operator``."""
    # of: the results with gradients, of which several must be saved; saved: results for the new
    # operator. Its arguments are the gradients, what is saved, all arguments of ``operator``, and
    # whether each gradient of an input is needed. rounds: outside torch.compile, results get the
    # dtype of the first input.
    names, results = _names(operator)
    wanted, of, saved = inputs.split(), of.split(), saved.split()
    own = str(operator._schema).partition('(')[2].partition(') ->')[0]
    num_tensors = own.count('Tensor')
    arguments = [*(f'Tensor grad_{name}' for name in of), *(f'Tensor {name}' for name in saved),
                 own, *(f'bool needs_{name}' for name in wanted)]

    def fake(given):
        values = [getattr(given, name) for name in wanted]
        return [x if x is None else x.new_empty(x.shape) for x in values]

    backward = differentiate_no_more(define(f'{operator._opname}_backward', ', '.join(arguments),
                                            inputs, fake))

    def save(ctx, inputs, output) -> None:
        result = dict(zip(results, output if isinstance(output, tuple) else (output,)))
        ctx.mark_non_differentiable(*[result[name] for name in results if name not in of])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[result[name] for name in saved], *inputs[:num_tensors])
        ctx.constants = inputs[num_tensors:]

    numbers = [number for name in wanted for number, own in enumerate(names) if own == name]
    place = [wanted.index(name) if name in wanted else None for name in names]

    def differentiate(ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = grads[:len(of)]
        if all(grad is None for grad in grads):
            return (None,) * len(names)
        tensors = ctx.saved_tensors  # checkpoints allow one access
        grads = [torch.zeros_like(result) if grad is None else grad
                 for grad, result in zip(grads, tensors)]
        needs = ctx.needs_input_grad
        found = backward(*grads, *tensors, *ctx.constants, *[needs[number] for number in numbers])
        return tuple([found[at] if needed and at is not None else None
                      for at, needed in zip(place, needs)])

    torch.library.register_autograd(operator, differentiate, setup_context=save)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            with torch._C._AutoDispatchBelowAutograd():
                output = operator(*inputs)
            save(ctx, inputs, output)
            dtype = inputs[0].dtype
            if not rounds or output[0].dtype == dtype:
                return output
            # Gradients arrive in this dtype too. The backward pass reads the results as they were
            # computed.
            return tuple([x.to(dtype) if name in of else x for name, x in zip(results, output)])

        backward = staticmethod(differentiate)

    without_gradient = _without_gradient(operator)

    # outside torch.compile, skips torch's slow dispatch
    def call(*inputs):
        takes_gradient = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return (Differentiable.apply if takes_gradient else without_gradient)(*inputs)

    return backward, call


def differentiate_no_more(operator: OpOverload) -> Callable:
    """Make an operator that computes gradients raise an error if it is differentiated."""
    # torch would treat second derivatives as zero
    def refuse(ctx, *grads: Tensor | None) -> None:
        raise NotImplementedError(f"'{operator.name()}' has no second derivative; pass "
                                  f"backend='gather', which supports all derivatives")

    torch.library.register_autograd(operator, refuse)
    return _without_gradient(operator)


def _without_gradient(operator: OpOverload) -> Callable:
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


def empty_max_inv_sum(query: Tensor) -> Tensor:
    """Return uninitialised numbers of softmaxes, ``[heads, num_queries, 2]``."""
    # maximum logit m, and 1 over the sum of exp(logit - m)
    return query.new_empty(query.size(1), query.size(0), 2, dtype=accumulation_dtype(query))


def sum_to(grad: Tensor | None, values: Tensor | None) -> Tensor | None:
    """Return the gradient of ``values`` ``[num_edges, heads or 1]``, given that of all heads."""
    # also an empty gradient, which is not needed
    if grad is None or values is None or grad.size(0) != values.size(0):
        return grad
    return (grad.sum(1, keepdim=True) if values.size(1) < grad.size(1) else grad).to(values.dtype)
