"""Pictures of graphs show their edges."""

import base64
import re
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from graphattn import BipartiteGraph, draw, patterns
from tests.graphs import GRAPHS, random_graph


@pytest.mark.parametrize('name', GRAPHS)
def test_a_mask_is_that_of_the_graph(name):
    graph = GRAPHS[name]()
    image, = draw.mask(graph).get_images()
    shape = (max(graph.num_queries, 1), max(graph.num_keys, 1))
    expected = np.zeros(shape)
    expected[:graph.num_queries, :graph.num_keys] = graph.to_mask().numpy()
    assert (image.get_array() == expected).all()


def test_what_is_larger_is_drawn_as_densities():
    graph = patterns.SlidingWindow(10).build(1300, 3000)
    image, = draw.mask(graph).get_images()
    share = image.get_array()
    assert share.shape == (512, 512) and 0 <= share.min() and share.max() <= 1
    rows, columns = (np.bincount(np.arange(side) * 512 // side) for side in (1300, 3000))
    assert (share * np.outer(rows, columns)).sum() == pytest.approx(graph.num_edges)


@pytest.mark.parametrize('name', GRAPHS)
def test_a_bipartite_picture_has_a_line_for_each_edge(name):
    graph = GRAPHS[name]()
    lines = draw.bipartite(graph).collections[0].get_segments()
    assert len(lines) == graph.num_edges
    assert all((line[:, 1] == [1, 0]).all() for line in lines)


def test_blocks_stand_side_by_side():
    graph = BipartiteGraph.batch([random_graph(n, n) for n in (5, 3, 7, 2, 4)])
    figure = draw.blocks(graph, columns=3)
    shapes = [axes.get_images()[0].get_array().shape for axes in figure.axes]
    assert shapes == [(5, 5), (3, 3), (7, 7), (2, 2), (4, 4)]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="'graph' must have at most 20,000 edges"):
        draw.bipartite(patterns.Full().build(200))
    with pytest.raises(ValueError, match="'titles' must be one for each of the 1 blocks"):
        draw.blocks(random_graph(3, 3), ['a', 'b'])


@pytest.mark.parametrize('shown', [random_graph(4, 6), patterns.parse('SlidingWindow(2) | Star()'),
                                   patterns.get('bigbird')], ids=str)
def test_notebooks_show_a_picture(shown):
    page = shown._repr_html_()
    picture = re.search(r'base64,([^"]+)"', page)[1]
    assert base64.b64decode(picture).startswith(b'\x89PNG') and '<pre>' in page


def test_without_matplotlib_notebooks_show_the_text(monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    graph = random_graph(4, 6)
    assert graph._repr_html_() == f'<pre>{graph!r}</pre>'


def test_pictures_are_written_in_any_format(tmp_path):
    figure = draw.mask(random_graph(4, 6)).get_figure()
    assert isinstance(figure, Figure)
    for kind in ('png', 'svg'):
        figure.savefig(tmp_path / f'graph.{kind}')
        assert (tmp_path / f'graph.{kind}').stat().st_size > 1000
