"""Find the edges that each head has for itself, in passes over all inputs."""

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
    """Something that tokens and weights of inputs are added to."""

    def begin(self, query: Tensor, key: Tensor) -> None:
        """Begin an input, with its tokens ``[heads, length, channels]``."""

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Add the weights ``[heads, rows, length]`` of some rows of the input."""


@dataclass
class Finding(Attending):
    """Attention whose tokens and weights are collected.

    Args:
        collectors (dict): By the name of a layer, what its even and its odd inputs are added to.
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
    """Sums of the even and of the odd inputs of a layer.

    Args:
        candidates (sequence): The candidates of a fit.
        centroids (sequence of dict): Those of even inputs, of odd ones and of all; empty if no
            clusters are needed.
    """

    def __init__(self, candidates: Sequence[Candidate], centroids: Sequence[dict[int, Centroids]]):
        self.own = OwnSums(candidates), OwnSums(candidates)
        self.clusters = [*map(ClusterSums, centroids)]

    @property
    def collectors(self) -> tuple[list[Collector], list[Collector]]:
        """Return what even and odd inputs are added to."""
        even, odd = ([own] for own in self.own)
        if self.clusters:
            of_even, of_odd, of_all = self.clusters
            even, odd = [*even, of_even, of_all], [*odd, of_odd, of_all]
        return even, odd

    def edges(self, positions: int) -> tuple[OwnEdges, OwnEdges, OwnEdges]:
        """Return the edges of even inputs, of odd ones and of all; those of even ones in place of
        odd ones if there are none."""
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
    """Return edges by the name of a layer: those to measure on even inputs, which are of odd ones;
    those to measure on odd inputs; and those of all.

    Args:
        names (sequence of str): Names of the layers.
        candidates (sequence): The candidates of a fit.
        run (Callable): Runs the model on all inputs.
        positions (int): Least number of positions of own keys.
        seed (int): Seed of centroids.
    """
    centroids = _find_centroids(names, counts_of(candidates), run, seed)
    layers = {name: _LayerSums(candidates, centroids.get(name, ())) for name in names}
    run(Finding({name: layer.collectors for name, layer in layers.items()}))
    found = {name: layer.edges(positions) for name, layer in layers.items()
             if not layer.own[0].is_empty}
    return {name: (odd, even, every) for name, (even, odd, every) in found.items()}


def _find_centroids(names: Sequence[str], counts: Sequence[int], run: Callable[[Finding], None],
                    seed: int) -> dict[str, list[dict[int, Centroids]]]:
    """Return by the name of a layer the centroids of even inputs, of odd ones and of all; nothing
    if no clusters are needed."""
    if not counts:
        return {}
    points = {name: tuple(ClusterPoints(counts, seed) for _ in range(2)) for name in names}
    run(Finding({name: tuple([half] for half in halves) for name, halves in points.items()}))
    return {name: [even.centroids(), odd.centroids(), even.centroids(odd)]
            for name, (even, odd) in points.items() if not even.is_empty}
