"""SBM-Transformer, Figures 3 and 6: the expressiveness of a stochastic block model."""

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from analysis.figures.picture import Picture, Row, draw_grid
from analysis.universality import Universality, is_rectangle, lemma_2, universality
from graphattn import BipartiteGraph
from graphattn.samplers import FactorModel
from graphattn.style import KEY, QUERY

_CLUSTERS, _NODES_EACH = 3, 8
_TRAINED_CLUSTERS = 128  # of the paper's models


def sbm_3(seed: int = 0) -> Picture:
    """Draw nodes and clusters in the plane, and the probability of each edge that results."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.arange(_CLUSTERS) / _CLUSTERS
    spread = 4. * torch.stack([angle.cos(), angle.sin()], dim=1)
    one_place = torch.tensor([[3., 3.]]).expand(_CLUSTERS, 2)
    far_side = -one_place

    def around(places: Tensor) -> Tensor:
        nodes = places.repeat_interleave(_NODES_EACH, dim=0)
        return nodes + 0.35 * torch.randn(nodes.shape, generator=generator)

    half = torch.cat([one_place[:1], far_side[:2]])
    cases = {  # queries, clusters, keys
        '(a) all in one place': (around(one_place), around(one_place)[::_NODES_EACH],
                                 around(one_place)),
        '(b) clear-cut groups': (around(spread), spread, around(spread)),
        '(c) clusters far away': (around(far_side), around(one_place)[::_NODES_EACH],
                                  around(far_side)),
        'not in the paper:\na rectangle': (around(half), around(one_place)[::_NODES_EACH],
                                           around(half.flip(0))),
    }
    probability = {name: _expectation(*case) for name, case in cases.items()}
    dense, blocks, sparse, rectangle = probability.values()
    by_row = _expectation(*cases['(b) clear-cut groups'], softmax_over='row')
    origin = _expectation(*(torch.zeros(_CLUSTERS, 2) for _ in range(3)))
    group = torch.arange(len(blocks)) // _NODES_EACH
    same = group[:, None] == group
    inside = (group == 0)[:, None] & (group == _CLUSTERS - 1)
    rows = (
        Row('(a) one place: probability', 1., float(dense.mean())),
        Row('(a) one place, the origin: probability', 1., float(origin.mean())),
        Row('(b) groups: probability inside blocks', 1., float(blocks[same].mean()),
            float(by_row[same].mean())),
        Row('(b) groups: probability outside', 0., float(blocks[~same].mean()),
            float(by_row[~same].mean())),
        Row(f'(b) groups: mean inside, at most, for k = {_TRAINED_CLUSTERS}', 1.,
            1 / _TRAINED_CLUSTERS),
        Row('(c) clusters far away: probability', 0., float(sparse.mean())),
        Row('a rectangle: probability inside', None, float(rectangle[inside].mean())),
        Row('a rectangle: probability outside', None, float(rectangle[~inside].mean())))
    remarks = (
        'S sums to 1 over all its entries and memberships are at most 1, so p = 1 only '
        'where a query and a key belong to all clusters at once: a rectangle, rows times columns. '
        'The block-diagonal mask of (b) has 1/k in its blocks on average, '
        f'{blocks[same].mean():.2f} here with k = {_CLUSTERS}. With the k = {_TRAINED_CLUSTERS} '
        'of the paper that is below the exploration of 0.01. Fitted: S normalised row by row.',
        '(a) is dense if that one place is far from the origin. At the origin, where clusters '
        'begin, memberships are 1/2 and p is 1/4.',
        'The figure states no coordinates and no number of clusters, so they are ours. Its '
        'probabilities are read as 1 for dark and 0 for light.')
    return Picture('SBM-Transformer, Figure 3: nodes, clusters and expected masks', rows, remarks,
                   _draw_planes(cases, probability))


def _expectation(query: Tensor, cluster: Tensor, key: Tensor, softmax_over: str = 'all') -> Tensor:
    affinity = cluster @ cluster.T
    mixing = (affinity.softmax(dim=1) if softmax_over == 'row'
              else affinity.flatten().softmax(dim=0).view_as(affinity))
    return FactorModel((query @ cluster.T).sigmoid(), mixing,
                       (key @ cluster.T).sigmoid()).expectation()


def _draw_planes(cases: dict[str, tuple[Tensor, Tensor, Tensor]],
                 probability: dict[str, Tensor]) -> Figure:
    figure = Figure(figsize=(8.6, 5), layout='constrained')
    planes, masks = figure.subplots(2, len(cases))
    for plane, axes, (name, (query, cluster, key)) in zip(planes, masks, cases.items()):
        plane.scatter(*query.T.numpy(), s=16, color=QUERY, label='query')
        plane.scatter(*key.T.numpy(), s=16, color=KEY, marker='s', label='key')
        plane.scatter(*cluster.T.numpy(), s=70, color='C0', marker='*', label='cluster')
        plane.plot(0, 0, '+', color='0.4', markersize=10, label='origin')
        plane.set(xlim=(-6, 6), ylim=(-6, 6), xticks=[], yticks=[], aspect='equal')
        plane.set_title(name)
        image = axes.imshow(probability[name].numpy(), vmin=0, vmax=1)
        axes.set_title(f'greatest p: {probability[name].max():.2f}')
        axes.set(xticks=[], yticks=[], xlabel='key j', ylabel='query i')
    figure.colorbar(image, ax=masks, label='probability p', shrink=0.85)
    figure.legend(*planes[0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
    figure.suptitle('SBM-Transformer, Fig. 3: expected masks under Eq. 5')
    return figure


# Figure 6 ########################################################################################

def sbm_6(seed: int = 0) -> Picture:
    """Draw the three patterns of Lemma 2 at n = 16 and k = 4, and count the layers until every
    token reaches every other."""
    n, clusters = 16, 4
    graphs = [pattern.build(n) for pattern in lemma_2(clusters)]
    printed_order = universality(graphs, seed=seed)
    other_order = universality([graphs[0], graphs[2], graphs[1]], seed=seed)
    rectangles = [is_rectangle(graph) for graph in graphs]
    clusters_of_formula = len({position * clusters // n for position in range(1, n + 1)})
    rows = (
        Row('layers until all tokens know all, s', 3, printed_order.layers, other_order.layers),
        Row('Hamiltonian path in the union', True, printed_order.hamiltonian_path),
        Row('self-loops in every pattern', True, printed_order.self_loops),
        Row('patterns that Eq. 5 can give probability 1', 3, sum(rectangles)),
        Row('clusters of floor(ik/n), i = 1..n', clusters, clusters_of_formula),
        Row('edges of the three patterns', 'O(kn)', sum(graph.num_edges for graph in graphs)),
        Row('least edges for any k, 2 sqrt(2) n^(3/2)', None, 2 * math.sqrt(2) * n**1.5))
    remarks = (
        f'Lemma 2 says s = 3. In the order printed s = {printed_order.layers}: in layer 2, all '
        f'attend to relays that know only their own cluster. Fitted: the order A1, A3, A2, with s '
        f'= {other_order.layers}.',
        'floor(ik/n) with i from 1 makes k + 1 clusters; (i - 1) is drawn here. The edges are '
        'n^2/k + 2kn + 2(n - k), which is not O(n) for any k. The path of the proof visits relays '
        'twice; another path exists.',
        'The paper calls all three patterns easily representable. A2 and A3 are rectangles, apart '
        'from self-loops that are added by hand. A1 is not, so Eq. 5 cannot assign it probability '
        '1.')
    return Picture('SBM-Transformer, Figure 6: the three patterns of Lemma 2', rows, remarks,
                   _draw_lemma(graphs, clusters, printed_order, other_order))


def _draw_lemma(graphs: list[BipartiteGraph], clusters: int, printed_order: Universality,
                other_order: Universality) -> Figure:
    figure = Figure(figsize=(8.6, 2.9), layout='constrained')
    *masks, curves = figure.subplots(1, len(graphs) + 1)
    for number, (axes, graph) in enumerate(zip(masks, graphs), start=1):
        _draw_clusters(axes, graph, clusters)
        axes.set_title(f'A{number}: ' + ('a rectangle' if is_rectangle(graph) else 'no rectangle'))
    for result, order in ((printed_order, 'A1, A2, A3'), (other_order, 'A1, A3, A2')):
        curves.plot(np.arange(1, result.reach.size + 1), 100 * result.reach, 'o-', markersize=4,
                    label=f'{order}: s = {result.layers}')
    curves.set(xlabel='layers', ylabel='pairs reached [%]', ylim=(0, 105),
               xticks=range(1, printed_order.reach.size + 1))
    curves.set_title('order of the layers')
    curves.legend(loc='lower right')
    curves.grid()
    curves.set_box_aspect(1)
    figure.suptitle('SBM-Transformer, Fig. 6: Lemma 2 at n = 16, k = 4 (grey: added self-loops)')
    return figure


def _draw_clusters(axes: Axes, graph: BipartiteGraph, clusters: int) -> None:
    """Draw the edges of a graph, each in the colour of its cluster."""
    n, only_one = graph.num_queries, is_rectangle(graph)
    mask = graph.to_mask().numpy()
    query, key = np.nonzero(mask)
    color = np.zeros((n, n), dtype=int)
    color[query, key] = 2 + (0 if only_one else 1) * (query * clusters // n)
    if only_one:
        is_full = mask.all(axis=1)[:, None] | mask.all(axis=0)
        color[mask & ~is_full] = 1
    axes.imshow(color, cmap=ListedColormap(['white', '0.6', *(f'C{u}' for u in range(clusters))]),
                vmin=0, vmax=1 + clusters, interpolation='none')
    draw_grid(axes, n)
    axes.set(xticks=[], yticks=[], xlabel='key j', ylabel='query i')
