"""The commands of analysis, each with its question and its drawing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from experiments.runs.shipped import unknown

if TYPE_CHECKING:
    from jsonargparse import Namespace
    from matplotlib.figure import Figure

    from analysis.command import Graphs, Names
    from analysis.result import Results
    from graphattn import BipartiteGraph

# Modules are imported by the command that needs them, because their imports take seconds.

_NOT_NECESSARY = """\
The conditions are sufficient, not necessary: 'no' says that this proof does not apply.
Full attention without self-loops, for one, is universal too (SparseBERT, Theorem 1)."""


def main(arguments: list[str] | None = None) -> None:
    name, *words = (sys.argv[1:] if arguments is None else arguments) or ['--help']
    if name in COMMANDS:
        COMMANDS[name](words)
    elif name in ('-h', '--help'):
        print(f'usage: python -m analysis COMMAND [--help] ...\n\ncommands: {", ".join(COMMANDS)}')
    else:
        print(f'error: {unknown("command", name, COMMANDS)}', file=sys.stderr)
        sys.exit(2)


def _ask(name: str, arguments: list[str], question: str | None = None, **defaults: object) -> None:
    from analysis import command

    def draw(results: Results, graphs: Graphs) -> Figure:
        drawing = getattr(_drawings(), f'draw_{name}')
        return drawing(results, *[graphs] * ('graphs' in signature(drawing).parameters))

    function = getattr(import_module(f'analysis.{name}'), question or name)
    command.ask(function, draw, arguments, name=name, **defaults)


def _drawings() -> ModuleType:
    from analysis import drawings  # imports matplotlib, which only figures need

    return drawings


def _universality(arguments: list[str]) -> None:
    from tqdm import tqdm

    from analysis import command
    from analysis.universality import diffusion_universality, universality

    parser = command.new_parser('universality', '', 16)
    parser.set_defaults(pattern=[])
    parser.add_argument('--clusters', type=int, default=4,
                        help='without --pattern: k of the three patterns of Lemma 2')
    parser.add_argument('--hops', type=int | None,
                        help="also check the assumptions of Diffuser's theorem for each pattern, "
                             "at this K")
    parser.add_argument('--time_limit', type=float, default=30.,
                        help='time limit in seconds of each search for a Hamiltonian path')
    parser.add_argument('--max_layers', type=int, default=10_000,
                        help='maximum number of layers for condition 3')

    def run(options: Namespace) -> None:
        search = {'time_limit': options.time_limit, 'seed': options.seed}
        samples, names = _patterns_in_turn(options)
        results = {'in turn': [
            universality(list(graphs.values()), max_layers=options.max_layers, **search)
            for graphs in tqdm(samples, desc='universality', disable=len(samples) == 1 or None)]}
        if options.hops is not None:
            results |= {f'diffusion, {label}': [
                diffusion_universality(graphs[label], hops=options.hops, **search)
                for graphs in samples] for label in samples[0]}
        results = {label: [result.named(names) for result in of_samples]
                   for label, of_samples in results.items()}
        command.show(
            options.out, 'universality', results,
            lambda: _drawings().draw_universality(samples[0], results['in turn'][0]), names)
        for label, of_samples in results.items():
            reasons = [reason for result in of_samples for reason in result.reasons]
            command.say(*(f'{label}: {reason}' for reason in dict.fromkeys(reasons)))
        if any(result.assumption_1 is False for given in results.values() for result in given):
            command.say(_NOT_NECESSARY)

    command.run_or_exit(parser, run, arguments)


def _patterns_in_turn(options: Namespace) -> tuple[list[dict[str, BipartiteGraph]], Names]:
    """Return the graphs of the layers of a model in order, by label, for each sample of a trained
    model, and the names of the tokens."""
    from analysis import command
    from analysis.graphs import graph_of_pattern
    from analysis.universality import lemma_2

    if options.checkpoint is not None:
        heads, _ = command.load(options)
        return [_layers(heads, index) for index in range(max(map(len, heads.values())))], None
    if options.graph is not None:
        graphs, names = command.load(options)
        return [{label: segment} for label, segments in graphs.items()
                for segment in segments], names
    if options.pattern:
        return [{f'layer {layer}, {expression}':
                 graph_of_pattern(expression, options.n, options.seed + layer - 1)
                 for layer, expression in enumerate(options.pattern, start=1)}], None
    return [{f'layer {layer}, {pattern!r}': pattern.build(options.n)
             for layer, pattern in enumerate(lemma_2(options.clusters), start=1)}], None


def _layers(heads: Graphs, index: int) -> dict[str, BipartiteGraph]:
    layers = {}
    for label, samples in heads.items():
        layer, graph = label.partition(',')[0], samples[index % len(samples)]
        # information passes along the edges of any head
        layers[layer] = layers[layer] | graph if layer in layers else graph
    return layers


def _certificate(arguments: list[str]) -> None:
    from analysis.certificate import certificate, graphs_of_heads, read_ids
    from analysis.command import output_parser, run_or_exit, show

    parser = output_parser('certificate')
    parser.add_argument('folder', type=str,
                        help='the folder of graphattn.hugging_face.save_attached, or of graphattn '
                             'sparsify')
    parser.add_argument('--n', type=int, default=512, help='number of tokens')
    parser.add_argument('--tokens', type=Path, default=None,
                        help='an .npy file of ids, for graphs that depend on the tokens; its first '
                             'sequence of n tokens is used')
    parser.add_argument('--time_limit', type=float, default=10.,
                        help='seconds to search for Hamiltonian paths, among 1,024 tokens at most')

    def run(options: Namespace) -> None:
        tokens = None if options.tokens is None else read_ids(options.tokens, options.n)
        found = certificate(graphs_of_heads(options.folder, options.n, tokens),
                            time_limit=options.time_limit)
        results = {Path(options.folder).name: [found]}
        show(options.out, 'certificate', results, lambda: _drawings().draw_certificate(results))

    run_or_exit(parser, run, arguments)


def _report(arguments: list[str]) -> None:
    from tqdm import tqdm

    from analysis.command import load, new_parser, run_or_exit, say
    from analysis.report import page, profile_sections, sections
    from graphattn.style import in_style
    from graphattn.utils.files import write_whole

    endings = '.html',
    parser = new_parser('report', 'diffuser', 512, endings)
    parser.add_argument('--time_limit', type=float, default=30.,
                        help='time limit in seconds of each search for a Hamiltonian path')
    parser.add_argument('--profile', type=str,
                        help='instead of graphs, a profile of a model from transformers: a file '
                             'that Profile.save wrote')

    @in_style()
    def run(options: Namespace) -> None:
        if options.profile is not None:
            text = page(Path(options.profile).name, profile_sections(options.profile))
        else:
            graphs, names = load(options)
            parts = tqdm(sections(graphs, time_limit=options.time_limit, seed=options.seed,
                                  names=names), desc='report', unit='question', disable=None)
            text = page(', '.join(graphs), list(parts), names, options.get('said'))
        out = options.out if options.out.suffix in endings else options.out / 'report.html'
        write_whole(out, lambda path: path.write_text(text, encoding='utf-8'))
        say(f'written to {out}')

    run_or_exit(parser, run, arguments, endings)


def _figures(arguments: list[str]) -> None:
    from tqdm import tqdm

    from analysis.command import ENDINGS, as_json, output_parser, run_or_exit, save, say
    from analysis.figures import FIGURES
    from graphattn.style import in_style

    endings = tuple(ending for ending in ENDINGS if ending != '.csv')
    parser = output_parser('figures', endings)
    parser.add_argument('name', type=str, help=f'all, or one of {", ".join(FIGURES)}')
    parser.add_argument('--seed', type=int, default=0, help='seed of random patterns')

    @in_style()
    def run(options: Namespace) -> None:
        if options.name not in {'all', *FIGURES}:
            raise ValueError(f"'name' must be the name of a figure: "
                             f"{unknown('figure', options.name, ['all', *FIGURES])}")
        names = list(FIGURES) if options.name == 'all' else [options.name]
        if len(names) > 1 and options.out.suffix in endings:
            raise ValueError(f"'out' must be a folder for all figures (got {options.out})")
        for name in tqdm(names, desc='figures', unit='figure', disable=len(names) == 1 or None):
            picture = FIGURES[name](options.seed)
            with tqdm.external_write_mode():
                written = save(options.out, name, {'.json': as_json(picture.to_dict())},
                               lambda figure=picture.figure: figure)
                say(picture, written, *([''] if len(names) > 1 else []))

    run_or_exit(parser, run, arguments, endings)


_MIXED = 'SlidingWindow(2) | RandomKeys(2)'
COMMANDS: dict[str, Callable[[list[str]], None]] = {
    'attention': partial(_ask, 'attention'),
    'certificate': _certificate,
    'communication': partial(_ask, 'communication', n=16384,
                             pattern='SlidingWindow(64) | GlobalTokens(4) | RandomKeys(4)'),
    'diffusion': partial(_ask, 'diffusion', pattern=_MIXED),
    'expander': partial(_ask, 'expander'),
    'figures': _figures,
    'hamiltonian': partial(_ask, 'hamiltonian', question='hamiltonian_path',
                           pattern='RandomKeys(6)', n=64),
    'mixing': partial(_ask, 'mixing', pattern=_MIXED),
    'report': _report,
    'spectrum': partial(_ask, 'spectrum'),
    'speed': partial(_ask, 'speed', n=4096),
    'universality': _universality,
}
