"""The attention of Reformer, a baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.baselines.base import Baseline
from graphattn.extension import check_sides

# the logit of a token for its own key, so small that it matters only without other keys
LAST_RESORT = -5e4


class Reformer(Baseline):
    r"""Attention between tokens that a random hash sorts into the same or adjacent chunks.

    Each key is the normalised query of its token, :math:`K = Q / \lVert Q \rVert`. In round r, the
    hash of a token is the nearest of the directions :math:`[R_r; -R_r]` of a random matrix R.
    Tokens are sorted by their hash and cut into chunks. A token attends to its own chunk and the
    chunk before; the first chunk attends to the last. A token attends to itself only if it has no
    other key.

    The results of all rounds are averaged, each weighted by its part of the sum of exponentials
    (Eq. 4 to 6). So a pair counts once for each round in which its tokens share a chunk, as in the
    code that SBM-Transformer uses.

    Args:
        channels, heads, head_channels: As in :class:`Baseline`.
        rounds (int): Number of hashes, drawn again in each pass.
        chunk (int): Number of tokens of a chunk. The number of hash values equals the number of
            chunks.

    Source: Kitaev et al., "Reformer: The efficient transformer" (2020), Sec. 2.
    """

    is_random = True

    def __init__(self, channels: int, heads: int, *, rounds: int = 2, chunk: int = 64,
                 head_channels: int | None = None):
        super().__init__(channels, heads, head_channels=head_channels)
        check_sides(rounds=rounds, chunk=chunk)
        self.rounds, self.chunk = rounds, chunk
        self.lin_key = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        length = query.size(2)
        order = self._hash(query.detach(), seed).argsort(dim=-1, stable=True)
        position = F.pad(order, (0, -length % self.chunk), value=-1).unflatten(-1, (-1, self.chunk))
        seen = torch.cat([position.roll(1, dims=-2), position], dim=-1)
        key = F.normalize(key, dim=-1) * self.head_channels**-0.5
        logit = _at(query, position) @ _at(key, seen).mT
        is_self = position.unsqueeze(-1) == seen.unsqueeze(-2)
        logit = logit.masked_fill(is_self, LAST_RESORT)
        logit = logit.masked_fill((seen < 0).unsqueeze(-2), -torch.inf)
        out = logit.softmax(dim=-1) @ _at(value, seen)
        # Return from the order [..., chunk, place] to the order of tokens, then combine the rounds.
        place = order.argsort(dim=-1)
        total = logit.logsumexp(dim=-1).flatten(-2).gather(-1, place)
        out = out.flatten(-3, -2).take_along_dim(place.unsqueeze(-1), dim=-2)
        return (total.softmax(dim=2).unsqueeze(-1) * out).sum(dim=2)

    def _hash(self, query: Tensor, seed: int) -> Tensor:
        """Return the hash of each token in each round, int64
        ``[num_sequences, heads, rounds, length]``."""
        num_directions = -(-query.size(2) // (2 * self.chunk))
        generator = torch.Generator(query.device).manual_seed(seed)
        directions = torch.randn(self.rounds, self.head_channels, num_directions,
                                 generator=generator, device=query.device, dtype=torch.float)
        cosine = query.unsqueeze(2) @ directions.to(query.dtype)
        return torch.cat([cosine, -cosine], dim=-1).argmax(dim=-1)


def _at(x: Tensor, position: Tensor) -> Tensor:
    """Return the rows of ``x`` at some positions, ``[*position.shape, channels]``."""
    index = position.clamp(min=0).flatten(2).unsqueeze(-1)
    return x.take_along_dim(index, dim=2).unflatten(2, position.shape[2:])
