"""Output of commands that nobody can read: files come first, and a terminal without the letters or
a reader who has gone takes nothing away."""

import io
import os
import sys
from contextlib import contextmanager, redirect_stdout

import pytest

from analysis import command
from analysis.commands import COMMANDS
from graphattn.utils import files
from tests.forked import run_anew

NAMES = '京都', '大阪', '東京', '奈良'


def arguments_of(name, folder):
    """The command line of a question that takes little time."""
    if name == 'figures':
        return ['sbm-6', '--out', str(folder / 'out')]
    (folder / 'names.csv').write_text('source,target\n' + ''.join(
        f'{a},{b}\n{b},{a}\n' for a, b in zip(NAMES, NAMES[1:])), encoding='utf-8')
    return ['--graph', str(folder / 'names.csv'), '--out', str(folder / 'out'),
            *(['--at_least', '0.001'] if name == 'speed' else [])]


def run(name, arguments):
    COMMANDS[name](arguments)


def files_in(folder):
    return {path.name for path in folder.iterdir() if path.stat().st_size}


def expected_files(name):
    file = 'sbm-6' if name == 'figures' else name
    endings = {'report': ['html'], 'figures': ['json', 'png']}.get(name, ['json', 'csv', 'png'])
    return {f'{file}.{ending}' for ending in endings}


@contextmanager
def nobody_reads():
    """A standard output whose reader has gone, as after ``| head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, 'w', buffering=1, encoding='utf-8') as stream, redirect_stdout(stream):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures('pictures_of_no_work')
@pytest.mark.parametrize('name', ['spectrum', 'figures', 'report'])  # each by code of its own
def test_files_are_there_when_the_reader_has_gone(tmp_path, name):
    with nobody_reads():
        run(name, arguments_of(name, tmp_path))  # and the status is 0
    assert files_in(tmp_path / 'out') == expected_files(name)


@pytest.fixture
def order(monkeypatch):
    """Return the steps of a command in turn: a file, or a line that it says."""
    done = []
    for module, name in ((command, 'write_whole'), (command, 'say'), (files, 'write_whole')):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, function=function: (
            done.append(name), function(*given))[1])
    return done


@pytest.mark.slow
@pytest.mark.usefixtures('pictures_of_no_work')
@pytest.mark.parametrize('name', ['communication', 'figures', 'report', 'spectrum', 'speed'])
def test_a_terminal_without_the_letters_has_all_else(tmp_path, name, monkeypatch, order):
    written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, encoding='cp1252'))
    run(name, arguments_of(name, tmp_path))
    assert files_in(tmp_path / 'out') == expected_files(name)
    said = written.getvalue().decode('cp1252').splitlines()[0]
    if name != 'figures':
        assert order.pop(0) == 'say'  # what was read
        for words in ('names.csv: list of edges', 'commas', "header 'source target'",
                      '4 nodes (0 isolated)', '6 edges', 'directed', 'no weights', "such as '??'"):
            assert words in said
    assert order == sorted(order, reverse=True) and {*order} == {'say', 'write_whole'}


QUESTIONS = sorted(COMMANDS.keys() - {'figures', 'report'})

ASK = """
import importlib
for name in {questions}:
    importlib.import_module('analysis.' + name)
from analysis.hamiltonian import hamiltonian_path
from graphattn.patterns import SlidingWindow
assert hamiltonian_path(SlidingWindow(1).build(5)).exists
"""


@pytest.mark.slow
def test_asks_without_pictures_and_commands():
    result = run_anew(ASK.format(questions=QUESTIONS),
                      missing=['matplotlib', 'jsonargparse', 'analysis.command'])
    assert result.returncode == 0, result.stderr
