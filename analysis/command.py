"""Options, files and errors that all commands of analysis share."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentError, Namespace
from scipy.sparse.linalg import ArpackError
from tqdm import tqdm

from analysis.graph_files import ENDINGS as GRAPH_ENDINGS
from analysis.graph_files import read_graph_file
from analysis.graphs import MAX_TOKENS, GraphLike, check_count, graph_of_pattern
from analysis.result import Result, Results, scalar_names, table
from experiments.runs.command import in_short
from experiments.runs.command_line import Parser
from experiments.signals import ending_signals, exit_on
from graphattn.patterns import Full, parse
from graphattn.style import in_style
from graphattn.utils.files import check_folder, csv_cell, write_whole
from graphattn.utils.memory import within_free_memory
from graphattn.utils.trust import importing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Graphs = dict[str, list[GraphLike]]
Names = Sequence[str] | None  # names of the tokens of a graph file

ENDINGS = '.json', '.csv', '.png', '.svg', '.pdf'
_SHOWN = 20  # token names per line
# Allowed ranges of options; a command would not end in practice with larger values.
LIMITS = {'n': (1, MAX_TOKENS), 'samples': (1, 10_000), 'hops': (1, 100_000),
          'steps': (1, 100_000), 'max_layers': (1, 100_000), 'clusters': (1, 100_000),
          'heads': (1, 1024), 'head_channels': (1, 4096),
          'seed': (0, 2**31 - 1)}  # the limit of OR-tools' seeds
REFUSALS = (ArgumentError, ArpackError, ImportError, MemoryError, OSError, OverflowError, TypeError,
            ValueError)
FILE_OPTIONS = 'format', 'header', 'numbered', 'edges', 'bipartite'


def ask(
    question: Callable[..., Result],
    draw: Callable[[Results, Graphs], Figure],
    arguments: list[str] | None = None,
    *,
    name: str,
    pattern: str = 'diffuser',
    n: int = 512,
) -> None:
    """Run a question as a command, whose options are the keyword arguments of ``question``."""
    parameters = inspect.signature(question).parameters
    parser = new_parser(name, pattern, n)
    parser.add_function_arguments(question, skip={'graph', 'weights', 'seed'})
    if 'weights' in parameters:
        parser.add_argument('--weights', type=bool, nargs='?', const=True,
                            default=parameters['weights'].default,
                            help='use the weights of the edges: those of a graph file, or the '
                                 'attention of a checkpoint, to as many examples as --samples '
                                 'states')

    def run(options: Namespace) -> None:
        graphs, names = load(options)
        settings = {key: options[key] for key in parameters if key != 'graph'}
        results = {label: [] for label in graphs}
        jobs = [(label, graph) for label, samples in graphs.items() for graph in samples]
        for label, graph in tqdm(jobs, desc=name, unit='graph', disable=len(jobs) == 1 or None):
            results[label].append(question(graph, **settings).named(names))
        show(options.out, name, results, lambda: draw(results, graphs), names)

    run_or_exit(parser, run, arguments)


def output_parser(name: str, endings: Sequence[str] = ENDINGS) -> Parser:
    """Return a parser with the option ``--out``, a folder or a file with one of ``endings``."""
    parser = Parser(prog=f'graphattn {name}', exit_on_error=False)
    parser.add_argument('--out', type=Path, default=Path('runs/analysis'),
                        help=f'a folder for results, or a file: {", ".join(endings)}')
    return parser


def new_parser(name: str, pattern: str, n: int,
               endings: Sequence[str] = ENDINGS) -> Parser:
    """Return a parser with the options that all commands of ``analysis`` share, for graphs and for
    output."""
    parser = output_parser(name, endings)
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument('--pattern', type=str, nargs='+', default=[pattern],
                         help='presets, or expressions such as "SlidingWindow(3) | Star()"')
    sources.add_argument('--graph', type=str,
                         help=f'a graph file instead of a pattern: {", ".join(GRAPH_ENDINGS)}, '
                              'or any other; each segment of a batched graph is measured '
                              'separately')
    sources.add_argument('--checkpoint', type=str,
                         help='the graphs of the layers and heads of a trained model instead of a '
                              'pattern: a checkpoint, or the folder of a run, whose tested '
                             'weights are measured')
    parser.add_function_arguments(read_graph_file, skip={'path', 'weights'})
    parser.add_argument('--trust', type=str, default='',
                        help="packages whose classes the checkpoint's config.yaml may name, "
                             "separated by commas")
    parser.add_argument('--import', type=str, default=None,
                        help='a module of yours to import first, such as mine or folder/mine.py, '
                             'which defines classes that --pattern or --checkpoint names')
    parser.add_argument('--example', type=int, default=0, help='index of the example in the test '
                                                               'set')
    parser.add_argument('--samples', type=int, default=8, help='number of sampled graphs per '
                                                               'head')
    parser.add_argument('--n', type=int, default=n, help='number of tokens')
    parser.add_argument('--seed', type=int, default=0, help='seed of random patterns and samples')
    return parser


def load(options: Namespace) -> tuple[Graphs, Names]:
    """Return the graphs that a command line names, and the names of their tokens."""
    weights = options.get('weights', False)
    if options.checkpoint is not None:
        from analysis.runs import attention_matrices, sampled_graphs  # imports all layers

        read = attention_matrices if weights else sampled_graphs
        return read(options.checkpoint, options.example, options.samples, options.seed,
                    options.trust.split(',')), None
    if options.graph is not None:
        file = read_graph_file(options.graph, weights=weights,
                               **{name: options[name] for name in FILE_OPTIONS})
        options.said = f'{Path(options.graph).name}: {file.said}'
        say(f'{options.graph}: {file.said}')
        return {Path(options.graph).name: file.segments()}, file.names
    graphs = {pattern: [graph_of_pattern(pattern, options.n, options.seed)]
              for pattern in options.pattern}
    for pattern, (graph,) in graphs.items():
        if graph.density() == 1 and not isinstance(parse(pattern), Full):
            say(f'{pattern} joins all pairs of {options.n} tokens, as Full() does; for a sparser '
                f'graph, pass a larger --n or smaller parameters')
    return graphs, None


def run_or_exit(parser: Parser, run: Callable[[Namespace], None],
                arguments: list[str] | None, endings: Sequence[str] = ENDINGS) -> None:
    """Parse the command line and run the command; on a user error, print one line and exit with
    status 2."""
    try:
        with importing(sys.argv[1:] if arguments is None else arguments) as words, \
                warnings.catch_warnings():
            warnings.filterwarnings('ignore', 'Glyph')  # names have letters that the font lacks
            options = parser.parse_args(words)
            for name, (least, most) in LIMITS.items():
                if options.get(name) is not None:
                    check_count(name, options[name], least, most)
            check_out(options.out, endings)
            with ending_signals(), within_free_memory():
                run(options)
    except KeyboardInterrupt as interrupt:
        exit_on(interrupt)
    except Exception as error:
        if not isinstance(error, REFUSALS):
            raise
        print(f'{parser.prog}: error: {in_short(error)}{_advice(error)}', file=sys.stderr)
        sys.exit(2)


def _advice(error: Exception) -> str:
    found = str(error).partition('unrecognized arguments: ')[2].partition(' ')[0]
    if not found or found.startswith('-'):
        return ''
    option = '--graph' if os.path.isfile(found) else '--pattern'  # a word may be too long for Path
    return f'; pass {option} {found}'


def show(out: Path, name: str, results: Results, draw: Callable[[], Figure],
         names: Names = None) -> None:
    """Write the results and the figure of a command to files, and print a table of the results."""
    def drawn() -> Figure:
        from analysis.drawings import name_tokens

        figure = draw()
        name_tokens(figure, names)
        return figure

    plain = {label: [sample.to_dict(names) for sample in samples]
             for label, samples in results.items()}
    written = save(out, name, {'.json': as_json(plain), '.csv': as_csv(results)}, drawn)
    say(table(results), *token_lines(results, names), written)


def say(*lines: object) -> None:
    """Print lines, and replace characters that the terminal cannot show."""
    encoding = getattr(sys.stdout, 'encoding', None) or 'utf-8'
    try:
        for line in lines:
            print(str(line).encode(encoding, 'replace').decode(encoding), flush=True)
    except BrokenPipeError:  # | head -1: the results are in files, and the status is 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def token_lines(results: Results, names: Names) -> list[str]:
    """Return a line of text for each field of the results that lists tokens, such as a path."""
    lines = []
    for label, samples in results.items() if names else ():
        for field, tokens in samples[0].tokens(names).items():
            rest = f'; ... {len(tokens)} in all, in the JSON file' if len(tokens) > _SHOWN else ''
            lines.append(f'{label}, {field.replace("_", " ")}: {"; ".join(tokens[:_SHOWN])}{rest}')
    return lines


def save(out: Path, name: str, texts: dict[str, str], draw: Callable[[], Figure]) -> str:
    """Write the results of a command to files, and return a line of text with their paths. A
    figure is drawn only if its file is one of them."""
    paths = [out / f'{name}{ending}' for ending in (*texts, '.png')]
    if out.suffix in ENDINGS:
        paths = [out]
    for path in sorted(paths, key=lambda path: path.suffix in texts):  # the figure may fail
        text = texts.get(path.suffix)
        if text is None:
            with in_style():
                write_whole(path, draw().savefig)
        else:
            write_whole(path, partial(Path.write_text, data=text, encoding='utf-8'))
    return f'written to {", ".join(map(str, paths))}'


def check_out(out: Path, endings: Sequence[str]) -> None:
    """Check that results can be written to ``--out``, a folder or a file with one of
    ``endings``."""
    is_file = out.suffix in ENDINGS or out.suffix[1:].isalpha() and not out.is_dir()
    if is_file and (out.suffix not in endings or out.is_dir()):
        raise ValueError(f"'out' must be a folder without a suffix, or a new file that ends with "
                         f"{' or '.join(endings)} (got {out})")
    check_folder('out', out.parent if out.suffix in endings else out)


def as_json(plain: dict[str, object]) -> str:
    return json.dumps(plain, indent=1, allow_nan=False) + '\n'


def as_csv(results: Results) -> str:
    """Return CSV text with a row for each result and a column for each field that is a number or
    text."""
    names = scalar_names(results)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator='\n')
    rows.writerow(['graph', 'number', *names])
    for label, samples in results.items():
        for number, sample in enumerate(samples):
            scalars = sample.scalars()
            rows.writerow([csv_cell(label), number, *(scalars.get(name) for name in names)])
    return text.getvalue()
