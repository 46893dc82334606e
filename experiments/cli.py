"""The command ``graphattn``: short names for the commands of this project, in any folder.

    graphattn train --config digits/sbm
    graphattn test --run runs/digits/sbm
    graphattn train --config text --data.path my.csv --attention sbm --seeds 3
    graphattn compare runs/text runs/text_sbm
    graphattn predict --run runs/text/seed0 --input new.csv --out predictions.csv
    graphattn study estimators --scale smoke
    graphattn spectrum --pattern bigbird --n 512
    eval "$(graphattn completion bash)"

Only the modules of the given command are imported. A shipped config is named by the path of its
file below ``experiments/configs``. """ # noqa: E501

import ast
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from io import TextIOWrapper
from pathlib import Path

from analysis.commands import COMMANDS as QUESTIONS
from experiments.quick_help import LIBRARIES, without_libraries
from experiments.runs.shipped import (
    CONFIGS,
    OF_GRAPHS,
    OF_SEQUENCES,
    attention_names,
    config_names,
    unknown,
)
from experiments.signals import exit_on

ROOT = Path(__file__).parent.parent
TRAINING = {'train': 'fit', 'test': 'test'}  # commands of experiments.train
GROUPS = {'study': 'papers', 'benchmark': 'benchmarks'}  # packages of experiments
MARKS = {'papers': '\ndef main(', 'benchmarks': "__name__ == '__main__'"}  # of their commands
SHELLS = ('bash', 'zsh', 'fish')
PACKAGES = ('torch', 'torch-geometric', 'numba', 'numpy', 'scipy', 'networkx', 'torch-scatter',
            'torch-sparse', 'triton', 'lightning', 'jsonargparse', 'transformers', 'matplotlib')


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``graphattn`` with the given words, or else those of this process."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # for ASCII terminals
    try:
        if arguments is None and '_ARGCOMPLETE' in os.environ:  # a shell requests completions
            _complete()
        else:
            _dispatch(*(sys.argv[1:] if arguments is None else arguments) or ['--help'])
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as interrupt:  # while a command is still being imported
        exit_on(interrupt)
    except ModuleNotFoundError as error:
        from graphattn.utils.trust import with_advice

        print(f'error: {with_advice(error)}', file=sys.stderr)
        sys.exit(2)


def _dispatch(name: str, *rest: str) -> None:
    if name in ('-h', '--help'):
        print(overview())
    elif name == 'info':
        print(information())
    elif name in TRAINING:
        _run('experiments.train', f'graphattn {name}', [TRAINING[name], *_with_paths(rest)])
    elif name in GROUPS:
        _run_one_of(name, *rest)
    elif name == 'completion':
        _print_completion(*rest)
    elif name in QUESTIONS:
        _run('analysis', f'graphattn {name}', [name, *rest])
    elif name in _modules():
        _run(_modules()[name], f'graphattn {name}', rest)
    else:
        _refuse('command', name, _names())


def _names() -> list[str]:
    return [*TRAINING, *_modules(), *GROUPS, 'info', 'completion']


def overview() -> str:
    modules = {name: _in_short(module) for name, module in _modules().items()}
    rows = {'train': 'Train the model of a config, and test it.',
            'test': 'Test a checkpoint.', **modules,
            'study NAME': f"One of {', '.join(_runnable('papers'))}.",
            'benchmark NAME': f"One of {', '.join(_runnable('benchmarks'))}.",
            'info': 'Versions, threads, backends and caches, for bug reports.',
            'completion SHELL': f"Tab completion for {', '.join(SHELLS)}."}
    lines = [f'  {name:18}{what}' for name, what in rows.items()]
    return '\n'.join(['usage: graphattn COMMAND [--help] ... [--import MODULE]', '', *lines, '',
                      '--import mine, or --import folder/mine.py, imports a module of yours first, '
                      'such as one',
                      'that defines a pattern; patterns and configs may then name its classes.', '',
                      'Configs: ' + ', '.join(config_names())])


def information() -> str:
    """Return the versions of packages, the threads, the backends and the caches, as text."""
    import platform

    import torch

    import graphattn
    from graphattn import ops

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return 'not installed'

    def available(name: str) -> bool:
        try:
            return ops.load(name).is_available(torch.device('cpu'))
        except ImportError:
            return False

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'
    rows = {'graphattn': graphattn.__version__, 'python': platform.python_version(),
            'platform': platform.platform(), **{name: installed(name) for name in PACKAGES},
            'threads': torch.get_num_threads(), 'processors': os.cpu_count(), 'GPU': gpu,
            'backends on a CPU': ', '.join(filter(available, ops.BACKENDS)),
            'compiled loops': os.environ.get('NUMBA_CACHE_DIR', 'beside their sources')}
    return '\n'.join(f'{name:20}{value}' for name, value in rows.items())


def _modules() -> dict[str, str]:
    """Return the commands that are modules, as a dict from the command to the name of the
    module."""
    return {'compare': 'experiments.compare', 'predict': 'experiments.predict',
            'sparsify': 'experiments.sparsify',
            'atlas': 'experiments.benchmarks.atlas',
            **{name: f'analysis.{name}' for name in QUESTIONS},
            'compile': 'experiments.compile'}


