"""Several projections of the same features."""

from __future__ import annotations

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from graphattn.functional.choose import in_transform

# Values of features up to which one product takes less time than one for each projection. On two
# cores a training step of four took 0.15 instead of 0.22 ms for 60 nodes of 64 channels and 0.70
# instead of 0.79 ms for 800; behind that all time goes into the products, and into copies of their
# gradients.
MAX_VALUES = 1 << 17


def project(x: Tensor, *linears: nn.Module) -> tuple[Tensor, ...]:
    """Return what each module makes of ``x`` ``[num_nodes, channels]``.

    Modules that are products by weights of one shape, and nothing else, are not called: few nodes
    are multiplied by all weights at once.
    """
    weights = _weights_to_join(x, linears)
    if weights is None:
        return tuple(linear(x) for linear in linears)
    bias = None if linears[0].bias is None else torch.stack([linear.bias for linear in linears])
    return multiply(x, torch.stack(weights), bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Return the products of ``x`` ``[num_nodes, channels]`` with each of ``weight``
    ``[num_products, width, channels]``."""
    many = x.expand(len(weight), -1, -1)
    out = (torch.bmm(many, weight.mT) if bias is None else
           torch.baddbmm(bias.unsqueeze(1), many, weight.mT))
    return out.unbind()


def are_few(x: Tensor) -> bool:
    """Return whether one product with several weights takes less time than one with each. Code that
    is compiled would be compiled anew for more nodes, and transforms take what they know best."""
    return not (torch.compiler.is_compiling() or in_transform()) and x.numel() <= MAX_VALUES


def is_product(linear: nn.Module) -> bool:
    """Return whether a projection is that by its weight and bias, and need not be called: nothing
    has taken its place or changes it when it is, as hooks and pruning do."""
    return type(linear) in (nn.Linear, pyg.Linear) and not _has_any_global_hook() and not (
        linear._forward_pre_hooks or linear._forward_hooks or linear._backward_pre_hooks
        or linear._backward_hooks or 'forward' in linear.__dict__)


def _weights_to_join(x: Tensor, linears: tuple[nn.Module, ...]) -> list[Tensor] | None:
    """Return the weights of modules that are products of one shape, if that is worth it."""
    if x.dim() != 2 or not are_few(x) or not all(map(is_product, linears)):
        return None
    weights = [linear.weight for linear in linears]
    forms = {(type(weight), weight.shape, linear.bias is None)
             for weight, linear in zip(weights, linears)}
    is_plain = len(forms) == 1 and type(weights[0]) in (Tensor, nn.Parameter)
    return weights if is_plain and weights[0].dtype == x.dtype else None
