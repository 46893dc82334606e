"""The distributions of a release, and README's examples with the wheel alone.

    python -m tests.release        # `make release` writes dist/

The examples run in a new environment, in another folder, where no compiler is found.
"""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SOURCES = ('graphattn', 'experiments', 'analysis')
METADATA = ('setup.py', 'setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE')


def build(out: Path) -> Path:
    """Write the source distribution and the wheel that is built from it, and return the wheel."""
    with TemporaryDirectory() as folder:
        for name in SOURCES:
            shutil.copytree(ROOT / name, Path(folder, name),
                            ignore=shutil.ignore_patterns('__pycache__'))
        for name in METADATA:
            shutil.copy(ROOT / name, folder)
        subprocess.run([sys.executable, '-m', 'build', '--no-isolation', '--outdir', out.resolve(),
                        folder], check=True, stdout=subprocess.DEVNULL)
    return max(out.glob('*.whl'), key=lambda path: path.stat().st_mtime)


def environment(folder: Path, wheel: Path, packages: Path | None = None) -> Path:
    """Install the wheel into a new environment, and return the folder of its programs. Its
    dependencies are those of ``constraints.txt``, or those that lie in the folder ``packages``."""
    venv.create(folder)
    options = ['--constraint', ROOT / 'constraints.txt']
    if packages is not None:
        site, = folder.glob('lib/*/site-packages')
        (site / 'dependencies.pth').write_text(str(packages))
        options = ['--no-deps', '--no-index']
    subprocess.run([sys.executable, '-m', 'pip', '--python', folder / 'bin/python', 'install',
                    '--quiet', '--no-compile', *options, wheel], check=True)
    return folder / 'bin'


def run(programs: Path, folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program of an environment in a folder, with no other program on the path."""
    return subprocess.run([programs / name, *arguments], cwd=folder, capture_output=True, text=True,
                          env={'PATH': str(programs), 'MPLBACKEND': 'agg',
                               'OMP_NUM_THREADS': '1'})


def examples_of(page: Path) -> str:
    return '\n'.join(re.findall(r'```python\n(.*?)```', page.read_text(), re.S))


def main(out: str = 'dist') -> None:
    wheel = build(Path(out))
    with TemporaryDirectory() as folder:
        programs = environment(Path(folder, 'environment'), wheel)
        for name, *arguments in (('python', '-c', examples_of(ROOT / 'README.md')),
                                 ('graphattn', '--help')):
            ended = run(programs, Path(folder), name, *arguments)
            if ended.returncode:
                sys.exit(f'{name} failed with {wheel.name}:\n{ended.stderr}')
    print(f'{wheel}: README runs without the sources and without a compiler')


if __name__ == '__main__':
    main(*sys.argv[1:])
