"""Tables of positions, and positions as rotations of queries and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphattn._checks import check_floating, check_ids, check_on, check_sides
from graphattn._explained import Explained


class PositionTable(nn.Module, Explained, ABC):
    """Base class of modules that hold a table of fixed values for each position."""

    # Computed again, in float64, when the module moves to another device or dtype: to_empty fills
    # the table, and a cast to a wider dtype does not start from rounded values.
    def __init__(self, num_embeddings: int, channels: int):
        super().__init__()
        self.num_embeddings, self.channels = num_embeddings, channels
        table = self.numbers().to(torch.get_default_dtype()).contiguous()
        self.register_buffer('table', table, persistent=False)

    @abstractmethod
    def numbers(self) -> Tensor:
        """Return the table, float64 ``[num_embeddings, ...]``."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PositionTable:
        before = self.table
        super()._apply(fn, recurse)
        if self.table is not before:
            self.table.copy_(self.numbers())
        return self


def angles(num_embeddings: int, channels: int) -> Tensor:
    """Return the angle :math:`i / 10000^{2j / C}` of each position i and even channel 2j,
    float64."""
    rate = 10_000 ** (-torch.arange(0, channels, 2, dtype=torch.double) / channels)
    return torch.outer(torch.arange(num_embeddings), rate)


class RotaryPositions(PositionTable):
    r"""Module that returns the cosines and sines by which :func:`rotate` rotates pairs of channels
    of queries and keys. At position i, a query q becomes

    .. math::
        \begin{pmatrix} q'_{2j} \\ q'_{2j + 1} \end{pmatrix} =
        \begin{pmatrix} \cos i \theta_j & -\sin i \theta_j \\
        \sin i \theta_j & \cos i \theta_j \end{pmatrix}
        \begin{pmatrix} q_{2j} \\ q_{2j + 1} \end{pmatrix}, \qquad
        \theta_j = 10000^{-2j / C}.

    So the product of a query and a key depends only on their distance (Su et al., 2021, Eq. 14 to
    16).

    Args:
        num_embeddings (int): Number of positions.
        channels (int): Size of a head.

    Raises:
        ValueError: A size is not positive, or ``channels`` is odd.
    """

    def __init__(self, num_embeddings: int, channels: int):
        check_sides(num_embeddings=num_embeddings, channels=channels)
        if channels % 2:
            raise ValueError(f"'channels' must be even, because rotary positions rotate pairs of "
                             f"channels (got {channels})")
        super().__init__(num_embeddings, channels)

    def numbers(self) -> Tensor:
        """Return the cosine and sine of each angle, float64 ``[num_embeddings, channels / 2,
        2]``."""
        angle = angles(self.num_embeddings, self.channels)
        return torch.stack([angle.cos(), angle.sin()], dim=2)

    def forward(self, position: Tensor) -> Tensor:
        """Return the cosines and sines for each ``position``, ``[num_tokens, channels / 2, 2]``.
        Positions are int64 ``[num_tokens]``."""
        check_ids('position', position, self.num_embeddings, self.table.device)
        return self.table[position]


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Return queries or keys rotated by ``rotation``, a result of :class:`RotaryPositions`."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation.unsqueeze(1).unbind(-1)
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def check_rotation(rotation: Tensor, x: Tensor, head_channels: int) -> None:
    check_floating(rotation=rotation)
    expected = (x.size(0), head_channels // 2, 2)
    if head_channels % 2 or rotation.shape != expected:
        raise ValueError(f"'rotation' must have shape {expected} for {x.size(0)} tokens and heads "
                         f"of an even size (got {tuple(rotation.shape)} and {head_channels})")
    check_on('rotation', rotation, x.device, 'the tokens')
