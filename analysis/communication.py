"""Messages between several processes that share one sequence, computed from its graph."""

from dataclasses import dataclass

import numpy as np
import torch

from analysis.graphs import GraphLike, check_count, check_positive
from analysis.result import Result
from analysis.walk import square_graph
from graphattn import BipartiteGraph
from graphattn.graphs.share import share

__all__ = ['Communication', 'communication']

NUMBERS = 1, 2, 4, 8, 64, 256, 1024  # of processes
STEP = 3  # arithmetic operations of a training step, divided by those of its forward pass


@dataclass(frozen=True)
class Communication(Result):
    """Bytes, messages and computed time of a training step of one layer whose sequence is divided
    over several processes.

    Arrays have an entry for each number of processes in ``processes``.
    """

    num_tokens: int
    num_edges: int
    #: Share of all other tokens that a process needs on average, at the largest number of
    #: processes.
    needed: float
    #: Edges of the busiest process divided by the mean, at the number of processes where this is
    #: worst.
    imbalance: float
    fastest: str  #: The fastest method at the largest number of processes.
    processes: np.ndarray
    rows: np.ndarray  #: Tokens whose keys and values a process receives, on average.
    messages: np.ndarray  #: Number of other processes that a process receives from, at most.
    halo_mib: np.ndarray  #: MiB that a process sends in a step, on average.
    #: MiB that a process sends if all processes gather all keys and values.
    all_keys_mib: np.ndarray
    halo_ms: np.ndarray
    all_keys_ms: np.ndarray
    ring_ms: np.ndarray  #: Milliseconds of a step of ring attention over all pairs.
    #: Milliseconds of DeepSpeed-Ulysses over all pairs; NaN above the number of heads.
    ulysses_ms: np.ndarray


