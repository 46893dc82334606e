"""Positions as rotations of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_ids, check_on, check_sides, check_strided
from graphattn.layers.position_table import PositionTable, angles


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
    check_strided('rotation', rotation)
    expected = (x.size(0), head_channels // 2, 2)
    if head_channels % 2 or rotation.shape != expected:
        raise ValueError(f"'rotation' must have shape {expected} for {x.size(0)} tokens and heads "
                         f"of an even size (got {tuple(rotation.shape)} and {head_channels})")
    check_on('rotation', rotation, x.device, 'the tokens')
