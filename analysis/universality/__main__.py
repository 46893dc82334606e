"""The command ``python -m analysis.universality``."""

from __future__ import annotations

from jsonargparse import Namespace
from tqdm import tqdm

from analysis import command
from analysis.graphs import graph_of_pattern
from analysis.universality import (
    diffusion_universality,
    lemma_2,
    piecewise_constant,
    selective_shift,
    three_tokens,
    universality,
)
from analysis.universality.drawing import draw
from graphattn import BipartiteGraph

_NOT_NECESSARY = """\
The conditions are sufficient, not necessary: 'no' says that this proof does not apply.
Full attention without self-loops, for one, is universal too (SparseBERT, Theorem 1)."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``universality``: check the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    parser = command.new_parser('universality', '', 16)
    parser.set_defaults(pattern=[])
    parser.add_argument('--clusters', type=int, default=4,
                        help='without --pattern: k of the three patterns of Lemma 2')
    parser.add_argument('--hops', type=int | None,
                        help="also check the assumptions of Diffuser's theorem for each pattern, "
                             "at this K")
    parser.add_argument('--steps', type=int | None,
                        help="also run the constructions of SparseBERT's and Diffuser's proofs "
                             "for three tokens, on a grid with this number of steps from 0 to 1")
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
        if options.steps is not None:
            results |= {'three tokens without diagonal': [three_tokens(options.steps)],
                        'selective shift of Diffuser': [selective_shift(3, options.steps)],
                        'piecewise constant function': [piecewise_constant(3, options.steps)]}
        results = {label: [result.named(names) for result in of_samples]
                   for label, of_samples in results.items()}
        figure = draw(samples[0], results['in turn'][0])
        command.show(options.out, 'universality', results, figure, names)
        for label, of_samples in results.items():
            for reason in dict.fromkeys(reason for result in of_samples
                                        for reason in getattr(result, 'reasons', ())):
                command.say(f'{label}: {reason}')
        if any(getattr(result, 'assumption_1', None) is False
               for of_samples in results.values() for result in of_samples):
            command.say(_NOT_NECESSARY)

    command.run_or_exit(parser, run, arguments)


def _patterns_in_turn(options: Namespace) -> tuple[list[dict[str, BipartiteGraph]], command.Names]:
    """Return the graphs of the layers of a model, in order, as dicts by label, and the names of the
    tokens. The list has one dict for patterns, and a dict for each sample of a trained model."""
    if options.checkpoint is not None:
        heads, _ = command.load(options)
        return [_layers({label: samples[index % len(samples)] for label, samples in heads.items()})
                for index in range(max(map(len, heads.values())))], None
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


def _layers(heads: dict[str, BipartiteGraph]) -> dict[str, BipartiteGraph]:
    """Return one graph for each layer, with the edges of all heads of the layer, because
    information passes along the edges of any head."""
    layers = {}
    for label, graph in heads.items():
        layer = label.partition(',')[0]
        layers[layer] = layers[layer] | graph if layer in layers else graph
    return layers


if __name__ == '__main__':
    main()
