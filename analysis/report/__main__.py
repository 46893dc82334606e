"""The command ``python -m analysis.report``."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace
from tqdm import tqdm

from analysis.command import Names, load, new_parser, run_or_exit, say
from analysis.report import Section, page, profile_sections, sections
from graphattn.utils.files import write_whole

_ENDINGS = '.html',


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``report``: measure the graphs that the command line names, and write a page.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    parser = new_parser('report', 'diffuser', 512, _ENDINGS)
    parser.add_argument('--time_limit', type=float, default=30.,
                        help='time limit in seconds of each search for a Hamiltonian path')
    parser.add_argument('--profile', type=str,
                        help='instead of graphs, a profile of a model from transformers: a file '
                             'that Profile.save wrote')

    def run(options: Namespace) -> None:
        title, parts, names = _parts(options)
        out = options.out if options.out.suffix in _ENDINGS else options.out / 'report.html'
        text = page(title, parts, names)
        write_whole(out, lambda path: path.write_text(text, encoding='utf-8'))
        say(f'written to {out}')

    run_or_exit(parser, run, arguments, _ENDINGS)


def _parts(options: Namespace) -> tuple[str, list[Section], Names]:
    """Return the title of the page, its sections, and the names of the tokens, which are ``None``
    if tokens have no names."""
    if options.profile is not None:
        return Path(options.profile).name, profile_sections(options.profile), None
    graphs, names = load(options)
    parts = tqdm(sections(graphs, time_limit=options.time_limit, seed=options.seed,
                          names=names),
                 desc='report', unit='question', disable=None)
    return ', '.join(graphs), list(parts), names


if __name__ == '__main__':
    main()
