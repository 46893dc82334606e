"""Pictures of graphs show their edges."""

import math
import sys

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from graphattn import BipartiteGraph, draw, patterns
from graphattn.layers import GraphAttention, GraphTransformerConv
from tests.graphs import GRAPHS, random_graph


@pytest.fixture(autouse=True)
def without_display():
    """Figures are those of a screen that nobody looks at, and closed."""
    pyplot.switch_backend('agg')
    yield
    pyplot.close('all')


@pytest.mark.parametrize('name', GRAPHS)
def test_a_mask_is_that_of_the_graph(name):
    graph = GRAPHS[name]()
    image, = draw.mask(graph).get_images()
    shape = (max(graph.num_queries, 1), max(graph.num_keys, 1))
    expected = np.zeros(shape)
    expected[:graph.num_queries, :graph.num_keys] = graph.to_mask().numpy()
    assert (image.get_array() == expected).all()


@pytest.mark.parametrize('key', range(100, 108))
def test_an_edge_is_seen_where_pixels_are_fewer_than_tokens(key):
    everyone = torch.arange(512)
    pairs = torch.stack([torch.full_like(everyone, key), everyone])
    graph = BipartiteGraph.from_edge_index(pairs, 512)
    figure = Figure(figsize=(2, 2), dpi=80)
    draw.mask(graph, axes=figure.add_axes((0, 0, 1, 1))).axis('off')
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert np.ptp(np.asarray(canvas.buffer_rgba())[80, :, 0]) > 30


@pytest.mark.parametrize('name', GRAPHS)
def test_a_bipartite_picture_has_a_line_for_each_edge(name):
    graph = GRAPHS[name]()
    lines = draw.bipartite(graph).collections[0].get_segments()
    assert len(lines) == graph.num_edges
    assert all((line[:, 1] == [1, 0]).all() for line in lines)


GRAPH = random_graph(3, 3)
DRAWINGS = {
    'mask': lambda axes: draw.mask(GRAPH, axes=axes),
    'bipartite': lambda axes: draw.bipartite(GRAPH, axes=axes),
    'degrees': lambda axes: draw.degrees(GRAPH, axes),
    'network': lambda axes: draw.network(GRAPH, torch.ones(GRAPH.num_edges), axes),
    'received_attention': lambda axes: draw.received_attention(GRAPH, torch.ones(GRAPH.num_edges),
                                                               axes),
    'spectrum': lambda axes: draw.spectrum([0, 1], axes),
    'receptive_field': lambda axes: draw.receptive_field(np.ones((3, 3)), axes),
    'times': lambda axes: draw.times({'a': {4: 1.}}, axes),
}


@pytest.mark.parametrize('name', DRAWINGS)
def test_draws_where_it_is_told_to_or_on_a_figure_that_notebooks_show(name):
    given = Figure().subplots()
    assert DRAWINGS[name](given) is given and pyplot.get_fignums() == []
    own = DRAWINGS[name](None)
    assert own.get_figure() is pyplot.gcf() and own.get_title() == given.get_title()


def test_segments_stand_side_by_side():
    graph = BipartiteGraph.batch([random_graph(n, n) for n in (5, 3, 7, 2, 4)])
    figure = draw.segments(graph, columns=3)
    shapes = [axes.get_images()[0].get_array().shape for axes in figure.axes]
    assert shapes == [(5, 5), (3, 3), (7, 7), (2, 2), (4, 4)]


WITH_WEIGHTS = {
    'mask': lambda graph, weights: draw.mask(graph, weights).get_images(),
    'heads': lambda graph, weights: draw.heads(graph, weights).axes[0].get_images(),
    'received_attention': lambda graph, weights: draw.received_attention(graph, weights).lines,
    'network': lambda graph, weights: draw.network(graph, weights).collections,
    'bipartite': lambda graph, weights: draw.bipartite(graph, weights).collections[:1],
}
SHOWN = {'received_attention': 'get_ydata', 'network': 'get_sizes'}  # of what is drawn


@pytest.mark.parametrize('name', WITH_WEIGHTS)
def test_weights_come_with_their_edges_or_in_a_known_order(name):
    def shown(graph, weights):
        drawn, = WITH_WEIGHTS[name](graph, weights)
        return getattr(drawn, SHOWN.get(name, 'get_array'))()

    num_keys = 9 if name == 'network' else 7
    graph = random_graph(9, num_keys)
    alpha, order = torch.rand(graph.num_edges), torch.randperm(graph.num_edges)
    edge_index = graph.edge_index.as_tensor()[:, order]
    sorted_here = BipartiteGraph.from_edge_index(edge_index, 9, num_keys)
    expected = shown(graph, alpha)
    for edges in (graph, sorted_here):
        assert (shown(edges, (edge_index, alpha[order])) == expected).all()
        assert (shown(edges, (graph.edge_index, alpha)) == expected).all()
    with pytest.raises(ValueError, match="'weights' must be a pair .edge_index, alpha"):
        shown(sorted_here, alpha[order])
    repeated = edge_index.clone()
    repeated[:, 0] = repeated[:, 1]
    with pytest.raises(ValueError, match="'weights' must have the edges of 'graph'"):
        shown(graph, (repeated, alpha))


