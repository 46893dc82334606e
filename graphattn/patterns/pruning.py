"""Parts of other patterns: the leading part of a larger graph, and the variants of SparseBERT's
Sec. 3."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphattn._checks import (
    check_floating,
    check_has_numbers,
    check_kind,
    check_number,
    check_sides,
)
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.patterns.base import Difference, Pattern, RowPattern, as_generator
from graphattn.patterns.distances import Full, SlidingWindow
from graphattn.patterns.layouts import crop_edges
from graphattn.patterns.mask import Mask
from graphattn.patterns.random_keys import RandomPairs


@dataclass(frozen=True, repr=False)
class Cropped(RowPattern):
    """Build the graph of ``size`` tokens, and keep the edges among the first tokens.

    A random pattern draws edges for all ``size`` tokens. With the same seed, the graph of a shorter
    sequence is therefore a part of the graph of a longer one, and shorter sequences have fewer
    random keys and global tokens. Time and memory are those of the large graph.

    Args:
        pattern (Pattern): The pattern to crop.
        size (int): Number of tokens of the large graph.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``size`` is below 1, or, when built, below the number of tokens.

    Source: the code of Feng et al., "Diffuser" (2023), which crops one graph of 4,096 tokens.

    Example:
        >>> from graphattn.patterns import Cropped, RandomKeys
        >>> Cropped(RandomKeys(64), 4096).build(1024, seed=0)
        BipartiteGraph(num_queries=1024, num_keys=1024, num_edges=16583, density=1.6%)
    """

    pattern: Pattern
    size: int

    def __post_init__(self):
        check_kind('pattern', self.pattern, Pattern)
        self._require_int('size', at_least=1)

    @property
    def is_random(self) -> bool:
        return self.pattern.is_random

    def rows(self, queries: range, num_queries: int, num_keys: int,
             generator: torch.Generator | None) -> Tensor:
        length = max(num_queries, num_keys)
        if length > self.size:
            raise ValueError(f"'length' must be at most {self.size}, the number of tokens of the "
                             f"cropped graph (got {length})")
        edges = self.pattern.rows(queries, self.size, self.size, generator)
        return crop_edges(edges, queries, num_keys)


def without_diagonal(pattern: Pattern) -> Difference:
    """Return ``pattern`` without self-loops: "no diag-attention" (SparseBERT, Sec. 3.3.3)."""
    check_kind('pattern', pattern, Pattern)
    return pattern - SlidingWindow(0)


def randomly_dropped(count: int | None = None) -> Difference:
    """Return the pattern of all pairs except ``count`` random pairs: "randomly dropped"
    (SparseBERT, Sec. 3.3.3). The default of ``count`` is the number of queries, the size of the
    diagonal."""
    return Full() - RandomPairs(count)


def prune(probability: Tensor, sparsity: float) -> tuple[Mask, ...]:
    r"""Remove the smallest :math:`\mathrm{round}(\rho \, n^2)` entries of each head.

    Among equal entries, later ones in row-major order are removed first.

    Args:
        probability (Tensor): floating ``[heads, n, n]``, the importance of each pair, such as
            :meth:`graphattn.sources.LearnedMaskSource.probability`.
        sparsity (float): :math:`\rho` in [0, 1].

    Returns:
        tuple of Mask, one for each head.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``probability`` has another shape or contains NaN, or ``sparsity`` is not in [0,
            1].

    Source: SparseBERT, Sec. 3.4.

    Example:
        >>> import torch
        >>> from graphattn.patterns import prune
        >>> mask, = prune(torch.tensor([[[0.9, 0.1], [0.3, 0.8]]]), 0.5)
        >>> mask.build(2).to_mask().int()
        tensor([[1, 0],
                [0, 1]], dtype=torch.int32)
    """
    check_floating(probability=probability)
    check_has_numbers('probability', probability)
    if probability.dim() != 3 or probability.size(1) != probability.size(2):
        raise ValueError(f"'probability' must have shape [heads, n, n] (got shape "
                         f"{tuple(probability.shape)})")
    if bool(probability.isnan().any()):
        raise ValueError("'probability' must not contain NaN (got nan)")
    check_number('sparsity', sparsity, 'in [0, 1]')
    layout = FreeLayout(probability.size(1))
    num_kept = layout.num_values - round(sparsity * layout.num_values)
    entry = probability.detach().cpu().flatten(1)
    kept = entry.argsort(dim=1, descending=True, stable=True)[:, :num_kept]
    is_kept = torch.zeros_like(entry, dtype=torch.bool).scatter_(1, kept, True)
    return tuple(Mask(layout, head) for head in is_kept)


def prune_at_random(heads: int, size: int, sparsity: float,
                    seed: int | torch.Generator | None) -> tuple[Mask, ...]:
    r"""Remove :math:`\mathrm{round}(\rho \, n^2)` random entries of each head.

    Args:
        heads (int): Number of heads, which are drawn independently.
        size (int): Number n of tokens of the masks.
        sparsity (float): :math:`\rho` in [0, 1].
        seed (int or torch.Generator): The same seed returns the same masks, as in
            :meth:`Pattern.build`.

    Returns:
        tuple of Mask, one for each head.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``sparsity`` is not in [0, 1] or a size is out of range.

    Source: SparseBERT, Sec. 3.4, "a random baseline that randomly removes the same number".
    """
    check_sides(heads=heads, size=size)
    check_number('sparsity', sparsity, 'in [0, 1]')
    cpu = torch.device('cpu')  # masks are converted to text on the CPU
    importance = torch.rand(heads, size, size, dtype=torch.double, device=cpu,
                            generator=as_generator(seed, cpu))
    return prune(importance, sparsity)
