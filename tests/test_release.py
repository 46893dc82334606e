"""The wheel: what it puts into site-packages, and that its commands run from another folder."""

import re
import shutil
import sysconfig
from pathlib import Path

import pytest

import graphattn
from tests.release import ROOT, build, environment, examples_of, run

ENTRY = '__init__.py', 'path.py', 'pytest_plugin.py'


@pytest.fixture(scope='module')
def programs(tmp_path_factory) -> Path:
    """The programs of an environment with the wheel, the packages of this one, and its loops."""
    folder = tmp_path_factory.mktemp('release')
    packages = Path(sysconfig.get_path('purelib'))
    programs = environment(folder / 'environment', build(folder), packages)
    site, = programs.parent.glob('lib/*/site-packages')
    for loop in (ROOT / 'graphattn').rglob('*.nbc'):  # compiled from the same sources
        copied = site / loop.relative_to(ROOT)
        copied.parent.mkdir(exist_ok=True)
        shutil.copy(loop, copied)
    return programs


@pytest.fixture
def site(programs) -> Path:
    found, = programs.parent.glob('lib/*/site-packages')
    return found


@pytest.mark.slow
def test_a_wheel_installs_no_package_called_experiments_or_analysis(site):
    assert {path.name for path in site.iterdir()} - {'dependencies.pth'} == {
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
def test_commands_of_a_wheel_run_from_any_folder(programs, tmp_path):
    overview = run(programs, tmp_path, 'graphattn', '--help')
    refused = run(programs, tmp_path, 'graphattn', 'spectrum', '--n', '0')
    assert overview.returncode == 0 and 'digits/sbm' in overview.stdout, overview.stderr
    assert refused.returncode == 2 and "graphattn spectrum: error: 'n'" in refused.stderr


@pytest.mark.slow
def test_python_of_the_guides_runs_from_a_wheel_without_a_compiler(programs, tmp_path):
    pages = [examples_of(ROOT / f'{page}.md') for page in ('README', 'docs/analysis',
                                                           'docs/own_data')]
    script = f"for page in {pages!r}: exec(page, {{'__name__': '__main__'}})"
    ended = run(programs, tmp_path, 'python', '-c', script)
    assert ended.returncode == 0, ended.stderr


def test_guides_that_import_commands_are_run_from_a_wheel():
    imports = re.compile(r'^(?:from|import) (?:analysis|experiments)\b', re.M)
    pages = {page.stem: code for page in (ROOT / 'docs').glob('*.md')
             if imports.search(code := examples_of(page))}
    assert pages.keys() == {'analysis', 'own_data'}
    assert all('import graphattn_commands.path' in code for code in pages.values())


def test_the_version_is_the_same_wherever_it_stands():
    cited, = re.findall(r'^version: (.*)$', (ROOT / 'CITATION.cff').read_text(), re.M)
    changed = re.search(r'^## ([\d.]+)', (ROOT / 'CHANGELOG.md').read_text(), re.M)[1]
    assert cited == changed == graphattn.__version__


def test_the_names_on_the_front_page_are_imported_when_they_are_asked_for():
    assert len(graphattn.__all__) == 10
    assert all(callable(getattr(graphattn, name)) for name in graphattn.__all__)
    assert set(graphattn.__all__) <= set(dir(graphattn))
    with pytest.raises(AttributeError, match='Transformer'):
        getattr(graphattn, 'Transformer')  # noqa: B009
