"""All measurements of a graph on one self-contained HTML page."""

import base64
import inspect
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from html import escape
from os import PathLike
from types import ModuleType

from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.sparse.linalg import ArpackError
from torch import Tensor

from analysis import diffusion, drawings, expander, hamiltonian, mixing, spectrum, universality
from analysis.command import token_lines
from analysis.diffusion import MAX_DENSE
from analysis.graphs import GraphLike, as_graph
from analysis.result import (
    Result,
    Results,
    has_one_column,
    meanings,
    with_values,
)
from analysis.spectrum import FULL_NODES
from graphattn import BipartiteGraph, draw

Graphs = dict[str, list[BipartiteGraph]]
_EXTREMES = 6  # number of eigenvalues at both ends, for a graph too large to compute all
_MAX_MASKS = 7
_MAX_NAMED = 80  # number of tokens whose names are beside them
_PIXELS_PER_INCH = 80
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #ddd; --quiet: #666; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }}
h1, h2 {{ line-height: 1.2; overflow-wrap: anywhere; }}
nav a {{ margin-right: 1rem; }}
section {{ border-top: 1px solid var(--line); margin-top: 2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .15rem 1.2rem .15rem 0; }}
th, td {{ text-align: left; }}
th:first-child {{ background: Canvas; left: 0; position: sticky; }}
tbody th, td + td {{ color: var(--quiet); font-weight: normal; }}
img {{ display: block; margin: 1rem 0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --line: #444; --quiet: #aaa; }}
  img {{ filter: invert(.93) hue-rotate(180deg); }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
{lead}<nav>{links}</nav>
{sections}
</body>
</html>
"""


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
    """A question on the page of a report, with its results."""

    title: str
    text: str
    results: Results
    figure: Figure | None = None
    refusal: str | None = None


def size(graph: GraphLike) -> Size:
    graph = as_graph(graph)
    return Size(graph.num_queries, graph.num_keys, graph.num_edges, graph.density(),
                int((graph.key == graph.query).sum()),
                *_min_mean_max(graph.in_degree()), *_min_mean_max(graph.out_degree()))


def sections(graphs: Graphs, *, time_limit: float = 30., seed: int = 0,
             names: Sequence[str] | None = None) -> Iterator[Section]:
    """Yield the sections of a report: one for each question that :mod:`analysis` answers about
    graphs."""
    search = {'time_limit': time_limit, 'seed': seed}
    pairs = [(label, segment) for label, segments in graphs.items() for segment in segments]
    first_label, first = pairs[0]
    if len(pairs) == 1 and _is_drawn(first):
        yield Section('Network', 'An arrow points from a token to a token that attends to it. If '
                                 'all edges have their reverse, they are lines.', {},
                      _draw_network(first, names))
    yield Section('Size', 'Tokens and edges, and the distributions of edges over queries and '
                          'keys.', _answers(graphs, size), _draw_sizes(pairs))
    yield _asked('Spectrum', spectrum, graphs, _spectrum, drawings.draw_spectrum)
    yield _asked('Expansion', expander, graphs, expander.expander, drawings.draw_expander)
    yield _asked('Mixing', mixing, graphs, mixing.mixing, drawings.draw_mixing)
    yield _asked('Hamiltonian path', hamiltonian, graphs,
                 lambda graph: hamiltonian.hamiltonian_path(graph, **search).named(names),
                 lambda results: drawings.draw_hamiltonian(results, graphs))
    yield _asked('Universality', universality, graphs,
                 lambda graph: universality.universality([graph], **search).named(names),
                 lambda results: drawings.draw_universality({first_label: first},
                                                           results[first_label][0]))
    yield _asked('Diffusion', diffusion, graphs, _diffusion, drawings.draw_diffusion)


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


def _is_drawn(graph: BipartiteGraph) -> bool:
    return (graph.num_queries == graph.num_keys <= draw.MAX_NODES
            and graph.num_edges <= draw.MAX_ARROWS)


def _draw_network(graph: BipartiteGraph, names: Sequence[str] | None) -> Figure:
    side = 5 + min(graph.num_keys, 200) / 40  # inches
    figure = Figure(figsize=(side, 0.9 * side), layout='constrained')
    shown = None if names is None or len(names) > _MAX_NAMED else [
        drawings.as_text(name) for name in names]
    draw.network(graph, axes=figure.subplots(), names=shown)
    return figure


def _draw_sizes(pairs: list[tuple[str, BipartiteGraph]]) -> Figure:
    shown = pairs[:_MAX_MASKS]
    rows = math.ceil((len(shown) + 2) / 3)
    figure = Figure(figsize=(9, 3.3 * rows), layout='constrained')
    panels = figure.subplots(rows, 3, squeeze=False).flatten()
    for number, (axes, (label, graph)) in enumerate(zip(panels, shown)):
        draw.mask(graph, axes=axes)
        if len(pairs) > 1:
            axes.set_title(f'{number}: {drawings.as_text(label)}', fontsize='small')
    *_, of_queries, of_keys = panels[:len(shown) + 2]
    for axes, degree, title in ((of_queries, BipartiteGraph.in_degree, 'keys of a query'),
                                (of_keys, BipartiteGraph.out_degree, 'queries of a key')):
        for number, (_, graph) in enumerate(shown):
            axes.plot(degree(graph).sort(descending=True).values, color=f'C{number}', label=number,
                      linestyle=drawings.STYLES[number % len(drawings.STYLES)])
        axes.set(title=title, xlabel='tokens, the most first', ylim=(0, None))
        axes.locator_params(nbins=4, integer=True, min_n_ticks=1)
        axes.grid(alpha=0.3)
    if len(pairs) > 1:
        figure.legend(*of_keys.get_legend_handles_labels(), loc='outside lower center',
                      ncols=len(shown))
    for axes in panels[:len(shown) + 2]:
        axes.set_box_aspect(1)
    for axes in panels[len(shown) + 2:]:
        axes.remove()
    return figure


def profile_sections(path: str | PathLike) -> list[Section]:
    from graphattn.hugging_face import Profile

    profile = Profile.load(path)
    rows = profile.as_table()
    of_head = make_dataclass('HeadProfile', rows[0], bases=(Result,), frozen=True)
    heads = [of_head(**row) for row in rows]
    text = (f'{profile!r}. The columns are: the mean number of keys of a row, and of the keys '
            'that together have 90, 95 and 99 % of its weight; the share of the weight on the '
            'first token, on special tokens, on other tokens, and at distances below 8; the '
            'entropy in nats; the effective rank; and the overlap of edges and of distances with '
            'those of the input before.')
    return [Section('Heads', text, {'heads': heads}, draw.profile(profile))]


def page(title: str, sections: Sequence[Section], names: Sequence[str] | None = None,
         said: str | None = None) -> str:
    """Return the page of a report, with embedded figures and what was ``said`` of the file."""
    links = '\n'.join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>'
                      for section in sections)
    parts = '\n'.join(_section(section, names) for section in sections)
    lead = ''.join(f'<p>{escape(text)}</p>\n' for text in (said, ' '.join(_lead(sections))) if text)
    return _PAGE.format(title=escape(title), lead=lead, links=links, sections=parts)


def _lead(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the answers about a graph in sentences; about several there are none."""
    found = {section.title: samples[0] for section in sections
             for samples in section.results.values()
             if len(section.results) == len(samples) == 1}
    if 'Size' in found:
        size = found['Size']
        yield (f'{size.keys:,} tokens and {size.edges:,} edges from a key to a query, '
               f'{100 * size.density:.3g} % of all pairs: a query attends to '
               f'{size.mean_keys_of_a_query:.3g} keys on average, and to '
               f'{size.max_keys_of_a_query:,} at most.')
    if 'Expansion' in found:
        expansion = found['Expansion']
        ways = '' if expansion.symmetrization == 'not needed' else ', followed in both directions'
        bound = '' if expansion.diameter_is_exact else ', or more'
        yield (f'The graph is connected, and any two tokens are at most {expansion.diameter} edges '
               f'apart{ways}{bound}; its spectral gap is {expansion.lambda_2:.3g}.'
               if expansion.is_connected else
               f'The graph falls into {expansion.num_components:,} parts without an edge between '
               f'them.')
    if 'Mixing' in found:
        steps = found['Mixing'].mixing_time
        yield ('A random walk along the edges never forgets its start.' if steps is None else
               f'A random walk along the edges forgets its start in {steps:,} steps.')
    if 'Hamiltonian path' in found:
        path = found['Hamiltonian path']
        yield {True: 'A path along the edges visits every token once.',
               False: f'No path along the edges visits every token once: {path.reason}.',
               None: f'Whether a path visits every token once is unknown: {path.reason}.'
               }[path.exists]


def _section(section: Section, names: Sequence[str] | None) -> str:
    parts = [f'<h2>{escape(section.title)}</h2>', f'<p>{escape(section.text)}</p>']
    if section.refusal:
        parts.append(f'<p><strong>Not asked:</strong> {escape(section.refusal)}</p>')
    if section.results:
        rows, left_out = with_values(section.results)
        if has_one_column(rows):
            meaning = meanings(section.results)
            rows = [[*row, meaning.get(row[0], '')] for row in rows]
        parts.append(_table(rows))
        parts += [f'<p>{escape(left_out)}</p>'] if left_out else []
        parts += [f'<p>{escape(line)}</p>' for line in token_lines(section.results, names)]
    if section.figure:
        drawings.name_tokens(section.figure, names)
        parts.append(f'<div class="wide">{_picture(section.figure, section.title)}</div>')
    return f'<section id="{_anchor(section)}">\n' + '\n'.join(parts) + '\n</section>'


def _anchor(section: Section) -> str:
    return section.title.lower().replace(' ', '-')


def _table(rows: list[list[str]]) -> str:
    header, *body = rows
    head = ''.join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = ''.join(f'<tr><th scope="row">{escape(first)}</th>'
                    + ''.join(f'<td>{escape(cell)}</td>' for cell in rest) + '</tr>\n'
                    for first, *rest in body)
    return (f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody>\n'
            f'</table></div>')


def _picture(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    with rc_context({'savefig.dpi': 2 * _PIXELS_PER_INCH}):  # for fine screens
        figure.savefig(buffer, format='png')
    content = base64.b64encode(buffer.getvalue()).decode()
    width = round(_PIXELS_PER_INCH * figure.get_figwidth())
    return (f'<img alt="{escape(title)}" width="{width}" '
            f'src="data:image/png;base64,{content}">')
