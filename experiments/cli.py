"""The command ``graphattn``, from any folder: what the modules of this project do, by short names.

    graphattn train --config digits/sbm
    graphattn test --config runs/digits/sbm/config.yaml --ckpt_path runs/digits/sbm/checkpoints/last.ckpt
    graphattn train --config text --data.path my.csv --seeds 3
    graphattn predict --run runs/text/seed0 --input new.csv --out predictions.csv
    graphattn study estimators --scale smoke
    graphattn spectrum --pattern bigbird --n 512

It loads nothing but what is asked for. Configs that ship have the names of their files below
``experiments/configs``.
"""  # noqa: E501

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from experiments.quick_help import without_libraries

ROOT = Path(__file__).parent.parent
CONFIGS = Path(__file__).parent / 'configs'
TRAINING = {'train': 'fit', 'test': 'test'}  # commands of experiments.train
# Their options are arguments of classes of libraries, or are read after the first measurement.
WITHOUT_QUICK_HELP = 'experiments.train', 'experiments.benchmarks'
GROUPS = {'study': 'studies', 'benchmark': 'benchmarks'}  # packages of experiments
PACKAGES = ('torch', 'torch-geometric', 'numba', 'numpy', 'scipy', 'networkx', 'torch-scatter',
            'torch-sparse', 'triton', 'lightning', 'jsonargparse', 'transformers', 'matplotlib')


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line, that of the process if omitted.

    Raises:
        SystemExit: Of status 2, with one line, if the command or a config is unknown.
    """
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ['--help']
    if name in ('-h', '--help'):
        print(overview())
    elif name == 'info':
        print(information())
    elif name in TRAINING:
        _run('experiments.train', f'graphattn {name}', [TRAINING[name], *_with_paths(rest)])
    elif name in GROUPS:
        _run_one_of(name, rest)
    elif name in _modules():
        _run(_modules()[name], f'graphattn {name}', rest)
    else:
        _refuse('command', name, [*TRAINING, *GROUPS, *_modules(), 'info'])


def overview() -> str:
    """What there is, a line for each."""
    rows = {'train': 'Trains a model that a config describes, and tests it.',
            'test': 'Tests a checkpoint.',
            'study NAME': f"One of {', '.join(_runnable('studies'))}.",
            'benchmark NAME': f"One of {', '.join(_runnable('benchmarks'))}.",
            **{name: _in_short(module) for name, module in _modules().items()},
            'info': 'Versions, threads, backends and caches: what a report of a fault needs.'}
    lines = [f'  {name:16}{what}' for name, what in rows.items()]
    return '\n'.join(['usage: graphattn COMMAND [--help] ...', '', *lines, '', 'Configs: '
                      + ', '.join(_config_names())])


def information() -> str:
    """Versions, threads, backends and caches."""
    import os
    import platform

    import torch

    import graphattn
    from graphattn import kernels

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return 'not installed'

    def available(name: str) -> bool:
        try:
            return kernels.load(name).is_available(torch.device('cpu'))
        except ImportError:
            return False

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'
    rows = {'graphattn': graphattn.__version__, 'python': platform.python_version(),
            'platform': platform.platform(), **{name: installed(name) for name in PACKAGES},
            'threads': torch.get_num_threads(), 'processors': os.cpu_count(), 'GPU': gpu,
            'backends on a CPU': ', '.join(filter(available, kernels.BACKENDS)),
            'compiled loops': os.environ.get('NUMBA_CACHE_DIR', 'beside their sources')}
    return '\n'.join(f'{name:20}{value}' for name, value in rows.items())


def _modules() -> dict[str, str]:
    """Commands that are a module."""
    questions = sorted(path.parent.name for path in (ROOT / 'analysis').glob('*/__main__.py'))
    return {**{name: f'analysis.{name}' for name in questions}, 'compile': 'graphattn.compile',
            'predict': 'experiments.predict'}


def _runnable(group: str) -> list[str]:
    """The modules of a package of experiments that are commands."""
    return sorted(path.stem for path in (Path(__file__).parent / group).glob('*.py')
                  if "__name__ == '__main__'" in path.read_text())


def _in_short(module: str) -> str:
    path = ROOT.joinpath(*module.split('.'))
    path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or '').split('\n\n')[0]
    return ' '.join(paragraph.split())


def _run_one_of(command: str, rest: list[str]) -> None:
    group = GROUPS[command]
    names = _runnable(group)
    if not rest or rest[0] in ('-h', '--help'):
        print(f'usage: graphattn {command} NAME [--help] ...\n')
        print('\n'.join(f"  {name:22}{_in_short(f'experiments.{group}.{name}')}"
                        for name in names))
    elif rest[0] in names:
        _run(f'experiments.{group}.{rest[0]}', f'graphattn {command} {rest[0]}', rest[1:])
    else:
        _refuse(command, rest[0], names)


def _run(module: str, name: str, arguments: list[str]) -> None:
    sys.argv = [name, *arguments]
    main_module = sys.modules['__main__']
    own_spec = main_module.__spec__
    has_quick_help = {'-h', '--help'} & set(arguments) and not module.startswith(WITHOUT_QUICK_HELP)
    try:
        main_module.__spec__ = find_spec(module)  # what Lightning starts in other processes
        with without_libraries() if has_quick_help else nullcontext():
            runpy.run_module(module, run_name='__main__')
    except ModuleNotFoundError as error:
        print(f"error: {error}; pip install 'graphattn[experiments,analysis,text]' brings what "
              f"commands need", file=sys.stderr)
        sys.exit(2)
    finally:
        main_module.__spec__ = own_spec


def _with_paths(arguments: list[str]) -> list[str]:
    """Names of configs that ship become their paths."""
    return [_config_path(value) if before == '--config' else
            f'--config={_config_path(value[9:])}' if value.startswith('--config=') else value
            for before, value in zip([None, *arguments], arguments)]


def _config_path(name: str) -> str:
    if Path(name).exists() or name.lstrip().startswith('{'):  # a file of the user's, or a config
        return name
    path = CONFIGS / f'{name}.yaml'
    if not path.exists():
        _refuse('config', name, list(_config_names()))
    return str(path)


def _config_names() -> Iterator[str]:
    return (str(path.relative_to(CONFIGS).with_suffix('')) for path in
            sorted(CONFIGS.rglob('*.yaml')))


def _refuse(what: str, name: str, known: list[str]) -> None:
    close = get_close_matches(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    print(f'error: no {what} {name!r}; {hint}', file=sys.stderr)
    sys.exit(2)


if __name__ == '__main__':
    main()
