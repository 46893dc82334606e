"""Graphs of heads that are learned together with the model, beginning with the edges of a fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.surgery.tokens import PADDING
from graphattn.hugging_face import Fit, attach, detach
from graphattn.patterns import Causal, EdgeList, Full, Mask, parse
from graphattn.sources import LearnedMaskSource, PatternSource

MAX_TOKENS = 1024  # whose pairs have a logit in each head
ON = 0.95  # first probability of the fit's edges
SURE = 20.  # logit of a token's edge to itself, and, negative, of pairs that are not allowed


def check_length(length: int) -> None:
    """Raise an error if sequences of this length have too many pairs of tokens to learn graphs."""
    if length > MAX_TOKENS:
        raise ValueError(f"'length' must be at most {MAX_TOKENS} to learn graphs, because each "
                         f"pair of positions has a logit (got {length}); use a smaller one")


class LearnedGraphs:
    """A learned mask for each head of a model. The constructor attaches the model to the masks.

    A mask has a probability for each pair of positions. At first, the probability is 0.95 for the
    edges of a fit, and equal for all other pairs, so that the expected number of edges is the
    number of edges of the fit. Every token attends to itself with probability 1.

    Args:
        model (PreTrainedModel): A dense model.
        chosen (Fit): The fitted pattern of each head.
        tokens (Tensor): The sequences to train on, int64 ``[sequences, length]`` with -1 for
            padding, of at most 1,024 tokens. In densities, a pair of positions counts once for each
            sequence that is long enough to have it.
        is_causal (bool): Whether tokens attend only to themselves and to earlier tokens.

    Raises:
        ValueError: The sequences are too long.
    """

    def __init__(self, model: nn.Module, chosen: Fit, tokens: Tensor, is_causal: bool):
        length = tokens.size(1)
        check_length(length)
        self.model, self.length = model, length
        allowed = (Causal() if is_causal else Full()).build(length).to_mask()
        later = torch.maximum(*torch.meshgrid(*[torch.arange(length)] * 2, indexing='ij'))
        is_there = (tokens != PADDING).double().mean(0)
        self.allowed, self.count = allowed.flatten(), (allowed * is_there[later]).flatten()
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
        """Return the fraction of all pairs of tokens in the sequences that are edges.

        Args:
            on: For each layer, whether each pair is an edge, or its probability,
                ``[heads, pairs]``.
        """
        return sum((values * self.count.to(values)).sum() for values in on) / (
            sum(map(len, on)) * self.count.sum())

    @property
    def logits(self) -> list[nn.Parameter]:
        return [source.logit for source in self.sources.values()]

    def penalty(self) -> Tensor:
        """Return by which fraction the expected number of edges exceeds the number of edges of the
        fit, or 0 if it does not."""
        expected = self._density([logit.sigmoid() for logit in self.logits])
        return F.relu(expected / self.budget - 1)

    @torch.no_grad()
    def freeze(self, chosen: Fit) -> Fit:
        """Attach the model to the most probable edges, at most as many as the fit has, and return a
        fit with these edges as patterns.

        Args:
            chosen: The fit whose patterns are replaced.

        Returns:
            Fit: The most probable edges of each head. Shares and errors are NaN, because they are
                not measured.
        """
        least, along, density = self._least(), {}, []
        for name, source in self.sources.items():
            source.logit.sub_(least)
            is_on = (source.logit > 0).double()
            density += [float(self._density([head[None]])) for head in is_on]
            along[name] = PatternSource([self._listed(mask) for mask in source.freeze()])
        attach(detach(self.model), along)
        patterns = [repr(pattern) for source in along.values() for pattern in source.patterns]
        unknown = np.full(len(patterns), np.nan)
        return replace(chosen, patterns=tuple(patterns), share=unknown, error=unknown,
                       density=np.array(density))

    def _least(self) -> float:
        """Return a logit such that the pairs with a larger logit are at most as many as the edges
        of the fit."""
        logit = torch.cat([logit[:, self.allowed].flatten() for logit in self.logits])
        logit, order = logit.sort(descending=True)
        count = self.count[self.allowed].repeat(len(logit) // int(self.allowed.sum()))[order]
        fits = count.cumsum(0) <= float(self.budget) * count.sum() * (1 + 1e-9)
        return float(logit[~fits][0]) if not fits.all() else -math.inf

    def _listed(self, mask: Mask) -> EdgeList:
        graph = mask.build(self.length)
        edges = torch.stack([graph.key, graph.query]).long()
        return EdgeList(self.length, edges[:, self.allowed[edges[1] * self.length + edges[0]]])


def _logit(probability: float) -> Tensor:
    return torch.logit(torch.tensor(float(probability)))
