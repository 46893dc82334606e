"""The page on the architecture shows what is called, and counts what there is."""

import re
from pathlib import Path

import pytest

from docs import counts, walk
from tests.test_imports import LIBRARY

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope='module')
def walks():
    return walk.walks()


@pytest.mark.slow
@pytest.mark.parametrize('name', walk.WALKS)
def test_a_walk_goes_from_the_layer_through_source_and_driver_to_the_kernel(walks, name):
    calls = walks[name]
    floors = [call.floor for call in calls if walk.LANDMARKS.fullmatch(call.name)]
    order = [floors.index(floor) for floor in ('layers', 'sources', 'functional', 'ops')]
    assert order == sorted(order)
    found = walk.counts(calls)
    assert len(set(call.file for call in calls)) == found['files'] < found['calls'] == len(calls)
    assert 0 < found['calls that check'] < found['calls'] / 2
    assert all((ROOT / 'graphattn' / call.file).exists() for call in calls)


def test_what_a_check_calls_is_a_check_and_generators_are_no_calls(tmp_path, monkeypatch):
    file = tmp_path / 'ops.py'
    file.write_text('def check(): return own()\ndef own(): return [*(i for i in (1, 2))]\n'
                    'def run(): return check(), own()\n')
    names = {}
    exec(compile(file.read_text(), file, 'exec'), names)
    monkeypatch.setattr(walk, 'LIBRARY', tmp_path)
    assert [(call.name, call.is_check) for call in walk.walk(names['run'])] == [
        ('run', False), ('check', True), ('own', True), ('own', False)]


@pytest.mark.slow
def test_every_walk_has_a_panel_and_a_row(walks):
    figure = walk.draw(walks)
    assert [axes.get_title(loc='left').split(':')[0] for axes in figure.axes] == [*walks]
    page = (ROOT / 'docs/architecture.md').read_text()
    rows = [re.escape(line.split('|')[1]) for line in walk.table(walks).splitlines()]
    assert [row for row in rows if not re.search(rf'^\|{row}\|', page, re.M)] == []


@pytest.mark.slow
def test_modules_and_imports_of_the_library_are_counted():
    found = counts.counts(ROOT)
    assert found['modules of graphattn'] == len(LIBRARY)
    assert found['packages and modules at its top'] < found['arrows between these']


def test_parameters_of_loops_and_operators_do_not_count(tmp_path):
    (tmp_path / 'graphattn/ops').mkdir(parents=True)
    many = ', '.join('abcdefghijk')
    (tmp_path / 'graphattn/ops/x.py').write_text(
        f'from graphattn.graphs import y\nfrom graphattn import z\nimport graphattn.ops.x\n'
        f'@jit\ndef loop({many}): pass\n@a.register_kernel("b")\ndef kernel({many}): pass\n'
        f'def _fake_b({many}): pass\ndef long({many}): pass\ndef short({many[3:]}): pass\n'
        f'class A:\n    def __init__(self, {many}): pass\n    def f(self, {many[3:]}): pass\n')
    found = counts.counts(tmp_path)
    assert found['functions of more than 10 parameters'] == 1
    assert found['constructors of more than 10 parameters'] == 1
    assert found['arrows between these'] == 2