def communication(
    graph: GraphLike,
    *,
    processes: list[int] | None = None,
    heads: int = 16,
    channels: int = 64,
    value_bytes: int = 2,
    node_size: int = 8,
    node_bandwidth: float = 400e9,
    bandwidth: float = 50e9,
    latency: float = 1e-5,
    edge_flops: float = 50e12,
    pair_flops: float = 500e12,
) -> Communication:
    r"""Compute bytes, messages and time of a training step of one layer on several processes.

    Tokens are divided so that all processes have about the same number of edges
    (:func:`graphattn.distributed.share`). Process r receives its halo, the keys and values that its
    edges need from other processes. Later it sends the gradients of the halo back. If b is the
    number of bytes of the keys and values of one token, a step of process r takes

    .. math::
        t_r = 2 \left( L m_r + \frac{b \, h_r^{\text{node}}}{B_{\text{node}}} +
        \frac{b \, h_r^{\text{net}}}{B} \right) + 3 \frac{4 H C \, e_r}{F}

    seconds. Here :math:`m_r` is the number of messages and :math:`e_r` the number of edges.
    :math:`h_r^{\text{node}}` is the number of rows exchanged within the node, and
    :math:`h_r^{\text{net}}` the number exchanged with other nodes; each is the larger of the rows
    received and the rows sent. The step takes as long as the slowest process, and nothing overlaps.

    If all keys are gathered, each process receives the rows of every other process in one message.
    Ring attention passes all rows on, three times with the backward pass, while it multiplies all
    pairs at the rate of dense products. Ulysses exchanges queries, keys, values and outputs between
    heads, and multiplies all pairs too.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        processes: Numbers of processes, each at most the number of tokens; if omitted, 1 to 1,024.
        heads: Number of heads, which share the graph.
        channels: Width of a head.
        value_bytes: Bytes of one value of a tensor.
        node_size: Processes per node; links within a node are faster.
        node_bandwidth: Bytes per second that a process exchanges within its node.
        bandwidth: Bytes per second that a process exchanges with other nodes.
        latency: Seconds that each message takes, whatever its size.
        edge_flops: Floating-point operations per second along edges.
        pair_flops: Floating-point operations per second of dense attention.

    Returns:
        Communication. The rows and bytes are exact; the times follow from the given rates.

    Source: Liu et al., Ring attention (2023); Jacobs et al., DeepSpeed-Ulysses (2023).

    Example:
        >>> from graphattn.patterns import SlidingWindow
        >>> result = communication(SlidingWindow(2).build(64), processes=[2, 8])
        >>> result.rows.tolist(), result.messages.tolist()
        ([2.0, 3.5], [1, 2])
    """
    graph = square_graph(graph)
    n = graph.num_queries
    for name, value in (('heads', heads), ('channels', channels), ('value_bytes', value_bytes),
                        ('node_size', node_size)):
        check_count(name, value)
    for name, value in (('node_bandwidth', node_bandwidth), ('bandwidth', bandwidth),
                        ('latency', latency), ('edge_flops', edge_flops),
                        ('pair_flops', pair_flops)):
        check_positive(name, value)
    if processes is None:
        processes = [count for count in NUMBERS if count <= n]
    if not len(processes):
        raise ValueError("'processes' must contain at least one number of processes, such as 2")
    for count in processes:
        check_count('processes', count, at_most=n)
    token_bytes = 2 * heads * channels * value_bytes
    edge_seconds, pair_seconds = (STEP * 4 * heads * channels / rate
                                  for rate in (edge_flops, pair_flops))

    def sending(rows: np.ndarray, messages: np.ndarray) -> float:
        node = np.arange(len(rows)) // node_size
        is_near = node[:, None] == node
        near, far = (np.maximum(part.sum(0), part.sum(1)) * token_bytes
                     for part in (np.where(is_near, rows, 0), np.where(is_near, 0, rows)))
        return float((latency * messages + near / node_bandwidth + far / bandwidth).max())

    points = []
    for count in processes:
        bounds = share(torch.tensor([0, n]), graph, count)
        edges = np.diff(graph.csr[0].numpy()[bounds])
        rows, sizes = rows_received(graph, bounds), np.diff(bounds)
        messages = (rows > 0).sum(axis=1)
        everyone = np.tile(sizes, (count, 1)) * ~np.eye(count, dtype=bool)
        others = np.full(count, count - 1)
        along = edges.max() * edge_seconds
        all_pairs = n * n / count * pair_seconds
        ring = np.zeros((count, count))  # a process receives from the one before it
        ring[np.arange(count), np.arange(count) - 1] = n - n / count
        exchanged = np.full((count, count), n / count**2) * ~np.eye(count, dtype=bool)
        points.append({
            'rows': rows.sum(1).mean(), 'messages': messages.max(),
            'imbalance': edges.max() / max(edges.mean(), 1),
            'halo_mib': 2 * rows.sum() / count * token_bytes / 2**20,
            'all_keys_mib': 2 * everyone.sum() / count * token_bytes / 2**20,
            'halo_ms': 1e3 * (2 * sending(rows, messages) + along),
            'all_keys_ms': 1e3 * (2 * sending(everyone, others) + along),
            'ring_ms': 1e3 * max(3 * sending(ring, others), all_pairs),
            # A token has four tensors: keys and values in the forward pass, and their gradients in
            # the backward pass.
            'ulysses_ms': 1e3 * (4 * sending(exchanged, others) + all_pairs)
            if heads % count == 0 else np.nan})
    arrays = {name: np.array([point[name] for point in points]) for name in points[0]}
    imbalance = float(arrays.pop('imbalance').max())
    times = {name: arrays[f'{name}_ms'][-1] for name in ('halo', 'all_keys', 'ring', 'ulysses')}
    return Communication(
        num_tokens=n, num_edges=graph.num_edges, imbalance=imbalance,
        needed=float(arrays['rows'][-1] / max(n - n / processes[-1], 1)),
        fastest=min(times, key=lambda name: np.nan_to_num(times[name], nan=np.inf)).replace(
            '_', ' '),
        processes=np.array(processes), **arrays)


def rows_received(graph: BipartiteGraph, bounds: list[int]) -> np.ndarray:
    """Count the keys that each process needs and another stores, ``[receiver, sender]``."""
    indptr, key = (part.numpy() for part in graph.csr)
    rows = np.zeros((len(bounds) - 1, len(bounds) - 1), dtype=np.int64)
    for process, (first, last) in enumerate(zip(bounds, bounds[1:])):
        needed = np.unique(key[indptr[first]:indptr[last]])
        owner = np.searchsorted(bounds[1:], needed, side='right')
        rows[process] = np.bincount(owner, minlength=len(rows))
        rows[process, process] = 0
    return rows
