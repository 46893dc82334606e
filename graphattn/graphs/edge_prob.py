"""Constant values on edges that pass their gradient to the probabilities of the edges."""

from __future__ import annotations

import torch
from torch import Tensor


def constant_of(edge_prob: Tensor, value: float) -> Tensor:
    """Return ``value`` for each edge, whose gradient is passed on unchanged to ``edge_prob``."""
    # One number with stride 0: kernels recognise it by this stride.
    return _Constant.apply(edge_prob, value)


class _Constant(torch.autograd.Function):
    @staticmethod
    def forward(edge_prob: Tensor, value: float) -> Tensor:
        return edge_prob.new_full((), value).expand(edge_prob.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)

    @staticmethod
    def vmap(info, in_dims, edge_prob: Tensor, value: float) -> tuple[Tensor, int | None]:
        return _Constant.apply(edge_prob, value), in_dims[0]
