"""Choice of a backend: the requested one, or the fastest that supports the call."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import guard_or_false

from graphattn import ops
from graphattn._compiler import CompilerMissing
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops import Backend, LogitTerms
from graphattn.ops.attention.sdpa import takes_one_call

__all__ = ['FASTEST_SPARSE', 'PAIRS_OF_A_CALL', 'choose', 'choose_sparse',
           'choose_weighing']

# By type of device: how many pairs take as long as the overhead of one call of dense attention. One
# call computes consecutive segments of the same shape. On one core (Zen 5), 4 heads of 32 channels,
# a training step along complete sequences of alternately n and n + 1 tokens took 1.9, 1.4, 1.2, 1.1
# and 0.9 times as long by dense as by fused attention, for n = 20, 80, 120, 160 and 240. On an
# H200, it took 43, 14, 3.8 and 1.9 times as long for n = 20, 80, 320 and 640. By
# extrapolation, both take equally long for n = 1,200.
PAIRS_OF_A_CALL = {'cpu': 3 * 2**13, 'cuda': 2**20}

# By fused backend: the number of pairs of a complete sequence up to which dense attention is
# faster. For other backends, dense attention is always faster. On one core (Zen 5), 4 heads of 32
# channels, a forward pass along a complete graph of 64, 128, 192, 256 and 512 tokens took 0.5, 0.8,
# 1.0, 1.2 and 1.7 times as long by dense as by fused attention, and a training step 0.5, 0.9, 1.1,
# 1.4 and 1.8 times.
MOST_DENSE_PAIRS = {'numba': 2**15}


def _fastest_on_cpus() -> Backend:
    try:
        return ops.load('numba')
    except CompilerMissing as error:
        warnings.warn(f"backend 'numba' is unavailable, so backend='auto' uses a slower backend: "
                      f"{error}", stacklevel=2)
    return GATHER


def _fastest_on_gpus() -> Backend:
    if torch.version.cuda is None:
        return GATHER
    try:
        return ops.load('triton')
    except ImportError as error:
        warnings.warn(f"backend 'triton' is unavailable, so backend='auto' uses a slower backend "
                      f"on GPUs: {error}", stacklevel=2)
    return GATHER


GATHER = ops.load('gather')
# The fastest backend, by type of device. Backends are loaded here, because compiled code cannot
# import modules.
FASTEST_SPARSE = {'cpu': _fastest_on_cpus(), 'cuda': _fastest_on_gpus()}


def choose(name: str, query: Tensor, key: Tensor, value: Tensor, graph: BipartiteGraph,
           terms: LogitTerms, *, needs_weights: bool = False, in_parts: bool = False) -> Backend:
    """Return the backend that computes attention for these arguments, or raise if it cannot."""
    # in_parts: attention of parts of the keys, which dense attention does not support
    device, channels = query.device, max(query.size(-1), value.size(-1))
    if name != 'auto':
        needs_weights |= (terms.features is not None
                          and ops.load(name).attention_with_features is None)
        backend = _asked_for(name, device, channels, needs_weights)
        missing = backend.lacks(terms)
        if missing is not None:
            raise ValueError(f"backend {name!r} does not support {missing}; pass backend='auto'")
        return backend
    # Only complete graphs, because dense attention under a mask is rarely faster: on one core (Zen
    # 5), 16 to 2,048 tokens, 65 to 95 % of the pairs, it took 0.9 to 10 times as long as fused
    # attention (graphattn atlas). A bias is a mask too: on two cores, complete graphs of 32 to
    # 1,024 tokens with a bias took 1.1 to 5.5 times as long.
    may_be_dense = terms.bias is None and (torch.compiler.is_compiling() or graph.is_complete)
    if may_be_dense and not in_parts and _is_faster_dense(query, value, graph, terms):
        dense = ops.load('sdpa')
        needs_weights |= terms.features is not None and dense.attention_with_features is None
        lacks = (needs_weights and not dense.returns_weights
                 or dense.lacks(terms) is not None
                 or not dense.is_available(device)
                 or in_transform() and not dense.has_all_derivatives)
        if not lacks:
            return dense
    return choose_sparse(device, channels)


def choose_weighing(name: str, device: torch.device, channels: int) -> Backend:
    """Return a backend that computes weights first and then weighted sums."""
    if name != 'auto':
        return _asked_for(name, device, channels, needs_weights=True)
    return choose_sparse(device, channels)


def choose_sparse(device: torch.device, channels: int) -> Backend:
    """Return the fastest backend whose time is proportional to the number of edges."""
    if not in_transform():
        fastest = FASTEST_SPARSE.get(device.type, GATHER)
        if channels <= fastest.max_channels and fastest.is_available(device):
            return fastest
    return GATHER


def in_transform() -> bool:
    """Return whether forward-mode derivatives or a transform of torch.func is active."""
    # the operators of this library support neither
    takes_forward_derivatives = forward_ad._current_level >= 0
    return takes_forward_derivatives or torch._C._are_functorch_transforms_active()


def _asked_for(name: str, device: torch.device, channels: int, needs_weights: bool) -> Backend:
    backend = ops.load(name)
    if needs_weights and not backend.returns_weights:
        raise ValueError(f"backend {name!r} does not return attention weights, which are "
                         f"requested; pass backend='auto'")
    if not backend.is_available(device):
        raise ValueError(f"backend {name!r} does not run on {device}, the device of the graph; "
                         f"pass backend='auto'")
    if channels > backend.max_channels:
        raise ValueError(f"backend {name!r} supports at most {backend.max_channels} channels per "
                         f"head (got {channels}); pass backend='auto'")
    if not backend.has_all_derivatives and in_transform():
        raise NotImplementedError(f"backend {name!r} does not support forward-mode derivatives and "
                                  f"torch.func; pass backend='auto' or backend='gather'")
    return backend


def _is_faster_dense(query: Tensor, value: Tensor, graph: BipartiteGraph,
                     terms: LogitTerms) -> bool:
    if terms.dropout_p > 0 and graph.device.type == 'cpu':
        # With dropout, torch materialises all weights: a training step with 64 to 1,024 tokens, 70
        # to 100 % dense, took 0.6 to 8 times as long as fused. Also, an activation checkpoint runs
        # its first pass without gradients. If this changed the choice, the second pass would use
        # another kernel, which drops other weights.
        return False
    if torch.compiler.is_compiling():  # compiled code can neither read sizes nor make a mask
        return (graph.num_segments == 1 and guard_or_false(graph.num_edges > 0)
                and guard_or_false(graph.num_edges == graph.num_pairs)
                and guard_or_false(_is_short(graph)))
    if graph.num_edges == 0 or not _is_short(graph):
        return False
    # consecutive segments of the same length share one call
    more_calls = graph.segments.num_runs - 1 if graph.num_segments > 1 else 0
    fills_calls = graph.num_edges >= more_calls * PAIRS_OF_A_CALL.get(graph.device.type, 0)
    return fills_calls or takes_one_call(query, value, graph, terms)


def _is_short(graph: BipartiteGraph) -> bool:
    most = MOST_DENSE_PAIRS.get(FASTEST_SPARSE.get(graph.device.type, GATHER).name)
    # dense attention does not need the list of edges, if it is not in memory yet
    return (most is None or not graph.is_listed
            or graph.num_edges <= most * graph.num_segments)
