"""The choice for each head between its fitted pattern and clusters by content, by the loss of the
model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import nn

from graphattn.hugging_face import Fit, Profile, attached
from graphattn.patterns import Pattern
from graphattn.sources import HeadClusters

SHARP = 0.1  # error of a head along its pattern, above which clusters are tried


def with_clusters(model: nn.Module, chosen: Fit, profile: Profile,
                  loss: Callable[[nn.Module], float]) -> Fit:
    """Return a fit in which heads attend along clusters of no more edges than their pattern if this
    lowers the loss with only this head attached; heads with an error of at most 0.1 keep theirs."""
    for row in np.flatnonzero(chosen.error > SHARP):
        edges = chosen.density[row] * profile.keys[row]
        candidates = [number for number, name in enumerate(profile.patterns)
                      if 'clusters' in name and profile.pattern_edges[row, number] <= edges]
        if candidates:
            number = max(candidates, key=profile.pattern_edges[row].__getitem__)
            tried, before = profile.pattern(row, number), chosen.pattern(row)
            if _loss_of_head(model, profile, row, tried, loss) < _loss_of_head(
                    model, profile, row, before, loss):
                chosen = _replaced(chosen, profile, row, number)
    return chosen


def _loss_of_head(model: nn.Module, profile: Profile, row: int, along: Pattern | HeadClusters,
                  loss: Callable[[nn.Module], float]) -> float:
    """Return the loss of the model if only the head with index ``row`` attends along ``along``."""
    layer = profile.layers[profile.layer[row]]
    with attached(model, along, layers=[layer], heads=[int(profile.head[row])]):
        return loss(model)


def _replaced(chosen: Fit, profile: Profile, row: int, number: int) -> Fit:
    along = profile.pattern(row, number)
    patterns = [*chosen.patterns]
    patterns[row] = repr(along)
    measures = {'share': profile.pattern_share[row, number],
                'error': profile.pattern_error[row, number],
                'density': profile.pattern_edges[row, number] / profile.keys[row]}
    changed = {name: np.where(np.arange(len(patterns)) == row, value, getattr(chosen, name))
               for name, value in measures.items()}
    return replace(chosen, patterns=tuple(patterns), clusters={**chosen.clusters, row: along},
                   **changed)
