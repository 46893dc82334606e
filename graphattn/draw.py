"""Pictures of graphs and attention by matplotlib, which is imported on first use.

    draw.mask(graph)                    # a figure of pyplot's, which notebooks show
    draw.network(graph, (edge_index, alpha))   # nodes, and the attention along their edges
    figure = draw.segments(graph)         # the mask of each segment
    figure.savefig('graph.png')         # or .svg

The functions draw on the axes that they get or, if ``axes`` is omitted, on a new figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphattn._checks import check_size
from graphattn.graphs.graph import BipartiteGraph, check_graph
from graphattn.graphs.picture import Weights, draw_mask, new_axes, shades_of, tick_whole_numbers
from graphattn.style import COLOURS, EDGE, KEY, QUERY, SHADES, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from torch import Tensor

    from graphattn.hugging_face import Profile

__all__ = ['bipartite', 'segments', 'degrees', 'heads', 'mask', 'network', 'profile',
           'received_attention', 'receptive_field', 'spectrum', 'times']

MAX_LINES = 20_000  # in a bipartite picture
MAX_NODES, MAX_ARROWS = 500, 5_000  # in a picture of a network; more take minutes, and overlap
_MAX_NAMED = 40  # number of nodes whose numbers are shown unasked
_MAX_LABELS = 8  # number of labels of lengths; more labels would overlap


def mask(graph: BipartiteGraph, weights: Weights | None = None, axes: Axes | None = None) -> Axes:
    """Draw the mask of a graph, with queries from top to bottom and keys from left to right.

    If a graph has more than 512 queries or keys, this side is divided into 512 cells, and the shade
    of a cell is its density.

    Args:
        graph (BipartiteGraph): The graph, of any size.
        weights (Tensor or tuple, optional): Shades of the edges, such as attention weights,
            ``[num_edges]`` in the order of ``graph.edge_index``; or a pair ``(edge_index, alpha)``,
            as layers return it. The edge with the largest weight is the darkest.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.

    Raises:
        TypeError: ``weights`` is not a Tensor.
        ValueError: ``weights`` has another shape, other edges, or negative or non-finite values; or
            the graph sorted its edges, and the order of ``weights`` is unknown.

    Example:
        >>> from graphattn import draw, patterns
        >>> axes = draw.mask(patterns.SlidingWindow(2).build(16))
        >>> axes.get_title()
        'density 28.9 %'
    """
    check_graph(graph)
    return draw_mask(graph, axes, weights)


@in_style()
def bipartite(graph: BipartiteGraph, weights: Weights | None = None, axes: Axes | None = None, *,
              names: tuple[Sequence[str], Sequence[str]] | None = None) -> Axes:
    r"""Draw a graph with keys above, queries below, and a line for each edge.

    Args:
        graph (BipartiteGraph): The graph, of at most 20,000 edges.
        weights (Tensor or tuple, optional): Attention weights :math:`\alpha`, as for
            :func:`network`: an edge is the darker the larger its weight.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.
        names (pair of sequences of str, optional): The texts beside the keys and the queries.

    Raises:
        TypeError: ``weights`` is not a Tensor.
        ValueError: The graph has more than 20,000 edges, ``names`` are not one for each node, or
            ``weights`` do not fit, as for :func:`heads`.
    """
    check_graph(graph)
    if graph.num_edges > MAX_LINES:
        raise ValueError(f"'graph' must have at most {MAX_LINES:,} edges to be drawn as lines (got "
                         f"{graph.num_edges:,}); call mask(graph) instead, which has no limit")
    from matplotlib.collections import LineCollection

    axes = new_axes(5.2, 2.4) if axes is None else axes
    keys, queries = (_spread(side) for side in (graph.num_keys, graph.num_queries))
    ends = keys[graph.key.cpu().numpy()], queries[graph.query.cpu().numpy()]
    lines = np.stack([np.stack([x, np.full_like(x, height)], axis=1)
                      for x, height in zip(ends, (1, 0))], axis=1)
    if weights is None:
        opacity = float(np.clip(200 / max(graph.num_edges, 1), 0.06, 0.8))
        axes.add_collection(LineCollection(lines, colors=EDGE, linewidths=0.8, alpha=opacity))
    else:
        alpha, label = _mean_of_heads(graph, weights)
        order = np.argsort(alpha)  # the darkest on top
        drawn = axes.add_collection(LineCollection(lines[order], array=alpha[order], cmap=SHADES,
                                                   clim=(0, alpha.max(initial=0) or 1)))
        axes.figure.colorbar(drawn, ax=axes, label=label, shrink=0.7)
    for side, height in zip(names or (), (1, 0)):
        _name_side(axes, side, (keys, queries)[1 - height], height)
    size = float(np.clip(600 / max(graph.num_keys, graph.num_queries, 1), 2, 40))
    axes.scatter(keys, np.ones(len(keys)), size, KEY, zorder=2)
    axes.scatter(queries, np.zeros(len(queries)), size, QUERY, zorder=2)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.15, 1.15), xticks=[])
    axes.set_yticks([0, 1], ['queries', 'keys'])
    axes.spines[:].set_visible(False)
    return axes


def _name_side(axes: Axes, names: Sequence[str], places: np.ndarray, height: int) -> None:
    if len(names) != len(places):
        raise ValueError(f"'names' must contain {len(places)} names for the "
                         f"{('queries', 'keys')[height]} (got {len(names)})")
    for name, place in zip(names, places):
        axes.annotate(str(name), (place, height), (0, 8 if height else -8),
                      textcoords='offset points', ha='center', va='bottom' if height else 'top',
                      fontsize='small')


@in_style()
def network(graph: BipartiteGraph, weights: Weights | None = None, axes: Axes | None = None, *,
            names: Sequence[str] | None = None,
            positions: Tensor | np.ndarray | Mapping | None = None) -> Axes:
    r"""Draw a graph whose keys are its queries, with one point for each node.

    An arrow points from a key to the query that attends to it, and a ring is a node that attends to
    itself. If all edges have their reverse, and there are no weights, edges are lines. Given
    weights :math:`\alpha`, an edge is the darker the larger its weight, from 0 on, and the area of
    a point grows with the attention :math:`\sum_i \alpha_{ij}` that the node receives. The weights
    of several heads are averaged.

    Args:
        graph (BipartiteGraph): The graph, of at most 500 nodes and 5,000 edges.
        weights (Tensor or tuple, optional): Attention weights :math:`\alpha`, ``[num_edges]`` or
            ``[num_edges, heads]`` in the order of ``graph.edge_index``; or a pair ``(edge_index,
            alpha)``, as layers return it.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.
        names (sequence of str, optional): The text beside each node. If omitted, up to 40 nodes are
            numbered.
        positions (Tensor, array or dict, optional): The place of each node, ``[num_nodes, 2]``,
            such as ``data.pos``; or a layout of networkx, a dict from each name of ``names``, or
            from each number of a node. If omitted, networkx finds places, always the same for a
            graph.

    Raises:
        TypeError: ``weights`` is not a Tensor.
        ValueError: The graph is too large, or its keys are not its queries; ``names`` or
            ``positions`` are not one for each node; or ``weights`` do not fit, as for
            :func:`heads`.

    Example:
        >>> import torch
        >>> from graphattn import BipartiteGraph, draw
        >>> ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> graph = BipartiteGraph.from_edge_index(ring, 3)
        >>> alpha = torch.tensor([1., .5, .25])
        >>> axes = draw.network(graph, (ring, alpha), names=['ant', 'bee', 'cat'])
    """
    if isinstance(positions, Mapping):
        nodes = range(graph.num_keys) if names is None else names
        positions = [positions[node] for node in nodes if node in positions]
    _check_network(graph, names, positions)
    from matplotlib.patheffects import withStroke

    alpha, label = _mean_of_heads(graph, weights)
    axes = new_axes(5.2, 4.6) if axes is None else axes
    edges = np.stack([graph.key.cpu().numpy(), graph.query.cpu().numpy()], axis=1).astype(int)
    places = _places(graph, edges) if positions is None else np.asarray(positions, dtype=float)
    _draw_edges(axes, edges, places, alpha)
    if alpha is not None and len(edges):
        axes.figure.colorbar(_shades(alpha), ax=axes, label=label, shrink=0.7)
    received = np.bincount(edges[:, 0], alpha, minlength=graph.num_keys)
    largest = received.max(initial=0)
    area = 40. if alpha is None or largest == 0 else 15 + 120 * received / largest
    axes.scatter(*places.T, area, KEY, edgecolors='white', linewidths=0.8, zorder=3)
    if names is None and graph.num_keys <= _MAX_NAMED:
        names = range(graph.num_keys)
    for name, place in zip(() if names is None else names, places):
        axes.annotate(str(name), place, (4, 4), textcoords='offset points', fontsize='small',
                      zorder=4, path_effects=[withStroke(linewidth=2, foreground='white')])
    axes.set_axis_off()
    axes.margins(0.08)
    return axes


def _check_network(graph: BipartiteGraph, names: Sequence[str] | None,
                   positions: Tensor | np.ndarray | Sequence | None) -> None:
    check_graph(graph)
    num_nodes = graph.num_keys
    if graph.num_queries != num_nodes:
        raise ValueError(f"'graph' must have the same tokens as keys and as queries (got "
                         f"{num_nodes} keys and {graph.num_queries} queries); call "
                         f"bipartite(graph, weights) instead")
    if num_nodes > MAX_NODES or graph.num_edges > MAX_ARROWS:
        raise ValueError(f"'graph' must have at most {MAX_NODES} nodes and {MAX_ARROWS:,} edges to "
                         f"be drawn as a network (got {num_nodes:,} and {graph.num_edges:,}); call "
                         f"mask(graph) instead, which has no limit")
    if names is not None and len(names) != num_nodes:
        raise ValueError(f"'names' must contain {num_nodes} names, one for each node (got "
                         f"{len(names)})")
    if positions is not None and np.shape(positions) != (num_nodes, 2):
        raise ValueError(f"'positions' must have shape [{num_nodes}, 2], a place for each node "
                         f"(got shape {list(np.shape(positions))})")


def _places(graph: BipartiteGraph, edges: np.ndarray) -> np.ndarray:
    import networkx as nx

    joined = nx.empty_graph(graph.num_keys)
    joined.add_edges_from(edges[edges[:, 0] != edges[:, 1]])
    is_small = 1 < graph.num_keys <= 200
    if is_small and nx.is_connected(joined):  # its layout is clearer, and takes cubic time
        found = nx.kamada_kawai_layout(joined)
    else:
        found = nx.spring_layout(joined, seed=0, k=1.5 / max(graph.num_keys, 1)**.5)
    return np.array([found[node] for node in range(graph.num_keys)]).reshape(-1, 2)


def _draw_edges(axes: Axes, edges: np.ndarray, places: np.ndarray,
                alpha: np.ndarray | None) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import FancyArrowPatch

    pairs = set(map(tuple, edges.tolist()))
    has_arrows = alpha is not None or any(pair[::-1] not in pairs for pair in pairs)
    is_loop = edges[:, 0] == edges[:, 1]
    colours = [EDGE] * len(edges) if alpha is None else _shades(alpha).to_rgba(alpha)
    if not has_arrows:
        opacity = float(np.clip(300 / max(len(edges), 1), 0.15, 0.7))
        axes.add_collection(LineCollection(places[edges[~is_loop]], colors=EDGE, linewidths=1,
                                           alpha=opacity))
    for edge in range(len(edges)) if alpha is None else np.argsort(alpha):  # the darkest on top
        begin, end = places[edges[edge]]
        if is_loop[edge]:  # a ring around the node
            axes.plot(*begin, 'o', ms=14, mfc='none', mec=colours[edge], zorder=1)
        elif has_arrows:
            is_mutual = tuple(edges[edge, ::-1].tolist()) in pairs
            axes.add_patch(FancyArrowPatch(
                begin, end, arrowstyle='-|>', mutation_scale=8, color=colours[edge], linewidth=1,
                connectionstyle='arc3,rad=0.12' if is_mutual else 'arc3', shrinkA=3, shrinkB=4))


def _mean_of_heads(graph: BipartiteGraph,
                   weights: Weights | None) -> tuple[np.ndarray | None, str]:
    if weights is None:
        return None, ''
    per_head = shades_of(graph, weights, 2)
    heads = ', mean of the heads' if per_head.shape[1] > 1 else ''
    return per_head.mean(dim=1).numpy(), f'attention weight{heads}'


def _shades(alpha: np.ndarray) -> ScalarMappable:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(0, alpha.max(initial=0) or 1), SHADES)


@in_style()
def degrees(graph: BipartiteGraph, axes: Axes | None = None) -> Axes:
    """Draw the number of keys of each query, and the number of queries of each key.

    Args:
        graph (BipartiteGraph): The graph, of any size.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.
    """
    check_graph(graph)
    axes = new_axes(5.2, 2.6) if axes is None else axes
    for degree, colour, shape, label in (
            (graph.in_degree(), QUERY, '-', 'keys of a query'),
            (graph.out_degree(), KEY, '--', 'queries of a key')):
        axes.stairs(degree.cpu().numpy(), np.arange(degree.numel() + 1) - 0.5, baseline=None,
                    color=colour, linestyle=shape, linewidth=1.5, label=label)
    axes.set(xlabel='token', ylabel='edges')
    axes.set_ylim(0, 1.1 * max(axes.get_ylim()[1], 1))
    tick_whole_numbers(axes.xaxis, axes.yaxis)
    axes.legend()
    return axes


@in_style()
def received_attention(graph: BipartiteGraph, weights: Weights, axes: Axes | None = None) -> Axes:
    r"""Draw the attention that each key receives, :math:`\sum_i \alpha_{ij}`, in each head.

    Args:
        graph (BipartiteGraph): The graph, of any size.
        weights (Tensor or tuple): Attention weights :math:`\alpha`, ``[num_edges]`` or
            ``[num_edges, heads]`` in the order of ``graph.edge_index``; or a pair ``(edge_index,
            alpha)``, as layers return it.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.

    Raises:
        TypeError: ``weights`` is not a Tensor.
        ValueError: ``weights`` has another shape, other edges, or negative or non-finite values; or
            the graph sorted its edges, and the order of ``weights`` is unknown.
    """
    check_graph(graph)
    per_head = shades_of(graph, weights, 2)
    axes = new_axes(5.2, 2.6) if axes is None else axes
    key = graph.key.cpu().numpy()
    for head, of_head in enumerate(per_head.T):
        axes.plot(np.bincount(key, of_head, minlength=graph.num_keys), '.-', lw=1,
                  color=COLOURS[head % len(COLOURS)], label=f'head {head}')
    axes.set(xlabel='key', ylabel='attention received')
    tick_whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    if per_head.shape[1] > 1:
        axes.legend()
    return axes


@in_style()
def spectrum(values: Sequence[float], axes: Axes | None = None) -> Axes:
    """Draw the eigenvalues of a Laplacian in ascending order, and mark the gap between 0 and the
    second eigenvalue.

    Args:
        values (sequence of float): All eigenvalues, ascending, for example from
            ``analysis.spectrum``.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.

    Raises:
        ValueError: There are fewer than two eigenvalues.
    """
    if len(values) < 2:
        raise ValueError(f"'values' must contain at least two eigenvalues (got {len(values)})")
    axes = new_axes(5.2, 2.6) if axes is None else axes
    axes.plot(values, '.', color=COLOURS[0])
    axes.axhspan(0, values[1], color=COLOURS[1], alpha=0.3, label=f'gap {values[1]:.3g}')
    axes.set(xlabel='index', ylabel='eigenvalue')
    tick_whole_numbers(axes.xaxis)
    axes.legend(loc='lower right')
    return axes


@in_style()
def receptive_field(field: np.ndarray, axes: Axes | None = None) -> Axes:
    """Draw the number of keys that reach a query after each layer, as mean, minimum and maximum
    over queries.

    Args:
        field (ndarray): Number of keys that reach each query after each layer, ``[layers + 1,
            queries]``, for example from ``analysis.diffusion.receptive_field``.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.
    """
    axes = new_axes(5.2, 2.6) if axes is None else axes
    layer = np.arange(len(field))
    axes.plot(layer, field.mean(axis=1), '.-', color=COLOURS[0], label='mean')
    axes.fill_between(layer, field.min(axis=1), field.max(axis=1), color=COLOURS[0], alpha=0.2,
                      lw=0, label='least to most')
    axes.set(xlabel='layers', ylabel='keys that reach a query', ylim=(0, None))
    tick_whole_numbers(axes.xaxis)
    axes.legend(loc='lower right')
    return axes


@in_style()
def times(seconds: dict[str, dict[int, float]], axes: Axes | None = None) -> Axes:
    """Draw curves of times against numbers of tokens, both on logarithmic axes.

    Args:
        seconds (dict): For the name of each curve, a dict ``{num_tokens: seconds}``.
        axes (matplotlib.axes.Axes, optional): Axes to draw on; a new figure if omitted.
    """
    axes = new_axes(5.2, 3) if axes is None else axes
    for number, (label, of_length) in enumerate(seconds.items()):
        axes.loglog(of_length.keys(), [1e3 * value for value in of_length.values()],
                    marker='osv^D'[number % 5], color=COLOURS[number % len(COLOURS)], label=label)
    lengths = sorted({length for of_length in seconds.values() for length in of_length})
    named = lengths[::max(1, -(-len(lengths) // _MAX_LABELS))]
    axes.set_xticks(named, [f'{length:,}' for length in named])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter('{x:g}')
    axes.set(xlabel='tokens', ylabel='milliseconds')
    axes.grid()
    axes.legend()
    return axes


@in_style()
def segments(graph: BipartiteGraph, titles: Sequence[str] | None = None, *,
             columns: int = 4) -> Figure:
    """Draw the masks of all segments of a graph side by side, for example of all heads and
    sequences.

    Args:
        graph (BipartiteGraph): The graph, with segments as in :meth:`BipartiteGraph.unbatch`.
        titles (sequence of str, optional): A title for each segment. If omitted, the titles are
            numbers.
        columns (int): Number of pictures per row.

    Raises:
        ValueError: The number of titles is not the number of segments.
    """
    check_graph(graph)
    check_size('columns', columns, 1)
    parts = graph.unbatch()
    titles = [f'segment {number}' for number in range(len(parts))] if titles is None else titles
    if len(titles) != len(parts):
        raise ValueError(f"'titles' must contain {len(parts)} titles, one for each segment of the "
                         f"graph (got {len(titles)})")
    figure, panels = _panels(len(parts), columns)
    for axes, part, title in zip(panels, parts, titles):
        mask(part, axes=axes).set_title(f'{title}: {100 * part.density():.3g} %')
    return figure


@in_style()
def heads(graph: BipartiteGraph, weights: Weights, *, columns: int = 4) -> Figure:
    """Draw the attention weights of each head side by side. All heads must share one graph.

    Args:
        graph (BipartiteGraph): The graph, of any size.
        weights (Tensor or tuple): Attention weights, ``[num_edges, heads]`` in the order of
            ``graph.edge_index``; or a pair ``(edge_index, alpha)``, as layers return it.
        columns (int): Number of pictures per row.

    Raises:
        TypeError: ``weights`` is not a Tensor.
        ValueError: ``weights`` has another shape, other edges, or negative or non-finite values; or
            the graph sorted its edges, and the order of ``weights`` is unknown.
    """
    check_graph(graph)
    check_size('columns', columns, 1)
    per_head = shades_of(graph, weights, 2)
    figure, panels = _panels(per_head.shape[1], columns)
    for head, (axes, of_head) in enumerate(zip(panels, per_head.T)):
        largest = of_head.max().item() if len(of_head) else 0.
        mask(graph, (graph.edge_index, of_head), axes).set_title(
            f'head {head}: weights up to {largest:.2g}')
    return figure


@in_style()
def profile(profile: Profile, share: int = 95) -> Figure:
    """Draw how many edges each head of a model needs, and how far each head attends.

    Args:
        profile (Profile): The result of :func:`graphattn.hugging_face.profile`.
        share (int): Per cent of the attention weight that the counted edges must have: 90, 95 or
            99.

    Raises:
        ValueError: ``share`` is not 90, 95 or 99.
    """
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    if not hasattr(profile, 'pattern_error'):
        raise TypeError(f"'profile' must be a Profile, the result of hugging_face.profile(model, "
                        f"batches) (got {type(profile).__name__})")
    if share not in (90, 95, 99):
        raise ValueError(f"'share' must be 90, 95 or 99 (got {share})")
    edges = np.full((len(profile.layers), profile.head.max() + 1), np.nan)
    edges[profile.layer, profile.head] = profile.edges[:, (90, 95, 99).index(share)]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout='constrained')
    # from one edge on, or else differences of a thousandth would be as dark and light
    image = left.imshow(edges, norm=LogNorm(1, max(np.nanmax(edges), 2)), aspect='auto')
    figure.colorbar(image, ax=left, label=f'edges of a row for {share} %', format='{x:g}',
                    ticks=LogLocator(subs=(1, 2, 5)))
    left.set(xlabel='head', ylabel='layer')
    tick_whole_numbers(left.xaxis, left.yaxis)
    within = (profile.before + profile.after).cumsum(axis=1)
    shades = pyplot.get_cmap('viridis')(np.linspace(0, .9, len(profile.layers)))
    for layer, shade in enumerate(shades):
        right.plot([1, *2 * profile.bounds[1:]], within[profile.layer == layer].mean(axis=0), '.-',
                   lw=1, color=shade, label=f'layer {layer}')
    right.set(xlabel='distance in tokens, below', ylabel='share of the weight', ylim=(0, 1.05))
    right.set_xscale('log', base=2)
    if len(shades) <= _MAX_LABELS:
        right.legend(loc='lower right')
    return figure


def _panels(count: int, columns: int) -> tuple[Figure, np.ndarray]:
    from matplotlib import pyplot

    columns = max(1, min(columns, count))
    rows = max(1, -(-count // columns))
    figure, panels = pyplot.subplots(rows, columns, figsize=(3 * columns, 3.1 * rows),
                                     layout='constrained', squeeze=False)
    for axes in panels.flat[count:]:
        axes.remove()
    return figure, panels.flatten()[:count]


def _spread(count: int) -> np.ndarray:
    return np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
