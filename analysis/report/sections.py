"""Sections of a report: all questions, asked of the same graphs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from matplotlib.figure import Figure
from scipy.sparse.linalg import ArpackError
from torch import Tensor

from analysis import diffusion, expander, hamiltonian, mixing, spectrum, universality
from analysis.diffusion import drawing as diffusion_drawing
from analysis.diffusion.operators import MAX_DENSE
from analysis.expander import drawing as expander_drawing
from analysis.graphs import GraphLike, as_graph
from analysis.hamiltonian import drawing as hamiltonian_drawing
from analysis.labels import as_text
from analysis.mixing import drawing as mixing_drawing
from analysis.result import Result, Results
from analysis.spectrum import drawing as spectrum_drawing
from analysis.spectrum.question import FULL_NODES
from analysis.universality import drawing as universality_drawing
from graphattn import BipartiteGraph, draw

Graphs = dict[str, list[BipartiteGraph]]
_EXTREMES = 6  # number of eigenvalues at both ends, for a graph too large to compute all
_MAX_MASKS = 7


@dataclass(frozen=True)
class Size(Result):
    """The numbers of tokens and edges of a graph, and its degrees."""

    queries: int
    keys: int
    edges: int
    density: float
    self_loops: int
    min_keys_of_a_query: int
    mean_keys_of_a_query: float
    max_keys_of_a_query: int
    min_queries_of_a_key: int
    mean_queries_of_a_key: float
    max_queries_of_a_key: int


@dataclass(frozen=True)
class Section:
    """A question on the page of a report, with its results.

    Attributes:
        title (str): The heading.
        text (str): A description of the question.
        results (dict): The results by label; empty if the question was refused.
        figure (Figure, optional): The figure of the results.
        refusal (str, optional): The reason why the question does not apply to these graphs.
    """

    title: str
    text: str
    results: Results
    figure: Figure | None = None
    refusal: str | None = None


def size(graph: GraphLike) -> Size:
    """Count the tokens and edges of a graph.

    Args:
        graph: See :func:`analysis.graphs.as_graph`.
    """
    graph = as_graph(graph)
    return Size(graph.num_queries, graph.num_keys, graph.num_edges, graph.density(),
                int((graph.key == graph.query).sum()),
                *_min_mean_max(graph.in_degree()), *_min_mean_max(graph.out_degree()))


def sections(graphs: Graphs, *, time_limit: float = 30., seed: int = 0,
             names: Sequence[str] | None = None) -> Iterator[Section]:
    """Yield the sections of a report: one for each question that :mod:`analysis` answers about
    graphs.

    Args:
        graphs (dict): Lists of graphs by label. The graphs of a label are the segments of one
            graph.
        time_limit (float): Time limit in seconds of each search for a Hamiltonian path.
        seed (int): Seed of the search.
        names (sequence of str, optional): The names of the tokens.

    Yields:
        A Section for each question. If a question does not apply to these graphs, its section has
            the reason instead of results.
    """
    search = {'time_limit': time_limit, 'seed': seed}
    pairs = [(label, segment) for label, segments in graphs.items() for segment in segments]
    first_label, first = pairs[0]
    yield Section('Size', 'Tokens and edges, and the distributions of edges over queries and '
                          'keys.', _answers(graphs, size),
                  _draw_sizes(pairs))
    yield _asked('Spectrum', spectrum, graphs, _spectrum, spectrum_drawing.draw)
    yield _asked('Expansion', expander, graphs, expander.expander, expander_drawing.draw)
    yield _asked('Mixing', mixing, graphs, mixing.mixing, mixing_drawing.draw)
    yield _asked('Hamiltonian path', hamiltonian, graphs,
                 lambda graph: hamiltonian.hamiltonian_path(graph, **search).named(names),
                 lambda results: hamiltonian_drawing.draw(graphs, results))
    yield _asked('Universality', universality, graphs,
                 lambda graph: universality.universality([graph], **search).named(names),
                 lambda results: universality_drawing.draw({first_label: first},
                                                           results[first_label][0]))
    yield _asked('Diffusion', diffusion, graphs, _diffusion, diffusion_drawing.draw)


def _asked(title: str, package: ModuleType, graphs: Graphs,
           question: Callable[[BipartiteGraph], Result],
           drawing: Callable[[Results], Figure]) -> Section:
    text = ' '.join(inspect.getdoc(package).partition('\n\n')[0].split())
    try:
        results = _answers(graphs, question)
    except (ArpackError, MemoryError, ValueError) as error:
        return Section(title, text, {}, refusal=' '.join(str(error).split()))
    return Section(title, text, results, drawing(results))


def _answers(graphs: Graphs, question: Callable[[BipartiteGraph], Result]) -> Results:
    return {label: [question(segment) for segment in segments]
            for label, segments in graphs.items()}


def _spectrum(graph: BipartiteGraph) -> Result:
    is_small = min(graph.num_queries, graph.num_keys) <= FULL_NODES
    return spectrum.spectrum(graph, extremes=None if is_small else _EXTREMES)


def _diffusion(graph: BipartiteGraph) -> Result:
    return diffusion.diffusion(graph, spectra=graph.num_queries <= MAX_DENSE)


def _min_mean_max(degree: Tensor) -> tuple[int, float, int]:
    if degree.numel() == 0:
        return 0, 0., 0
    return int(degree.min()), float(degree.double().mean()), int(degree.max())


def _draw_sizes(pairs: list[tuple[str, BipartiteGraph]]) -> Figure:
    """Draw the mask of each graph, and the distribution of the degrees of its tokens."""
    shown = pairs[:_MAX_MASKS]
    rows = math.ceil((len(shown) + 2) / 3)
    figure = Figure(figsize=(9, 3.3 * rows), layout='constrained')
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for number, (axes, (label, graph)) in enumerate(zip(panels, shown)):
        draw.mask(graph, axes)
        if len(pairs) > 1:
            axes.set_title(f'{number}: {as_text(label)}', fontsize='small')
    *_, of_queries, of_keys = panels[:len(shown) + 2]
    for axes, degree, title in ((of_queries, BipartiteGraph.in_degree, 'keys of a query'),
                                (of_keys, BipartiteGraph.out_degree, 'queries of a key')):
        for number, (_, graph) in enumerate(shown):
            axes.hist(degree(graph).numpy(), bins=40, histtype='step', color=f'C{number}',
                      label=str(number))
        axes.set(xlabel=title, ylabel='tokens')
        axes.locator_params(axis='x', nbins=4, integer=True, min_n_ticks=1)
        axes.grid(alpha=0.3)
        if len(pairs) > 1:
            axes.legend(fontsize='small')
    for axes in panels[:len(shown) + 2]:
        axes.set_box_aspect(1)
    for axes in panels[len(shown) + 2:]:
        axes.remove()
    return figure