def arrows(axes):
    """The key, the query and the colour of each arrow, whose ends are 10 apart."""
    return {(*(round(float(place[0])) // 10 for place in arrow._posA_posB), arrow.get_facecolor())
            for arrow in axes.patches}


def test_a_network_has_an_arrow_for_each_edge_the_darker_the_larger_its_weight():
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 3]])
    graph = BipartiteGraph.from_edge_index(edge_index, 4)
    places = torch.tensor([[0., 0.], [10., 0.], [20., 0.], [30., 0.]])
    axes = draw.network(graph, (edge_index, torch.tensor([.2, 1., .6, 0.])), positions=places,
                        names=list('abcd'))
    light = {ends: colour[0] for *ends, colour in arrows(axes) for ends in [tuple(ends)]}
    assert light.keys() == {(0, 1), (1, 0), (2, 3)}
    assert light[1, 0] < light[2, 3] < light[0, 1]
    assert len(axes.lines) == 1  # the ring of node 3
    assert [text.get_text() for text in axes.texts] == list('abcd')
    points, = axes.collections
    torch.testing.assert_close(torch.tensor(points.get_sizes() - 15).float(),
                               120 * torch.tensor([.2, 1., .6, 0.]))


def test_an_undirected_network_has_lines_and_any_graph_has_places():
    undirected = patterns.SlidingWindow(1).build(5)
    axes = draw.network(undirected)
    lines, _ = axes.collections
    assert (len(lines.get_segments()), len(axes.lines)) == (8, 5)  # one in each direction, rings
    for num_nodes in (0, 1, 2, 5):  # without edges, and so without a path between all
        graph = BipartiteGraph.from_edge_index(torch.empty(2, 0, dtype=torch.long), num_nodes)
        assert len(draw.network(graph).texts) == num_nodes


def test_the_pair_that_layers_return_is_drawn():
    edge_index = torch.tensor([[2, 0, 1], [0, 0, 2]])
    for layer in (GraphTransformerConv(4, 2), GraphAttention(4, 1)):
        is_conv = isinstance(layer, GraphTransformerConv)
        graph = BipartiteGraph.from_edge_index(edge_index, 3)
        call = (edge_index,) if is_conv else (torch.tensor([0, 3]),)
        _, pair = layer(torch.randn(3, 4), *call, return_attention_weights=True,
                        **({} if is_conv else {'graph': graph}))
        image, = draw.heads(graph, pair).axes[0].get_images()
        expected = torch.zeros(3, 3)
        expected[pair[0][1], pair[0][0]] = pair[1][:, 0].detach()
        torch.testing.assert_close(torch.tensor(image.get_array()).float(), expected)


REFUSED = {
    'many edges': (lambda: draw.bipartite(patterns.Full().build(200)), "'graph' .* 20,000 edges"),
    'titles': (lambda: draw.segments(GRAPH, ['a', 'b']), "'titles' must.*title.*got 2"),
    'rectangle': (lambda: draw.network(random_graph(3, 4)), "'graph' .*got 4 keys and 3 queries."),
    'many nodes': (lambda: draw.network(patterns.Full().build(501)), "'graph' .*got 501 and 251"),
    'names': (lambda: draw.network(GRAPH, names=['a']), "'names' must contain 3 names, .*got 1"),
    'places': (lambda: draw.network(GRAPH, positions=torch.zeros(2, 3)), "'positions' .*.2, 3"),
    'names of queries': (lambda: draw.bipartite(GRAPH, names=['abc', 'a']), "'names' .*got 1"),
    'eigenvalues': (lambda: draw.spectrum([0]), "'values' must contain at least two eigenvalues"),
}


@pytest.mark.parametrize('call, match', REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_drawn_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize('name', WITH_WEIGHTS)
def test_weights_that_cannot_be_drawn_are_refused(name):
    more = torch.ones(GRAPH.num_edges + 1)
    for bad in (more, more.tolist(), more[0], *(more[1:].index_fill(0, torch.tensor(1), shade)
                                                for shade in (math.nan, math.inf, -1.))):
        with pytest.raises((TypeError, ValueError), match="'weights' must"):
            WITH_WEIGHTS[name](GRAPH, bad)


@pytest.mark.parametrize('other', [None, torch.ones(3, 3), patterns.Full()])
def test_what_is_not_a_graph_is_refused_with_the_way_to_one(other):
    refusal = f"'graph' must be a BipartiteGraph .got {type(other).__name__}.;.*build"
    for function in ('bipartite', 'degrees', 'mask', 'network', 'segments'):
        with pytest.raises(TypeError, match=refusal):
            getattr(draw, function)(other)
    for function in (draw.heads, draw.received_attention):
        with pytest.raises(TypeError, match=refusal):
            function(other, torch.ones(2))
    with pytest.raises(TypeError, match="'profile' must be a Profile"):
        draw.profile(other)


def test_a_layout_of_networkx_gives_the_places():
    places = {name: (number, 2. * number) for number, name in enumerate('cab')}
    by_name = draw.network(GRAPH, names='abc', positions=places)
    by_number = draw.network(GRAPH, positions={0: (1, 2.), 1: (2, 4.), 2: (0, 0.)})
    for axes in (by_name, by_number):
        assert axes.collections[-1].get_offsets().tolist() == [[1, 2], [2, 4], [0, 0]]
    with pytest.raises(ValueError, match="'positions' must have shape .3, 2.*got shape .2, 2"):
        draw.network(GRAPH, names='abd', positions=places)


def test_notebooks_show_a_picture_or_without_matplotlib_the_text(monkeypatch):
    graph = random_graph(4, 6)
    for shown in (graph, patterns.Star()):
        assert 'data:image/png;base64,' in shown._repr_html_()
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    assert graph._repr_html_() == f'<pre>{graph!r}</pre>'


def test_without_matplotlib_the_reason_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    with pytest.raises(ImportError, match='^pictures need matplotlib: pip install matplotlib$'):
        draw.mask(random_graph(4, 6))
