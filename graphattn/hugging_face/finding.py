"""Find edges for each head where it has the most attention weight, in passes over all inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from graphattn.hugging_face.attending import Attending, OneSequence
from graphattn.hugging_face.own_clusters import Centroids, ClusterPoints, ClusterSums, counts_of
from graphattn.hugging_face.own_patterns import Candidate, OwnEdges, OwnSums

__all__ = ['find']


class Collector(Protocol):
    """Object that collects the queries, keys and attention weights of a layer, input by input. An
    input is one sequence."""

    def begin(self, query: Tensor, key: Tensor) -> None:
        """Begin an input with its queries and keys, both ``[heads, length, channels]``."""

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Add the attention weights ``[heads, rows, length]`` of some queries of the input.
        ``rows`` are the indices of these queries, int64 ``[rows]``."""


@dataclass
class Finding(Attending):
    """Attention that passes its queries, keys and weights to collectors.

    Args:
        collectors (dict): For each layer name, a pair of sequences of collectors: one for inputs
            with an even index, one for inputs with an odd index.
        num_inputs (Counter): Number of inputs of each layer so far.
    """

    collectors: dict[str, tuple[Sequence[Collector], Sequence[Collector]]]
    num_inputs: Counter[str] = field(default_factory=Counter)

    def _see(self, name: str, one: OneSequence, value: Tensor, is_special: Tensor | None) -> Tensor:
        out, collectors = torch.empty_like(value), self.collectors[name][self.num_inputs[name] % 2]
        for each in collectors:
            each.begin(one.query, one.key)
        for rows in one.blocks():
            weight = one.weights(rows)
            out[:, rows] = weight @ value
            for each in collectors:
                each.add(rows, weight)
        self.num_inputs[name] += 1
        return out


class _LayerSums:
    """Sums of the attention weights of one layer, from which the edges of each head are chosen.
    There are separate sums for inputs with an even index and for inputs with an odd index.

    Args:
        candidates (sequence): Patterns and other edges that a fit chooses from.
        centroids (sequence of dict): Three dicts from the number of clusters to the centroids:
            those found on even inputs, on odd inputs, and on all inputs. Empty if no candidate has
            clusters.
    """

    def __init__(self, candidates: Sequence[Candidate], centroids: Sequence[dict[int, Centroids]]):
        self.own = OwnSums(candidates), OwnSums(candidates)
        self.clusters = [*map(ClusterSums, centroids)]

    @property
    def collectors(self) -> tuple[list[Collector], list[Collector]]:
        """Return the collectors for inputs with an even index, and those for inputs with an odd
        index."""
        even, odd = ([own] for own in self.own)
        if self.clusters:
            of_even, of_odd, of_all = self.clusters
            even, odd = [*even, of_even, of_all], [*odd, of_odd, of_all]
        return even, odd

    def edges(self, positions: int) -> tuple[OwnEdges, OwnEdges, OwnEdges]:
        """Return the edges that were found on inputs with an even index, on inputs with an odd
        index, and on all inputs. If there is only one input, the edges of even inputs replace those
        of odd ones. The edges list the keys of at least ``positions`` positions."""
        even, odd = self.own
        length = max(even.length, odd.length, positions)
        of_even = even.edges(length)
        of_odd = of_even if odd.is_empty else odd.edges(length)
        found = of_even, of_odd, even.with_sums(odd).edges(length)
        if not self.clusters:
            return found
        clusters = [(self.clusters[0] if each.is_empty else each).clusters()
                    for each in self.clusters]
        return tuple(replace(edges, clusters=each) for edges, each in zip(found, clusters))


def find(names: Sequence[str], candidates: Sequence[Candidate], run: Callable[[Finding], None],
         positions: int, seed: int) -> dict[str, tuple[OwnEdges, OwnEdges, OwnEdges]]:
    """Find the edges on which the heads of a model have the most attention weight.

    Args:
        names (sequence of str): Names of the layers.
        candidates (sequence): Patterns and other edges that a fit chooses from.
        run (Callable): Function that runs the model on all inputs with the given attention.
        positions (int): The edges list the keys of at least so many positions.
        seed (int): Seed of the centroids of clusters.

    Returns:
        dict: For each layer name, three objects with the edges of its heads: those to measure on
        inputs with an even index, found on odd ones; those to measure on inputs with an odd index,
        found on even ones; and those found on all inputs.
    """
    centroids = _find_centroids(names, counts_of(candidates), run, seed)
    layers = {name: _LayerSums(candidates, centroids.get(name, ())) for name in names}
    run(Finding({name: layer.collectors for name, layer in layers.items()}))
    found = {name: layer.edges(positions) for name, layer in layers.items()
             if not layer.own[0].is_empty}
    return {name: (odd, even, every) for name, (even, odd, every) in found.items()}


def _find_centroids(names: Sequence[str], counts: Sequence[int], run: Callable[[Finding], None],
                    seed: int) -> dict[str, list[dict[int, Centroids]]]:
    """Return, for each layer name, the centroids that k-means finds on inputs with an even index,
    on inputs with an odd index, and on all inputs. Each of the three is a dict from the number of
    clusters, such as 32, to the centroids. Without ``counts``, the numbers of clusters to find, the
    result is empty."""
    if not counts:
        return {}
    points = {name: tuple(ClusterPoints(counts, seed) for _ in range(2)) for name in names}
    run(Finding({name: tuple([half] for half in halves) for name, halves in points.items()}))
    return {name: [even.centroids(), odd.centroids(), even.centroids(odd)]
            for name, (even, odd) in points.items() if not even.is_empty}
