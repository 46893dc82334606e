"""A graph beside the model that it was drawn from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphattn.functional.probability import probability_of_edges
from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.edge_prob import constant_of
from graphattn.graphs.graph import BipartiteGraph
from graphattn.samplers import FactorModel


class SampledGraph(BipartiteGraph):
    """Edges drawn in training, the model that they were drawn from, and edges that are always
    present.

    Probabilities are computed when :attr:`edge_prob` is first read: a loss needs their gradient
    alone, which :attr:`edge_gate` carries. Copies, and what methods make of the graph, are plain
    graphs of the probabilities.

    Args:
        edges (BipartiteGraph): All edges, of the segments of ``model``.
        model (FactorModel): Gives the probabilities.
        fixed (BipartiteGraph, optional): Edges of probability 1.

    Attributes:
        model, fixed: As given.
    """

    def __init__(self, edges: BipartiteGraph, model: FactorModel,
                 fixed: BipartiteGraph | None = None):
        vars(self).update(vars(edges))
        self.model, self.fixed = model, fixed
        self._edges = edges  # which autograd keeps: this graph would keep itself alive by the gate
        one = torch.ones((), dtype=model.dtype, device=edges.device).expand(edges.num_edges)
        gate = self._probability(known=one)
        # Kernels that cannot form gradients alone give probabilities, not what is known.
        is_one = fixed is None and gate.stride(0) == 0
        self._edge_gate = gate if is_one else constant_of(gate, 1.)

    @cached_property
    def edge_prob(self) -> Tensor:
        """The probability with which each edge was drawn, ``[num_edges]``."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._probability()

    @property
    def edge_gate(self) -> Tensor:
        """Ones ``[num_edges]`` that carry the gradient of :attr:`edge_prob`."""
        return self._edge_gate

    def _probability(self, **known: Tensor) -> Tensor:
        edge_prob = probability_of_edges(self.model, self._edges, **known)
        if self.fixed is None:
            return edge_prob
        return edge_prob.masked_fill(self._edges.isin(self.fixed), 1.)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        no_edges = torch.empty(2, 0, dtype=torch.long)
        return BipartiteGraph, (no_edges, 0), self.__getstate__()


register_as_tensors(SampledGraph)
