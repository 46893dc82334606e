"""Probabilities of edges, of which a loss may need the gradient alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class UnreadProb:
    """Probabilities that are computed when they are first read, if they ever are.

    Args:
        compute (Callable): Gives them, floating ``[num_edges]``; or, called with ``known``, what it
            is called with, with their gradient.
        num_edges (int): How many there are.
        dtype (torch.dtype): Theirs.
        device (torch.device): Theirs.
    """

    def __init__(self, compute: Callable[..., Tensor], num_edges: int, dtype: torch.dtype,
                 device: torch.device):
        self._compute, self._size = compute, num_edges
        self._options = {'dtype': dtype, 'device': device}
        self._numbers: Tensor | None = None

    def read(self) -> Tensor:
        """The numbers, with their gradient. That they were read changes nothing else: a layer that
        is run again in the backward pass must save what it saved before."""
        if self._numbers is None:
            with torch.inference_mode(False), torch.enable_grad():
                self._numbers = self._compute()
        return self._numbers

    def constant(self, value: float) -> Tensor:
        """One number for all edges, with the gradient of the probabilities."""
        return self._compute(known=torch.full((), value, **self._options).expand(self._size))


def constant_of(edge_prob: Tensor | UnreadProb, value: float) -> Tensor:
    """One number for all edges, with the gradient of their probabilities. It takes no memory:
    kernels know by its stride of 0 that it is one number."""
    if isinstance(edge_prob, UnreadProb):
        edge_prob = edge_prob.constant(value)
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
