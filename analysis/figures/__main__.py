"""The command ``python -m analysis.figures NAME|all``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from analysis.command import ENDINGS, as_json, run_or_exit, save, say
from analysis.figures import FIGURES

_ENDINGS = tuple(ending for ending in ENDINGS if ending != '.csv')


def main(arguments: list[str] | None = None) -> None:
    """Draw the requested figures, and print the papers' values next to the computed values.

    Args:
        arguments: The words of the command line; by default those of this process.

    Raises:
        SystemExit: Status 2, with one line on standard error, if an argument is invalid.
    """
    parser = ArgumentParser(prog='graphattn figures', exit_on_error=False)
    parser.add_argument('name', type=str, help=f'all, or one of {", ".join(FIGURES)}')
    parser.add_argument('--seed', type=int, default=0, help='seed of random patterns')
    parser.add_argument('--out', type=Path, default=Path('runs/analysis'),
                        help=f'a folder for results, or a file: {", ".join(_ENDINGS)}')

    def run(options: Namespace) -> None:
        names = _names(options.name)
        if len(names) > 1 and options.out.suffix in _ENDINGS:
            raise ValueError(f"'out' must be a folder for all figures (got {options.out})")
        for name in tqdm(names, desc='figures', unit='figure', disable=len(names) == 1 or None):
            picture = FIGURES[name](options.seed)
            with tqdm.external_write_mode():
                written = save(options.out, name, {'.json': as_json(picture.to_dict())},
                               picture.figure)
                say(picture, written, *([''] if len(names) > 1 else []))

    run_or_exit(parser, run, arguments, _ENDINGS)


def _names(name: str) -> list[str]:
    if name == 'all':
        return list(FIGURES)
    if name not in FIGURES:
        near = get_close_matches(name.lower(), [*FIGURES, 'all'], cutoff=0.5) or ['all', *FIGURES]
        raise ValueError(f"'name' must be the name of a figure (got {name!r}); did you mean "
                         f"{' or '.join(map(repr, near))}?")
    return [name]


if __name__ == '__main__':
    main()
