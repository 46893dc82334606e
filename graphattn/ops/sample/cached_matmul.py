"""A cached matrix product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from graphattn._tensors import is_traced


class CachedMatmul:
    """Batched matrix product, computed again only for other or modified factors."""

    def __init__(self, compares_leaves: bool = True):
        self._compares_leaves = compares_leaves
        # The product and its factors are replaced in one assignment, so that no other thread gets
        # the product of other factors.
        self._kept: _Kept | None = None

    def __call__(self, x: Tensor, y: Tensor, sources: tuple[Tensor, Tensor]) -> Tensor:
        # x and y must depend only on ``sources``. Results of operations are compared by version,
        # which in-place changes increment. Leaves are compared by value, because changes through
        # .data, as in clamping or averaging weights, do not increment it.
        leaves = [source for source in sources if source.is_leaf] if self._compares_leaves else []
        if not _can_be_kept(sources, leaves):
            return torch.bmm(x, y)
        kept = self._kept
        if kept is None or not kept.is_of(sources, leaves):
            kept = self._kept = _Kept(torch.bmm(x.detach(), y.detach()), sources, leaves)
        # with an autograd graph of its own, so that any number of backward passes are possible
        return _Product.apply(x, y, kept.product) if torch.is_grad_enabled() else kept.product


class _Kept:
    def __init__(self, product: Tensor, sources: tuple[Tensor, Tensor], leaves: list[Tensor]):
        self.product = product
        self._versions = self._versions_with(*sources)
        self._copies = [leaf.detach().clone() for leaf in leaves] if leaves else []

    def is_of(self, sources: tuple[Tensor, Tensor], leaves: list[Tensor]) -> bool:
        if self._versions != self._versions_with(*sources):
            return False
        return not leaves or all(torch.equal(copy, leaf.detach())
                                 for copy, leaf in zip(self._copies, leaves))

    def _versions_with(self, x: Tensor, y: Tensor) -> tuple[int, int, int]:
        return x._version, y._version, self.product._version


def _can_be_kept(sources: tuple[Tensor, Tensor], leaves: list[Tensor]) -> bool:
    # Traced or transformed tensors have no values yet. Inference mode tracks no versions and makes
    # tensors unusable for training. Comparing leaves on a GPU takes longer than the product.
    x, y = sources
    if (is_traced(x, y) or torch.is_inference_mode_enabled() or x.is_inference()
            or y.is_inference() or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0):
        return False
    return not leaves or x.device.type == 'cpu'


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
        return product.view_as(product)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y, _ = ctx.needs_input_grad
        return grad @ y.mT if needs_x else None, x.mT @ grad if needs_y else None, None