def _runnable(group: str) -> dict[str, str]:
    """Return the modules of a package ``experiments.GROUP`` that are commands, as a dict from the
    name of a command to its module."""
    paths = sorted((Path(__file__).parent / group).rglob('*.py'), key=lambda path: path.stem)
    return {path.stem: '.'.join(path.relative_to(ROOT).with_suffix('').parts) for path in paths
            if MARKS[group] in path.read_text(encoding='utf-8')}


def _in_short(module: str) -> str:
    path = ROOT.joinpath(*module.split('.'))
    path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
    paragraph = docstring.split('\n\n')[0]
    return ' '.join(paragraph.split())


def _run_one_of(command: str, name: str = '--help', *rest: str) -> None:
    modules = _runnable(GROUPS[command])
    if name in ('-h', '--help'):
        print(f'usage: graphattn {command} NAME [--help] ...\n')
        print('\n'.join(f'  {known:22}{_in_short(module)}' for known, module in modules.items()))
    elif command == 'study' and name in modules:
        _run('experiments.papers.runner', 'graphattn study', [name, *rest])
    elif name in modules:
        _run(modules[name], f'graphattn {command} {name}', rest)
    else:
        _refuse(command, name, list(modules))


def _print_completion(shell: str = '--help', *_: str) -> None:
    if shell in ('-h', '--help'):
        print('usage: graphattn completion SHELL\n\n'
              '  eval "$(graphattn completion bash)"       now, and from ~/.bashrc always\n'
              '  eval "$(graphattn completion zsh)"        from ~/.zshrc, after compinit\n'
              '  graphattn completion fish | source        from ~/.config/fish/config.fish')
    elif shell in SHELLS:
        from argcomplete import shellcode

        print(shellcode(['graphattn'], shell=shell))
    else:
        _refuse('shell', shell, SHELLS)


def _complete() -> None:
    """Print the words that can continue the command line, which the shell requests when the tab key
    is pressed, and exit."""
    from experiments import completion

    words = completion.words_before()
    if not words:
        completion.offer(_names())
    elif words == ['completion']:
        completion.offer(SHELLS)
    elif len(words) == 1 and words[0] in GROUPS:
        completion.offer(_runnable(GROUPS[words[0]]))
    elif words[-1] == '--config':
        completion.offer(config_names(), files=True)
    elif words[-1] == '--attention':
        completion.offer({*attention_names(OF_SEQUENCES), *attention_names(OF_GRAPHS)})
    else:  # the command's own parser completes its options, and exits before it prints its help
        command = words[:2 if words[0] in GROUPS else 1]
        completion.skip_words(len(command))
        _dispatch(*command, '--help')


def _run(module: str, name: str, arguments: Sequence[str]) -> None:
    sys.argv = [name, *arguments]
    own_main = sys.modules['__main__']
    try:
        is_help = bool({'-h', '--help'} & set(arguments))
        with without_libraries() if is_help and not _name_libraries(arguments) else nullcontext():
            _execute(module)
    finally:
        sys.modules['__main__'] = own_main


def _name_libraries(arguments: Sequence[str]) -> bool:
    """Return whether a config, or its base, names a class of a library, whose parameters only the
    library knows."""
    words = [word.removeprefix('--config=') for word in arguments]
    texts = [Path(word).read_text(encoding='utf-8', errors='replace') for word in words
             if word.endswith('.yaml') and os.path.isfile(word)]  # a word may be too long for Path
    for text in texts:
        names = re.findall(r'^base: (\S+)', text, re.MULTILINE)
        texts += [base.read_text(encoding='utf-8') for name in names
                  if (base := CONFIGS / f'{name}.yaml').exists()]
    return any(re.search(rf'\bclass_path: ({"|".join(LIBRARIES)})\.', text) for text in texts)


def _execute(name: str) -> None:
    """Run a module as ``python -m`` does, with the arguments in ``sys.argv``.

    The module becomes the main module, because jsonargparse resolves functions in the main module,
    and Lightning starts further processes from it.
    """
    spec = find_spec(name)
    if spec.submodule_search_locations is not None:  # a package
        spec = find_spec(f'{name}.__main__')
    module = sys.modules['__main__'] = module_from_spec(spec)
    module.__name__ = '__main__'
    # pytest replaces the loader of modules that belong to a plug-in, and that loader has no code.
    loader = SourceFileLoader(spec.name, spec.origin)
    exec(loader.get_code(spec.name), vars(module))


def _with_paths(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line with the name of each shipped config replaced by its
    path."""
    return [_config_path(value) if before in ('--config', '-c') else
            f'--config={_config_path(value[9:])}' if value.startswith('--config=') else value
            for before, value in zip([None, *arguments], arguments)]


def _config_path(name: str) -> str:
    # the user's own file, or an inline config
    if Path(name).exists() or name.lstrip().startswith('{'):
        return name
    path = CONFIGS / f'{name}.yaml'
    if not path.exists():
        _refuse('config', name, config_names())
    return str(path)


def _refuse(what: str, name: str, known: Sequence[str]) -> None:
    print(f'error: {unknown(what, name, known)}', file=sys.stderr)
    sys.exit(2)


if __name__ == '__main__':
    main()
