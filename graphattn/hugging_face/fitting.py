"""Choose a pattern for each head of a profiled model, within a budget of edges."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from graphattn._checks import check_kind, check_number
from graphattn.hugging_face.attaching import attached
from graphattn.hugging_face.profiling import Profile
from graphattn.patterns import Pattern, parse
from graphattn.sources import ContentClusterSource, HeadClusters, PatternSource
from graphattn.sources.content_clusters import source_of_each

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ['Fit', 'fit', 'fit_to_loss', 'head_costs']


@dataclass(frozen=True, eq=False)
class Fit:
    """The pattern that each head of a model attends along. Arrays have an entry for each head,
    layer by layer; the index of a head in them is its ``row``.

    Args:
        layers (tuple of str): Names of the attention modules.
        layer (ndarray): Index in ``layers`` of each head's module, int64 ``[heads]``.
        patterns (tuple of str): The expression of each head's pattern, or the name of its clusters,
            such as ``'8 keys of 32 clusters'``.
        share (ndarray): Fraction of each head's attention weight that lies on the edges of its
            pattern, ``[heads]``.
        error (ndarray): Squared error of each head's output along its pattern, relative to the
            squared norm of its output with full attention, ``[heads]``.
        density (ndarray): Fraction of the (query, key) pairs allowed by the model's masks that are
            edges, ``[heads]``.
        clusters (dict): The clusters of the heads that attend along clusters, by row.
    """

    layers: tuple[str, ...]
    layer: np.ndarray
    patterns: tuple[str, ...]
    share: np.ndarray
    error: np.ndarray
    density: np.ndarray
    clusters: Mapping[int, HeadClusters] = field(default_factory=dict)

    def along(self) -> dict[str, PatternSource | ContentClusterSource]:
        """Return a dict from the name of each layer to its source, the argument ``along`` of
        :func:`graphattn.hugging_face.attach`."""
        along = {}
        for number, name in enumerate(self.layers):
            rows = np.flatnonzero(self.layer == number).tolist()
            own = [self.clusters.get(row, self.patterns[row]) for row in rows]
            # Heads that share a graph are faster than heads with equal graphs.
            is_shared = len(set(own)) == 1 and not self.clusters.keys() & {*rows}
            along[name] = PatternSource(own[0]) if is_shared else source_of_each(own)
        return along

    def pattern(self, row: int) -> Pattern | HeadClusters:
        """Return the pattern or the clusters that the head with index ``row`` attends along."""
        return self.clusters[row] if row in self.clusters else parse(self.patterns[row])

    def as_table(self) -> list[dict[str, object]]:
        """Return a list with a dict for each head: its layer, number, pattern, share, error and
        density. Long expressions are shortened."""
        number = [int((self.layer[:row] == at).sum()) for row, at in enumerate(self.layer)]
        return [{'layer': self.layers[at], 'head': number[row],
                 'pattern': str(self.pattern(row)),
                 **{name: float(getattr(self, name)[row])
                    for name in ('share', 'error', 'density')}}
                for row, at in enumerate(self.layer)]

    def __repr__(self) -> str:
        return (f'Fit({len(self.layers)} layers, {len(self.layer)} heads, '
                f'density={self.density.mean():.2%}, share={self.share.mean():.1%}, '
                f'squared error={self.error.mean():.1%})')


def fit(profile: Profile, density: float, *, costs: Sequence[float] | None = None) -> Fit:
    r"""Choose a pattern for each head from the patterns of a profile, within a budget of edges.

    The chosen patterns minimise the errors of the heads' outputs, while the edges are at most the
    fraction ``density`` of all allowed (query, key) pairs:

    .. math::
        \min_{p_1, \dots, p_H} \sum_h c_h \, \epsilon_{h p_h} \quad \text{such that} \quad
        \sum_h e_{h p_h} \le \text{density} \sum_h k_h

    Here :math:`\epsilon_{hp}` is the error of head h along pattern p (``profile.pattern_error``),
    :math:`e_{hp}` is the mean number of edges of a query (``profile.pattern_edges``), :math:`k_h`
    is the mean number of allowed keys of a query, and :math:`c_h` is the weight of the error of
    head h in the sum, its number in ``costs``.

    The fit minimises errors of outputs instead of keeping attention weight on the edges. The two
    differ for a head that attends to all keys nearly equally. Along a few random keys, the output
    of such a head is about the same, although these keys have little of its attention weight.

    The search is greedy. Each head begins with its pattern of fewest edges. The next step is always
    the one that lowers the sum most for each added edge, as long as the budget allows it. The
    result is optimal up to one step.

    Args:
        profile (Profile): Measurements of the model along several patterns.
        density (float): The budget, in (0, 1].
        costs (sequence of float, optional): Weight of each head's error in the sum, such as the
            result of :func:`head_costs`; equal for all heads if omitted.

    Returns:
        Fit. ``attach(model, fit.along())`` uses it.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The profile has no patterns, ``density`` is out of range or below that of the
            smallest patterns, or ``costs`` has another length.

    Example:
        >>> import torch
        >>> from graphattn.hugging_face import attach, fit, profile
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> tokens = torch.randint(100, (2, 40))
        >>> chosen = fit(profile(bert, [tokens]), density=0.2)
        >>> bool(chosen.density.mean() <= 0.2)
        True
        >>> attach(bert, chosen.along())(tokens).last_hidden_state.shape
        torch.Size([2, 40, 32])
    """
    check_kind('profile', profile, Profile)
    check_number('density', density, 'positive and finite')
    if density > 1:
        raise ValueError(f"'density' must be at most 1 (got {density})")
    num_heads = len(profile.layer)
    if not profile.patterns:
        raise ValueError("'profile' must contain patterns to choose from; pass 'patterns' to "
                         "profile()")
    cost = np.ones(num_heads) if costs is None else np.asarray(costs, dtype=np.float64)
    if cost.shape != (num_heads,) or not (np.isfinite(cost) & (cost >= 0)).all():
        raise ValueError(f"'costs' must contain {num_heads} numbers of at least 0, one for each "
                         f"head of 'profile'")
    budget = density * profile.keys.sum()
    chosen = _within(budget, profile, cost)
    rows = np.arange(num_heads)
    along = [profile.pattern(row, at) for row, at in enumerate(chosen)]
    return Fit(profile.layers, profile.layer, tuple(map(repr, along)),
               profile.pattern_share[rows, chosen], profile.pattern_error[rows, chosen],
               profile.pattern_edges[rows, chosen] / profile.keys,
               {row: each for row, each in enumerate(along) if isinstance(each, HeadClusters)})


def _within(budget: float, profile: Profile, cost: np.ndarray) -> np.ndarray:
    # Greedy, along the convex hull of each head; `budget` is the sum over heads of mean edges.
    hulls = [_hull(edges, error) for edges, error in zip(profile.pattern_edges,
                                                         profile.pattern_error)]
    spent = sum(profile.pattern_edges[head, hull[0]] for head, hull in enumerate(hulls))
    if spent > budget:
        least, got = (edges / profile.keys.sum() for edges in (spent, budget))
        raise ValueError(f"'density' must be at least {least:.4f}, the density of the smallest "
                         f"patterns of 'profile' (got {got:.4f})")
    chosen, steps = [0] * len(hulls), []

    def offer(head: int) -> None:
        if chosen[head] + 1 < len(hulls[head]):
            now, then = hulls[head][chosen[head]:chosen[head] + 2]
            edges = profile.pattern_edges[head, then] - profile.pattern_edges[head, now]
            error = profile.pattern_error[head, then] - profile.pattern_error[head, now]
            heapq.heappush(steps, (cost[head] * error / edges, head, edges))

    for head in range(len(hulls)):
        offer(head)
    while steps:
        _, head, edges = heapq.heappop(steps)
        if spent + edges <= budget:
            spent += edges
            chosen[head] += 1
            offer(head)
    return np.array([hull[at] for hull, at in zip(hulls, chosen)])


def _hull(edges: np.ndarray, error: np.ndarray) -> list[int]:
    # Of the points (edges, error), those on the lower convex hull, with ascending edges.
    hull: list[int] = []
    for at in np.lexsort((error, edges)):
        if hull and error[at] >= error[hull[-1]]:
            continue
        while len(hull) > 1 and (
                (error[hull[-1]] - error[hull[-2]]) * (edges[at] - edges[hull[-1]])
                >= (error[at] - error[hull[-1]]) * (edges[hull[-1]] - edges[hull[-2]])):
            hull.pop()
        hull.append(int(at))
    return hull


# Losses ##############################################################################


Loss = Callable[['PreTrainedModel'], float]


def head_costs(model: PreTrainedModel, profile: Profile, loss: Loss) -> np.ndarray:
    """Measure how much the model's loss rises with the error of each head. One head at a time
    attends along its pattern of fewest edges, while all other heads keep full attention.

    Args:
        model (PreTrainedModel): The model.
        profile (Profile): Its profile.
        loss (Callable): A function ``loss(model)`` that returns the loss of a model on some data.
            It is called once for the model as given, and once for each head.

    Returns:
        ndarray ``[heads]``: The rise of the loss, at least 0, divided by the error of the head's
        output along this pattern.

    Raises:
        ValueError: ``profile`` is of another model.
    """
    check_kind('profile', profile, Profile)
    profile.check(model)
    dense, costs = loss(model), np.zeros(len(profile.layer))
    smallest = profile.pattern_edges.argmin(axis=1)
    for row, (layer, head, at) in enumerate(zip(profile.layer, profile.head, smallest)):
        with attached(model, profile.pattern(row, at), layers=[profile.layers[layer]],
                      heads=[int(head)]):
            rise = loss(model) - dense
        costs[row] = max(rise, 0.) / max(profile.pattern_error[row, at], 1e-9)
    return costs


def fit_to_loss(model: PreTrainedModel, profile: Profile, loss: Loss, at_most: float, *,
                costs: Sequence[float] | None = None, steps: int = 8) -> Fit:
    """Return the fit with the smallest density at which the model's loss is at most ``at_most``
    times its loss with full attention.

    Args:
        model (PreTrainedModel): The model.
        profile (Profile): Its profile.
        loss (Callable): A function ``loss(model)`` that returns the loss of a model on some data.
        at_most (float): Largest loss relative to the loss with full attention, such as 1.01.
        costs (sequence of float, optional): As in :func:`fit`.
        steps (int): Number of densities to try, by bisection on a logarithmic scale.

    Raises:
        ValueError: ``profile`` is of another model, ``at_most`` is not above 1, no patterns of
            ``profile`` reach it, or the loss is not finite.
    """
    check_kind('profile', profile, Profile)
    profile.check(model)
    check_number('at_most', at_most, 'positive and finite')
    if at_most <= 1:
        raise ValueError(f"'at_most' must be above 1 (got {at_most})")
    dense = loss(model)
    if not math.isfinite(dense):
        raise ValueError(f"'loss' must return a finite number with full attention (got {dense})")
    limit = at_most * dense

    def attempt(density: float) -> Fit | None:
        """Return the fit, or ``None`` if the loss is above the limit."""
        found = fit(profile, density, costs=costs)
        with attached(model, found.along()):
            return found if loss(model) <= limit else None

    best = attempt(1.)
    if best is None:
        raise ValueError(f"'at_most' must be larger, because no patterns of 'profile' reach this "
                         f"limit (got {at_most}); add denser patterns to the profile, such as "
                         f"Full()")
    low, high = np.log(profile.pattern_edges.min(axis=1).sum() / profile.keys.sum()), 0.
    for _ in range(steps):
        middle = (low + high) / 2
        found = attempt(float(np.exp(middle)))
        low, high = (middle, high) if found is None else (low, middle)
        best = best if found is None else found
    return best
