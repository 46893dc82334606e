"""Communication of several processes: the question and its answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from analysis.checks import check_count, check_positive
from analysis.communication.halos import rows_received
from analysis.graphs import GraphLike
from analysis.result import Result
from analysis.walk import square_graph
from graphattn.distributed import share

NUMBERS = 1, 2, 4, 8, 64, 256, 1024  # of processes
STEP = 3  # arithmetic of a training step over that of the forward pass


@dataclass(frozen=True)
class Communication(Result):
    """Bytes, messages and computed time of a layer's training step, by number of processes."""

    num_tokens: int
    num_edges: int
    needed: float  #: Share of all other tokens that the mean process needs, at the most processes.
    imbalance: float  #: Edges of the busiest process over the mean, at the worst number.
    fastest: str  #: At the largest number of processes.
    processes: np.ndarray
    rows: np.ndarray  #: Tokens whose keys and values a process receives, on average.
    messages: np.ndarray  #: Number of processes that one receives from, at most.
    halo_mib: np.ndarray  #: MiB that a process sends in a step, on average.
    all_keys_mib: np.ndarray  #: The same if all processes gather all keys and values.
    halo_ms: np.ndarray
    all_keys_ms: np.ndarray
    ring_ms: np.ndarray  #: Ring attention over all pairs.
    ulysses_ms: np.ndarray  #: DeepSpeed-Ulysses over all pairs; NaN above the number of heads.


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

    Tokens are divided so that processes have about the same number of edges
    (:func:`graphattn.distributed.share`). With b bytes of a token's keys and values, process r
    receives its halo and returns its gradients:

    .. math::
        t_r = 2 \left( L m_r + \frac{b \, h_r^{\text{node}}}{B_{\text{node}}} +
        \frac{b \, h_r^{\text{net}}}{B} \right) + 3 \frac{4 H C \, e_r}{F}

    for :math:`m_r` messages, :math:`h_r` rows, from its own node and from others, the larger of
    those received and sent, and :math:`e_r` edges. The step takes as long as the slowest process;
    nothing overlaps. Gathering all keys has the rows of all others, in one message from each. Ring
    attention sends all rows on, three times with the backward pass, while it multiplies all pairs
    at the rate of dense products. Ulysses exchanges queries, keys, values and outputs for heads,
    and multiplies all pairs too.

    Args:
        graph: See :func:`analysis.graphs.as_graph`, with as many keys as queries.
        processes: Numbers of processes, each at most the number of tokens; if omitted, 1 to 1,024.
        heads: Number of heads, which share the graph.
        channels: Width of a head.
        value_bytes: Bytes of a number.
        node_size: Processes of a node, which has faster links.
        node_bandwidth: Bytes per second of a process within its node.
        bandwidth: Bytes per second of a process to other nodes.
        latency: Seconds of a message.
        edge_flops: Operations per second along edges.
        pair_flops: Operations per second of dense attention.

    Returns:
        Communication. The rows and bytes are exact; the times follow from the given rates.

    Raises:
        TypeError, ValueError: An argument is invalid.

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
        raise ValueError("'processes' must not be empty")
    for count in processes:
        check_count('processes', count, at_most=n)
    token_bytes = 2 * heads * channels * value_bytes
    edge_seconds, pair_seconds = (STEP * 4 * heads * channels / rate
                                  for rate in (edge_flops, pair_flops))

    def sending(rows: np.ndarray, messages: np.ndarray) -> float:
        """Return the seconds of the slowest process for rows ``[receiver, sender]``."""
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
        exchanged = np.full((count, count), n / count**2) * ~np.eye(count, dtype=bool)
        points.append({
            'rows': rows.sum(1).mean(), 'messages': messages.max(),
            'imbalance': edges.max() / max(edges.mean(), 1),
            'halo_mib': 2 * rows.sum() / count * token_bytes / 2**20,
            'all_keys_mib': 2 * everyone.sum() / count * token_bytes / 2**20,
            'halo_ms': 1e3 * (2 * sending(rows, messages) + along),
            'all_keys_ms': 1e3 * (2 * sending(everyone, others) + along),
            'ring_ms': 1e3 * max(3 * sending(_ring(n, count), others), all_pairs),
            # Four tensors of a token are two of keys and values, forward and backward.
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


def _ring(n: int, count: int) -> np.ndarray:
    """Return the rows of a ring, in which each process receives all others' from its neighbour."""
    rows = np.zeros((count, count))
    rows[np.arange(count), np.arange(count) - 1] = n - n / count
    return rows if count > 1 else np.zeros((1, 1))
