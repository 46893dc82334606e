"""Graphs of heads that are learned with the model, from those of a fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphattn.hugging_face import Fit, attach, detach
from graphattn.patterns import Causal, EdgeList, Mask, parse
from graphattn.sources import LearnedMaskSource, PatternSource

MAX_TOKENS = 1024  # whose pairs have a logit in each head
ON = 0.95  # first probability of the fit's edges
SURE = 20.  # logit of a token's edge to itself, and, negative, of pairs that are not allowed


def check_length(length: int) -> None:
    """Raise if graphs of this length have too many pairs to be learned."""
    if length > MAX_TOKENS:
        raise ValueError(f"'length' must be at most {MAX_TOKENS} to learn graphs, because each "
                         f"pair of positions has a logit (got {length}); use a smaller one")


class LearnedGraphs:
    """A mask of each head of a model that is learned with it.

    Each pair of positions has a probability. At first it is 0.95 for the edges of a fit; that of
    the others is such that the expected number of edges is the fit's. Tokens keep their edge to
    themselves.

    Args:
        model (PreTrainedModel): A model that is not attached; it is attached to the masks.
        chosen (Fit): A fit of the model.
        length (int): Number of tokens of the longest sequence, at most 1,024.
        is_causal (bool): Whether no token attends to a later one.

    Raises:
        ValueError: ``length`` is too large.
    """

    def __init__(self, model: nn.Module, chosen: Fit, length: int, is_causal: bool):
        check_length(length)
        self.model, self.length, self.is_causal = model, length, is_causal
        self.allowed = (Causal().build(length).to_mask() if is_causal else torch.ones(
            length, length, dtype=torch.bool)).flatten()
        masks = {name: torch.stack([self._mask(pattern) for pattern, at in zip(
            chosen.patterns, chosen.layer) if at == number])
            for number, name in enumerate(chosen.layers)}
        attach(model, {name: LearnedMaskSource(len(mask), length, mode='dam_unstructured')
                       for name, mask in masks.items()})
        self.sources = {name: model.get_submodule(name).graph_source for name in masks}
        self.budget = self._density([mask.double() for mask in masks.values()])
        off = (1 - ON) * self.budget / (1 - self.budget) if self.budget < 1 else ON
        itself = torch.eye(length, dtype=torch.bool).flatten()
        with torch.no_grad():
            for name, mask in masks.items():
                logit = torch.where(mask, _logit(ON), _logit(off)).masked_fill(itself, SURE)
                self.sources[name].logit.copy_(logit.masked_fill(~self.allowed, -SURE))

    def _mask(self, pattern: str) -> Tensor:
        graph = parse(pattern).build(self.length, seed=0, crop=True)
        return graph.to_mask().flatten() & self.allowed

    def _density(self, on: list[Tensor]) -> Tensor:
        """Return the share of the allowed pairs, of values ``[heads, pairs]`` of each layer."""
        pairs = sum(map(len, on)) * self.allowed.sum()
        return sum(values[:, self.allowed].sum() for values in on) / pairs

    @property
    def logits(self) -> list[nn.Parameter]:
        return [source.logit for source in self.sources.values()]

    def penalty(self) -> Tensor:
        """Return by how much the expected number of edges exceeds the fit's, over it."""
        expected = self._density([logit.sigmoid() for logit in self.logits])
        return F.relu(expected / self.budget - 1)

    @torch.no_grad()
    def freeze(self, chosen: Fit) -> Fit:
        """Attach the model to the most probable edges, no more than the fit's, and return these,
        without the shares and errors that nobody has measured."""
        allowed = torch.cat([logit[:, self.allowed].flatten() for logit in self.logits])
        most = math.floor(float(self.budget) * allowed.numel() + 1e-6)
        least = float(allowed.kthvalue(allowed.numel() - most).values) if (
            most < allowed.numel()) else -math.inf
        along = {}
        for name, source in self.sources.items():
            source.logit.sub_(least)
            along[name] = PatternSource([self._listed(mask) for mask in source.freeze()])
        attach(detach(self.model), along)
        patterns = [pattern for source in along.values() for pattern in source.patterns]
        unknown = np.full(len(patterns), np.nan)
        edges = np.array([pattern.build(self.length).num_edges for pattern in patterns])
        return replace(chosen, patterns=tuple(map(repr, patterns)), share=unknown, error=unknown,
                       density=edges / int(self.allowed.sum()))

    def _listed(self, mask: Mask) -> EdgeList:
        graph = mask.build(self.length)
        edges = torch.stack([graph.key, graph.query]).long()
        return EdgeList(self.length, edges[:, self.allowed[edges[1] * self.length + edges[0]]])


def _logit(probability: float) -> Tensor:
    return torch.logit(torch.tensor(float(probability)))
