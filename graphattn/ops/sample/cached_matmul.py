"""A matrix product that is computed once for several who need it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from graphattn._tensors import is_traced


class CachedMatmul:
    """The product of two batches of matrices, computed again only after one of them, or the
    product, was changed in place.

    Leaves are compared by their values, because ``.data``, by which weights are clamped or
    averaged, leaves no trace in their versions. Results of operations are compared by versions.
    Each call gives a result with a gradient graph of its own, so that any number of backward
    passes are possible.

    Args:
        compares_leaves (bool): Pass ``False`` for factors that no caller holds.
    """

    def __init__(self, compares_leaves: bool = True):
        self._compares_leaves = compares_leaves
        # Replaced as one, so that threads which ask at once see a product beside its own factors.
        self._kept: _Kept | None = None

    def __call__(self, x: Tensor, y: Tensor, sources: tuple[Tensor, Tensor]) -> Tensor:
        """Return ``x @ y``, of which ``x`` and ``y`` are functions of ``sources`` alone."""
        leaves = [source for source in sources if source.is_leaf] if self._compares_leaves else []
        if not _can_be_kept(sources, leaves):
            return torch.bmm(x, y)
        kept = self._kept
        if kept is None or not kept.is_of(sources, leaves):
            kept = self._kept = _Kept(torch.bmm(x.detach(), y.detach()), sources, leaves)
        return _Product.apply(x, y, kept.product) if torch.is_grad_enabled() else kept.product


class _Kept:
    """A product, and what tells that nothing has changed since it was computed."""

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
    """Not what torch traces or transforms, for that is no number yet; not in inference mode, which
    leaves no trace of changes and no tensors to train with; not with forward-mode derivatives; not
    leaves on a GPU, where a comparison takes longer than a product."""
    x, y = sources
    if (is_traced(x, y) or torch.is_inference_mode_enabled() or x.is_inference()
            or y.is_inference() or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0):
        return False
    return not leaves or x.device.type == 'cpu'


class _Product(torch.autograd.Function):
    """The gradient of a product that is known already."""

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
