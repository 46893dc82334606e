"""What the commands ``python -m analysis.<module>`` have in common."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from numbers import Real
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from matplotlib.figure import Figure
from scipy.sparse.linalg import ArpackError
from tqdm import tqdm

from analysis.checks import check_count
from analysis.graphs import MOST_TOKENS, graph_of_pattern, read_graph, sampled_graphs
from analysis.result import Result, aligned, cell
from graphattn import BipartiteGraph
from graphattn._files import check_folder, write_whole
from graphattn._memory import within_free_memory

Graphs = dict[str, list[BipartiteGraph]]
Results = dict[str, list[Result]]


def ask(
    question: Callable[..., Result],
    draw: Callable[[Results], Figure],
    arguments: list[str] | None = None,
    *,
    name: str,
    pattern: str = 'diffuser',
    n: int = 512,
) -> None:
    """Runs a question as a command: the graphs that were asked for, a table, JSON and a picture.

    Args:
        question: ``question(graph, **options)``; its keyword arguments become options.
        draw: From ``{label: results}``, several of which are samples of one head, to a figure.
        arguments: The command line, that of the process if omitted.
        name: Of the module, and of the files.
        pattern: Which pattern is the default.
        n: Which length is the default.

    Raises:
        SystemExit: Of status 2 with one line on standard error if an argument is bad.
    """
    parser = new_parser(name, pattern, n)
    parser.add_function_arguments(question, skip={'graph'})

    def run(options: Namespace) -> None:
        graphs = load(options)
        settings = {key: options[key] for key in vars(options) if key not in GRAPH_OPTIONS}
        results = {label: [] for label in graphs}
        jobs = [(label, graph) for label, samples in graphs.items() for graph in samples]
        for label, graph in tqdm(jobs, desc=name, unit='graph', disable=len(jobs) == 1):
            results[label].append(question(graph, **settings))
        print(table(results))
        save(options.out, name, results, draw(results))

    run_or_exit(parser, run, arguments)


# The least and the most of options, whichever command has them: what is beyond ends in no lifetime.
LIMITS = {'n': (1, MOST_TOKENS), 'samples': (1, 10_000), 'hops': (1, 100_000),
          'steps': (1, 100_000), 'max_layers': (1, 100_000), 'clusters': (1, 100_000),
          'seed': (0, 2**31 - 1)}  # OR-tools takes no larger one
REFUSALS = (ArgumentError, ArpackError, ImportError, MemoryError, OSError, OverflowError, TypeError,
            ValueError)
GRAPH_OPTIONS = ('pattern', 'graph', 'checkpoint', 'example', 'samples', 'n', 'seed', 'out')


def new_parser(name: str, pattern: str, n: int) -> ArgumentParser:
    """A parser of the options that every command has: which graphs, and where results go."""
    parser = ArgumentParser(prog=f'python -m analysis.{name}', exit_on_error=False)
    parser.add_argument('--pattern', type=str, nargs='+', default=[pattern],
                        help='presets, or expressions such as "SlidingWindow(3) | GlobalTokens(2)"')
    parser.add_argument('--graph', type=str | None,
                        help='a file instead: .npz (scipy sparse), .graphml, or a list of edges')
    parser.add_argument('--checkpoint', type=str | None,
                        help='instead, what the heads of a trained model sample')
    parser.add_argument('--example', type=int, default=0, help='sequence of the test set')
    parser.add_argument('--samples', type=int, default=8, help='graphs of each head')
    parser.add_argument('--n', type=int, default=n, help='number of tokens')
    parser.add_argument('--seed', type=int, default=0, help='of random patterns and samples')
    parser.add_argument('--out', type=Path, default=Path('runs/analysis'),
                        help='where JSON and picture go')
    return parser


def load(options: Namespace) -> Graphs:
    """The graphs that a command was asked about, by label; a head's samples under one."""
    if options.checkpoint is not None:
        return sampled_graphs(options.checkpoint, options.example, options.samples, options.seed)
    if options.graph is not None:
        return {Path(options.graph).name: [read_graph(options.graph)]}
    return {pattern: [graph_of_pattern(pattern, options.n, options.seed)]
            for pattern in options.pattern}


def run_or_exit(parser: ArgumentParser, run: Callable[[Namespace], None],
                arguments: list[str] | None) -> None:
    """Parses and runs; what a user got wrong becomes one line and exit status 2."""
    try:
        options = parser.parse_args(arguments)
        for name, (least, most) in LIMITS.items():
            if options.get(name) is not None:
                check_count(name, options[name], least, most)
        check_folder('out', options.out)
        with within_free_memory():
            run(options)
    except Exception as error:
        if not isinstance(error, REFUSALS):
            raise
        line = ' '.join(str(error).split())
        print(f'{parser.prog}: error: {line}', file=sys.stderr)
        sys.exit(2)


def table(results: Results) -> str:
    """One row for each scalar of the results, one column for each graph; mean ± standard deviation
    over samples."""
    labels = list(results)
    names = dict.fromkeys(name for samples in results.values() for name in samples[0].scalars())
    rows = [['', *labels]]
    rows += [[name.replace('_', ' '),
              *(_summary([sample.scalars().get(name) for sample in results[label]])
                for label in labels)] for name in names]
    return aligned(rows)


def save(out: Path, name: str, results: Results, figure: Figure) -> None:
    """Writes ``out/name.json`` and ``out/name.png``."""
    plain = {label: [sample.to_dict() for sample in samples] for label, samples in results.items()}
    save_plain(out, name, plain, figure)


def save_plain(out: Path, name: str, plain: dict[str, object], figure: Figure) -> None:
    """Writes ``out/name.json``, from types that JSON knows, and ``out/name.png``."""
    text = json.dumps(plain, indent=1, allow_nan=False) + '\n'
    write_whole(out / f'{name}.json', lambda path: path.write_text(text))
    write_whole(out / f'{name}.png', lambda path: figure.savefig(path, dpi=110))
    print(f'written to {out / name}.json, drawn in {out / name}.png')


def _summary(values: list[object]) -> str:
    are_numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    if len(set(values)) == 1 or not are_numbers:
        return ' / '.join(dict.fromkeys(map(cell, values)))
    return f'{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}'
