"""A graph together with the model that its edges were drawn from."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from graphattn._tensors import constant_of
from graphattn.functional.probability import probability_of_edges
from graphattn.graphs.as_tensors import register_as_tensors
from graphattn.graphs.graph import BipartiteGraph
from graphattn.samplers import FactorModel


class SampledGraph(BipartiteGraph):
    """Graph whose edges were drawn in training, with the model that they were drawn from."""

    # The probabilities are computed when edge_prob is first read. Most losses never read them,
    # because they need only their gradient, which edge_gate passes on.
    def __init__(self, edges: BipartiteGraph, model: FactorModel,
                 fixed: BipartiteGraph | None = None):
        vars(self).update(vars(edges))
        self.model, self.fixed = model, fixed
        # Autograd saves these edges. If it saved self, the gate would close a reference cycle.
        self._edges = edges
        one = torch.ones((), dtype=model.dtype, device=model.device).expand(edges.num_edges)
        gate = self._probability(known=one)
        # Kernels that cannot compute the gradient alone return probabilities. The others return
        # ones, expanded from a single value.
        is_one = fixed is None and gate.stride(0) == 0
        self._edge_gate = gate if is_one else constant_of(gate, 1.)

    @property
    def csc(self) -> tuple[Tensor, Tensor, Tensor]:
        # the gradient of the probabilities needs this order too
        self._csc = self._edges.csc
        return self._csc

    @cached_property
    def edge_prob(self) -> Tensor:
        """The probability with which each edge was drawn, ``[num_edges]``."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._probability()

    @property
    def edge_gate(self) -> Tensor:
        """Ones ``[num_edges]`` that pass their gradient to :attr:`edge_prob`."""
        return self._edge_gate

    def with_fixed(self, edges: BipartiteGraph) -> SampledGraph:
        fixed = edges if self.fixed is None else self.fixed | edges
        return SampledGraph(self._edges | edges, self.model, fixed)

    def _probability(self, **known: Tensor) -> Tensor:
        edge_prob = probability_of_edges(self.model, self._edges, **known)
        if self.fixed is None:
            return edge_prob
        return edge_prob.masked_fill(self._edges.isin(self.fixed), 1.)

    __reduce_ex__ = BipartiteGraph._reduce_to_plain


register_as_tensors(SampledGraph)
