"""The interface of backends with their capabilities, and the terms of logits that backends
receive."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class LogitTerms(NamedTuple):
    """Arguments of attention beside queries, keys, values and edges: the terms of the logits,
    dropout, and features of edges.

    A new term that is a number for each edge belongs to the bias: it needs a field here, a check in
    :mod:`graphattn.functional.checks`, and a line in ``drive`` and in ``attention_weights`` that
    adds the term to the bias of the caller's graph, and no kernel. Any other term needs a line in
    :mod:`graphattn.ops.edge_math`, a capability of :class:`Backend`, and kernels of ``attention``,
    ``attention_weights`` and ``diffused_attention``. Terms of edges are divided where a placement
    divides the edges (``placement/cache.py``, ``placement/overlap.py``). A caller sets its own
    fields by ``_replace`` and leaves the other fields unchanged.
    """

    bias: Tensor | None = None  # [num_edges, heads or 1], added to logits
    gate: Tensor | None = None  # [num_edges, heads or 1], multiplies the scaled dot products
    scale: float | None = 1.  # never None in a kernel
    dropout_p: float = 0.
    softcap: float | None = None  # bounds the scaled dot products, before the bias
    sink: Tensor | None = None  # [heads], or in kernels [num_queries or 1, heads]
    features: ProjectedFeatures | EdgeFeatures | None = None  # EdgeFeatures in kernels


class ProjectedFeatures(NamedTuple):
    """Features of edges, and a matrix for each head that projects them. The projected features of
    an edge are added to the key and to the value of this edge."""

    attr: Tensor  # [num_edges, size]
    projection: Tensor  # [heads, channels, size]


class EdgeFeatures(NamedTuple):
    """Features of edges as a kernel receives them. ``query`` has the queries times the projections
    of :class:`ProjectedFeatures`, so a kernel computes only its dot products with ``attr``."""

    query: Tensor | None  # [num_queries, heads, size]; dot products with attr enter logits
    attr: Tensor | None  # [num_edges, size]


@dataclass(frozen=True)
class Backend:
    """A backend of attention: its functions, and the features that the functions support.

    :mod:`graphattn.functional` documents the arguments of the functions and checks them. ``query``
    is ``[num_queries, heads, channels]``, ``key`` and ``value`` are ``[num_keys, heads,
    channels]``, and a weight is ``[num_edges, heads]``. A function that a backend does not have is
    ``None``.

    Args:
        name (str): The name that users pass as ``backend``.
        is_available (Callable): Maps a ``torch.device`` to bool, whether the backend runs on this
            device.
        attention (Callable): Maps ``(query, key, value, graph, terms)`` to the output, without
            materialising weights. Inputs in half precision are accumulated in float32; all other
            functions compute in the dtype of their inputs.
        attention_with_features (Callable): Maps ``(query, key, value, graph, terms)`` to the output
            and the weighted sums of the features, ``[num_queries, heads, size]``.
        attention_part (Callable): Maps ``(query, key, value, graph, terms, seed)`` to the output
            along some of the edges, in the dtype of accumulation; and for each query its maximum
            logit m, and 1 over its sum of ``exp(logit - m)``, ``[num_queries, heads, 2]``.
            ``seed`` is the seed of dropout. The function is not differentiable, and accepts
            neither sinks nor features.
        attention_part_grads (Callable): Maps ``((grad_out, out, max_inv_sum, query), key, value,
            graph, terms, seed, needs)`` to the gradients of query, key, value, bias and gate along
            some of the edges. The first three tensors are those of attention along all edges.
            ``needs`` has two bools: whether the gradients of bias and gate are needed.
        attention_weights (Callable): Maps ``(query, key, graph, terms)`` to the weights.
        weighted_sum (Callable): Maps ``(weight, value, graph)`` to the output.
        attention_diffusion (Callable): Maps ``(weight, value, graph, teleport)`` to the output of
            all hops.
        diffused_attention (Callable): Maps ``(query, key, value, graph, teleport, terms)`` to the
            output of all hops, without returning weights.
        edge_dot (Callable): Maps ``(query, key, graph)`` to the dot products on the edges.
        edge_dot_grads (Callable): Maps ``(grad, query, key, graph)`` to the gradients of query and
            key, if another function than ``edge_dot`` computed the dot products.
        supports_gqa (bool): Whether ``attention`` and ``attention_with_features`` support grouped
            queries, in which several consecutive heads of queries share one head of keys and
            values.
        takes_gate (bool): Whether gates are supported.
        takes_softcap (bool): Whether ``attention`` supports a softcap; other functions always must.
        takes_sink (bool): Whether ``attention`` supports sinks; other functions always must.
        max_channels (int or float): Largest number of channels of a head, and of features of an
            edge in ``attention_with_features``; unlimited if omitted.
        nan_leaks (bool): Whether a NaN in a query, key, value or bias reaches outputs or gradients
            that no edge connects to it.
        has_all_derivatives (bool): Whether forward-mode derivatives, second derivatives and
            torch.func are supported. Other backends support only a single backward pass.
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
    takes_softcap: bool = True
    takes_sink: bool = True
    max_channels: int | float = math.inf
    nan_leaks: bool = False
    has_all_derivatives: bool = False

    def lacks(self, terms: LogitTerms) -> str | None:
        """Return the name of one of ``terms`` that ``attention`` does not support, or None if all
        are supported."""
        if terms.gate is not None and not self.takes_gate:
            return 'gates'
        if terms.softcap is not None and not self.takes_softcap:
            return f'softcap (got {terms.softcap})'
        if terms.sink is not None and not self.takes_sink:
            return 'sinks'
        return None

    @property
    def returns_weights(self) -> bool:
        """Return whether the backend can return attention weights."""
        return self.attention_weights is not None


def everywhere(device: torch.device) -> bool:
    # ``is_available`` of backends in plain torch
    return True


def has_values(device: torch.device) -> bool:
    # ``is_available`` of backends in plain torch that read values
    return device.type != 'meta'
