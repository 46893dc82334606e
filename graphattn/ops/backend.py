"""The interface of backends: their declared abilities, and the terms of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class LogitTerms(NamedTuple):
    """Terms that edges add to an attention, and that turn dot products into weights.

    A new term is a field here, an argument that :mod:`graphattn.functional.checks` knows, a line of
    :mod:`graphattn.ops.edge_math`, and something that a :class:`Backend` declares to take. Callers
    fill in what they know by ``_replace`` and pass on the rest.
    """

    bias: Tensor | None = None  # [num_edges, heads or 1], added to logits
    gate: Tensor | None = None  # [num_edges, heads or 1], multiplies the scaled dot products
    scale: float | None = 1.  # what a kernel is given is a number
    dropout_p: float = 0.
    features: ProjectedFeatures | EdgeFeatures | None = None  # the latter for kernels


class ProjectedFeatures(NamedTuple):
    """Features of edges, which each head projects and adds to keys and values."""

    attr: Tensor  # [num_edges, size]
    projection: Tensor  # [heads, channels, size]


class EdgeFeatures(NamedTuple):
    """Features of edges as a kernel takes them, which projects none of them."""

    query: Tensor | None  # [num_queries, heads, size]: what their dot products in logits are with
    attr: Tensor | None  # [num_edges, size]


@dataclass(frozen=True)
class Backend:
    """The functions that a backend has, and what it can take.

    Arguments arrive validated (see :mod:`graphattn.functional`, which documents them); ``query`` is
    ``[num_queries, heads, channels]``, ``key`` and ``value`` ``[num_keys, heads, channels]``, a
    weight ``[num_edges, heads]``. A function that a backend lacks is ``None``.

    Args:
        name (str): What users call it.
        is_available (Callable): Whether it runs on a ``torch.device``.
        attention (Callable): ``(query, key, value, graph, terms)`` to the output; no weight is
            formed, and half precision is taken as it is and accumulated in float32. All other
            functions compute in the dtype that they are given.
        attention_with_features (Callable): ``(query, key, value, graph, terms)`` to the output and
            the sums by weights of the terms' features, ``[num_queries, heads, size]``.
        attention_weights (Callable): ``(query, key, graph, terms)`` to the weights.
        weighted_sum (Callable): ``(weight, value, graph)`` to the output.
        attention_diffusion (Callable): ``(weight, value, graph, teleport)``: all hops in one.
        diffused_attention (Callable): ``(query, key, value, graph, teleport, terms)``: weights,
            which are not kept, and hops in one.
        edge_dot (Callable): ``(query, key, graph)`` to the dot products on the edges.
        edge_dot_grads (Callable): ``(grad, query, key, graph)`` to the gradients of query and key,
            for dot products that are known without ``edge_dot``.
        supports_gqa (bool): Whether ``attention`` and ``attention_with_features`` take keys and
            values of fewer heads than queries have, each for as many consecutive ones.
        takes_gate (bool): Whether logits may be gated.
        takes_dropout (bool): Whether ``attention`` may drop weights.
        max_channels (int, optional): Of a head; any number if omitted.
        nan_leaks (bool): Whether NaN in a query, key, value or bias reaches, forward or backward,
            what no edge joins to it.
        has_all_derivatives (bool): Forward-mode and second derivatives, and torch.func; others
            have the gradient of a backward pass.
    """

    name: str
    is_available: Callable[[torch.device], bool]
    attention: Callable | None = None
    attention_with_features: Callable | None = None
    attention_weights: Callable | None = None
    weighted_sum: Callable | None = None
    attention_diffusion: Callable | None = None
    diffused_attention: Callable | None = None
    edge_dot: Callable | None = None
    edge_dot_grads: Callable | None = None
    supports_gqa: bool = False
    takes_gate: bool = True
    takes_dropout: bool = True
    max_channels: int | None = None
    nan_leaks: bool = False
    has_all_derivatives: bool = False

    def takes(self, channels: int) -> bool:
        """Return whether heads may be so wide."""
        return self.max_channels is None or channels <= self.max_channels

    @property
    def returns_weights(self) -> bool:
        """Return whether the backend returns weights."""
        return self.attention_weights is not None


def everywhere(device: torch.device) -> bool:
    """Return True, for backends that are plain torch."""
    return True


def has_values(device: torch.device) -> bool:
    """Return whether a device holds values, for backends that are plain torch and read them."""
    return device.type != 'meta'
