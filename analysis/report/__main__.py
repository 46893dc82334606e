"""The command ``python -m analysis.report``."""

from __future__ import annotations

from jsonargparse import Namespace
from tqdm import tqdm

from analysis.command import load, new_parser, run_or_exit, say
from analysis.report import page, sections
from graphattn.utils.files import write_whole

_ENDINGS = '.html',


def main(arguments: list[str] | None = None) -> None:
    """Measure the graphs of a command line, and write a page.

    Args:
        arguments: The command line; the process's own if omitted.
    """
    parser = new_parser('report', 'diffuser', 512, _ENDINGS)
    parser.add_argument('--time_limit', type=float, default=30.,
                        help='time limit in seconds of each search for a Hamiltonian path')

    def run(options: Namespace) -> None:
        graphs, names = load(options)
        parts = list(tqdm(sections(graphs, time_limit=options.time_limit, seed=options.seed),
                          desc='report', unit='question', disable=None))
        out = options.out if options.out.suffix in _ENDINGS else options.out / 'report.html'
        text = page(', '.join(graphs), parts, names)
        write_whole(out, lambda path: path.write_text(text, encoding='utf-8'))
        say(f'written to {out}')

    run_or_exit(parser, run, arguments, _ENDINGS)


if __name__ == '__main__':
    main()
