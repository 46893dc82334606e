"""The command ``python -m analysis.certificate``."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser

from analysis.certificate.drawing import draw
from analysis.certificate.models import graphs_of_heads, read_ids
from analysis.certificate.question import certificate
from analysis.command import ENDINGS, run_or_exit, show


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``certificate``: certify the model in the folder that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    parser = ArgumentParser(prog='graphattn certificate', exit_on_error=False)
    parser.add_argument('folder', type=str,
                        help='the folder of graphattn.hugging_face.save_attached, or of graphattn '
                             'sparsify')
    parser.add_argument('--n', type=int, default=512, help='number of tokens')
    parser.add_argument('--tokens', type=Path, default=None,
                        help='an .npy file of ids, for graphs that depend on the tokens; its first '
                             'sequence of n tokens is used')
    parser.add_argument('--time_limit', type=float, default=10.,
                        help='seconds to search for Hamiltonian paths, among 1,024 tokens at most')
    parser.add_argument('--out', type=Path, default=Path('runs/analysis'),
                        help=f'a folder for results, or a file: {", ".join(ENDINGS)}')

    def run(options) -> None:
        tokens = None if options.tokens is None else read_ids(options.tokens, options.n)
        found = certificate(graphs_of_heads(options.folder, options.n, tokens),
                            time_limit=options.time_limit)
        results = {Path(options.folder).name: [found]}
        show(options.out, 'certificate', results, draw(results))

    run_or_exit(parser, run, arguments)


if __name__ == '__main__':
    main()
