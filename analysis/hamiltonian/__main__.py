"""The command ``python -m analysis.hamiltonian``."""

from __future__ import annotations

from jsonargparse import Namespace
from tqdm import tqdm

from analysis import command
from analysis.hamiltonian import hamiltonian_path
from analysis.hamiltonian.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``hamiltonian``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    parser = command.new_parser('hamiltonian', 'RandomKeys(6)', 64)
    parser.add_function_arguments(hamiltonian_path, skip={'graph', 'seed'})

    def run(options: Namespace) -> None:
        graphs, names = command.load(options)
        results = {label: [] for label in graphs}
        jobs = [(label, graph) for label, samples in graphs.items() for graph in samples]
        for label, graph in tqdm(jobs, desc='hamiltonian', unit='graph',
                                 disable=len(jobs) == 1 or None):
            results[label].append(hamiltonian_path(
                graph, directed=options.directed, time_limit=options.time_limit,
                seed=options.seed).named(names))
        if not options.directed:
            graphs = {label: [graph | graph.transpose() for graph in samples]
                      for label, samples in graphs.items()}
        command.show(options.out, 'hamiltonian', results, draw(graphs, results), names)

    command.run_or_exit(parser, run, arguments)


if __name__ == '__main__':
    main()
