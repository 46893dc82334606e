"""The runner of all studies: ``graphattn study NAME --scale smoke``.

The function ``main`` of a study takes a :class:`Study`, whose fields are options of the command,
and returns a :class:`Table`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

from experiments.papers.study import Study, Table
from experiments.runs.command import run_or_exit
from experiments.runs.command_line import Parser


def run(name: str, **options: object) -> None:
    main = main_of(name)
    study = _options_of(main)(name, **options)
    study.report(main(study))


def run_words(name: str, *words: str) -> None:
    main = main_of(name)
    if not (kind := _options_of(main)):
        return main([*words])
    parser = Parser(prog=f'graphattn study {name}', exit_on_error=False,
                            description=import_module(main.__module__).__doc__)
    parser.add_argument('--config', action='config', help='a file of options')
    parser.add_class_arguments(kind, skip={'name'})
    options = parser.parse_args([*words]).as_dict()
    run(name, **{option: value for option, value in options.items() if option != 'config'})


def main_of(name: str) -> Callable[[Study], Table]:
    paths = Path(__file__).parent.glob('*/*.py')
    papers = [path.parent.name for path in paths if path.stem == name]
    if not papers:
        raise ValueError(f"'name' must be a study; `graphattn study` lists them (got {name!r})")
    return import_module(f'experiments.papers.{papers[0]}.{name}').main


def _options_of(main: Callable[[Study], Table]) -> type[Study] | None:
    """Return the kind of a study; a command that is none reads its words itself."""
    kind = next(iter(get_type_hints(main).values()))
    return kind if isinstance(kind, type) and issubclass(kind, Study) else None


def command() -> None:
    run_or_exit(lambda: run_words(*(sys.argv[1:] or ['--help'])))


if __name__ == '__main__':
    command()
