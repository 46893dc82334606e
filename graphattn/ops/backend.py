"""The interface of backends: their capabilities, and the terms of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class LogitTerms(NamedTuple):
    """Terms that turn the dot products of an attention into weights, and edge features.

    A new term needs a field here, a check in :mod:`graphattn.functional.checks`, a line in
    :mod:`graphattn.ops.edge_math`, and a capability of :class:`Backend`. Callers set their fields
    by ``_replace`` and pass on the others.
    """

    bias: Tensor | None = None  # [num_edges, heads or 1], added to logits
    gate: Tensor | None = None  # [num_edges, heads or 1], multiplies the scaled dot products
    scale: float | None = 1.  # never None in a kernel
    dropout_p: float = 0.
    softcap: float | None = None  # bounds the scaled dot products, before the bias
    sink: Tensor | None = None  # [heads], or in kernels [num_queries or 1, heads]
    features: ProjectedFeatures | EdgeFeatures | None = None  # the latter for kernels


class ProjectedFeatures(NamedTuple):
    """Features of edges, which each head projects and adds to keys and values."""

    attr: Tensor  # [num_edges, size]
    projection: Tensor  # [heads, channels, size]


class EdgeFeatures(NamedTuple):
    """Features of edges as a kernel receives them, without projections."""

    query: Tensor | None  # [num_queries, heads, size]; its dot products with ``attr`` are added
    attr: Tensor | None  # [num_edges, size]


@dataclass(frozen=True)
class Backend:
    """The functions and capabilities of a backend.

    Arguments arrive validated (see :mod:`graphattn.functional`, which documents them); ``query`` is
    ``[num_queries, heads, channels]``, ``key`` and ``value`` ``[num_keys, heads, channels]``, a
    weight ``[num_edges, heads]``. A function that a backend lacks is ``None``.

    Args:
        name (str): The name that users pass as ``backend``.
        is_available (Callable): ``torch.device`` to whether the backend runs on it.
        attention (Callable): ``(query, key, value, graph, terms)`` to the output, without
            materialised weights. Inputs in half precision are accumulated in float32; all other
            functions compute in the dtype of their inputs.
        attention_with_features (Callable): ``(query, key, value, graph, terms)`` to the output and
            the weighted sums of the features, ``[num_queries, heads, size]``.
        attention_part (Callable): ``(query, key, value, graph, terms, seed)`` to the output along
            some of the edges, in the dtype of accumulation, and row maxima and inverse sums. It is
            not differentiable; ``seed`` is that of dropout, and there are no sinks and features.
        attention_part_grads (Callable): ``(grad_out, out, max_inv_sum, query, key, value, graph,
            terms, seed, needs)`` to the gradients of query, key, value, bias and gate along some
            of the edges. The first three are those of all edges; ``needs`` tells whether the last
            two are needed.
        attention_weights (Callable): ``(query, key, graph, terms)`` to the weights.
        weighted_sum (Callable): ``(weight, value, graph)`` to the output.
        attention_diffusion (Callable): ``(weight, value, graph, teleport)`` to the output of all
            hops.
        diffused_attention (Callable): ``(query, key, value, graph, teleport, terms)`` to the output
            of all hops, without returning weights.
        edge_dot (Callable): ``(query, key, graph)`` to the dot products on the edges.
        edge_dot_grads (Callable): ``(grad, query, key, graph)`` to the gradients of query and key,
            for dot products that were not computed by ``edge_dot``.
        supports_gqa (bool): Whether ``attention`` and ``attention_with_features`` support grouped
            queries: each head of keys and values serves several consecutive heads of the queries.
        takes_gate (bool): Whether gates are supported.
        takes_dropout (bool): Whether ``attention`` supports dropout.
        takes_softcap (bool): Whether ``attention`` supports a softcap.
        takes_sink (bool): Whether ``attention`` supports sinks.
        max_channels (int, optional): Largest number of channels of a head; unlimited if omitted.
        nan_leaks (bool): Whether NaN in a query, key, value or bias reaches outputs or gradients
            without an edge to it.
        has_all_derivatives (bool): Whether forward-mode and second derivatives and torch.func are
            supported; other backends support a single backward pass.
    """

    name: str
    is_available: Callable[[torch.device], bool]
    attention: Callable | None = None
    attention_with_features: Callable | None = None
    attention_part: Callable | None = None
    attention_part_grads: Callable | None = None
    attention_weights: Callable | None = None
    weighted_sum: Callable | None = None
    attention_diffusion: Callable | None = None
    diffused_attention: Callable | None = None
    edge_dot: Callable | None = None
    edge_dot_grads: Callable | None = None
    supports_gqa: bool = False
    takes_gate: bool = True
    takes_dropout: bool = True
    takes_softcap: bool = True
    takes_sink: bool = True
    max_channels: int | None = None
    nan_leaks: bool = False
    has_all_derivatives: bool = False

    def lacks(self, terms: LogitTerms) -> str | None:
        """Return one of the given terms that ``attention`` does not support, or None."""
        if terms.gate is not None and not self.takes_gate:
            return 'gates'
        if terms.dropout_p > 0 and not self.takes_dropout:
            return f'dropout on weights (got {terms.dropout_p})'
        if terms.softcap is not None and not self.takes_softcap:
            return f'softcap (got {terms.softcap})'
        if terms.sink is not None and not self.takes_sink:
            return 'sinks'
        return None

    def takes(self, channels: int) -> bool:
        """Return whether heads may have this many channels."""
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
