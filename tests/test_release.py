"""The wheel: what it puts into site-packages, and that its commands run from another folder."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import graphattn

ROOT = Path(__file__).parents[1]
SOURCES = ('graphattn', 'experiments', 'analysis')
METADATA = ('setup.py', 'setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE')
BUILD = 'from setuptools.build_meta import build_wheel; print(build_wheel({!r}))'
ENTRY = '__init__.py', 'path.py', 'pytest_plugin.py'
COMMAND = 'import sys; from graphattn_commands import main; sys.argv = ["graphattn", *{}]; main()'


@pytest.fixture(scope='module')
def site(tmp_path_factory) -> Path:
    """A folder with what a wheel of this clone installs."""
    clone, site = tmp_path_factory.mktemp('clone'), tmp_path_factory.mktemp('site')
    for name in SOURCES:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in METADATA:
        shutil.copy(ROOT / name, clone)
    built = subprocess.run([sys.executable, '-c', BUILD.format(str(site))], cwd=clone, check=True,
                           capture_output=True, text=True)
    wheel = site / built.stdout.splitlines()[-1]
    ZipFile(wheel).extractall(site)
    wheel.unlink()
    for loop in (ROOT / 'graphattn').rglob('*.nbc'):  # compiled from the same sources
        copied = site / loop.relative_to(ROOT)
        copied.parent.mkdir(exist_ok=True)
        shutil.copy(loop, copied)
    return site


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', COMMAND.format(arguments)], cwd=site.parent,
                          capture_output=True, text=True, env={'PYTHONPATH': str(site)})


@pytest.mark.slow
def test_a_wheel_installs_no_package_called_experiments_or_analysis(site):
    assert {path.name for path in site.iterdir()} == {
        'graphattn', 'graphattn_commands', f'graphattn-{graphattn.__version__}.dist-info'}


@pytest.mark.slow
def test_a_wheel_holds_every_file_that_modules_read(site):
    places = {'graphattn': 'graphattn', 'experiments': 'graphattn_commands/experiments',
              'analysis': 'graphattn_commands/analysis'}
    for name, folder in places.items():
        tracked = {path.relative_to(ROOT / name) for path in (ROOT / name).rglob('*')
                   if path.is_file() and path.suffix in {'.py', '.yaml', '.typed'}}
        installed = {path.relative_to(site / folder) for path in (site / folder).rglob('*')}
        of_the_package_itself = {Path('entry') / name for name in ENTRY}
        assert tracked - installed <= of_the_package_itself
    assert all((site / 'graphattn_commands' / name).exists() for name in ENTRY)


@pytest.mark.slow
def test_commands_of_a_wheel_run_from_any_folder(site):
    overview, refused = run(site, '--help'), run(site, 'spectrum', '--n', '0')
    assert overview.returncode == 0 and 'digits/sbm' in overview.stdout, overview.stderr
    assert refused.returncode == 2 and "graphattn spectrum: error: 'n'" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize('name', ['analysis', 'own_data'])
def test_python_of_the_guides_runs_from_a_wheel(site, tmp_path, name):
    text = (ROOT / f'docs/{name}.md').read_text()
    assert 'import graphattn_commands.path' in text
    code = '\n'.join(re.findall(r'```python\n(.*?)```', text, re.S))
    ended = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True,
                           text=True, env={'PYTHONPATH': str(site), 'MPLBACKEND': 'agg',
                                          'OMP_NUM_THREADS': '1'})
    assert ended.returncode == 0, ended.stderr


def test_guides_that_import_commands_are_run_from_a_wheel():
    imports = re.compile(r'^(?:from|import) (?:analysis|experiments)\b', re.M)
    pages = [page for page in (ROOT / 'docs').glob('*.md')
             if any(imports.search(code) for code in
                    re.findall(r'```python\n(.*?)```', page.read_text(), re.S))]
    assert {page.stem for page in pages} == {'analysis', 'own_data'}


def test_the_names_on_the_front_page_are_imported_when_they_are_asked_for():
    assert len(graphattn.__all__) == 10
    assert all(callable(getattr(graphattn, name)) for name in graphattn.__all__)
    assert set(graphattn.__all__) <= set(dir(graphattn))
    with pytest.raises(AttributeError, match='Transformer'):
        getattr(graphattn, 'Transformer')  # noqa: B009
