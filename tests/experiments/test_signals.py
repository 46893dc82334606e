"""A signal ends each command with one line and its status, from the first import on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import PositiveInt

from analysis.command import new_parser
from analysis.command import run_or_exit as run_analysis
from experiments.runs.command import in_short, run_or_exit
from experiments.runs.command_line import Parser
from experiments.signals import GO_ON, Ended

ROOT = Path(__file__).parents[2]
ENTRY = '-c', 'from experiments.entry import main; main()'
# Python imports this as it starts: a signal comes when a module is imported.
SENDER = """
import os, signal, sys

class Sender:
    def find_spec(self, name, *_):
        if name == os.environ['SENT_AT']:
            os.kill(os.getpid(), int(os.environ['SENT']))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.meta_path.insert(0, Sender())
"""


@pytest.mark.slow
@pytest.mark.parametrize('command, module, number', [
    ((*ENTRY, 'train', '--config', 'digits/sbm'), 'difflib', signal.SIGINT),
    ((*ENTRY, 'study', 'two_hop'), 'torch', signal.SIGHUP),
    (('-m', 'experiments.train', 'fit'), 'lightning', signal.SIGTERM),
    (('-m', 'experiments.predict'), 'numpy._core', signal.SIGINT),  # NumPy makes it an ImportError
    (('-m', 'experiments.cli', 'info'), 'experiments.cli', signal.SIGINT),
    (('-m', 'analysis', 'spectrum'), 'analysis.spectrum', signal.SIGTERM)])
def test_a_signal_during_the_imports_of_a_command(command, module, number, tmp_path):
    (tmp_path / 'sitecustomize.py').write_text(SENDER)
    ended = subprocess.run(
        [sys.executable, *command], cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, 'PYTHONPATH': f'{tmp_path}{os.pathsep}{ROOT}', 'SENT_AT': module,
             'SENT': str(int(number))})
    how = 'interrupted' if number == signal.SIGINT else f'ended by {signal.Signals(number).name}'
    assert (ended.returncode, ended.stderr) == (128 + number, f'{how}; {GO_ON}\n')


def test_an_import_as_a_library_leaves_signals_alone():
    code = 'import signal, experiments, analysis; print(signal.getsignal(signal.SIGTERM))'
    printed = subprocess.run([sys.executable, '-c', code], cwd=ROOT, text=True, capture_output=True)
    assert printed.stdout == f'{signal.SIG_DFL}\n'


@pytest.mark.parametrize('run', [
    run_or_exit,
    lambda command: run_analysis(new_parser('x', 'full', 8), lambda _: command(), [])])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_runs(run, number, capsys):
    def command():
        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            signal.raise_signal(number)
        finally:
            signal.signal(signal.SIGINT, before)

    with pytest.raises(SystemExit) as stop:
        run(command)
    how = 'interrupted' if number == signal.SIGINT else str(Ended(number))
    assert stop.value.code == 128 + number
    assert capsys.readouterr().err == f'{how}; {GO_ON}\n'


def fail(error):
    raise error


@pytest.mark.parametrize('command, status, said', [
    (lambda: fail(ValueError("'size' must be positive (got 0)")), 2,
     "error: 'size' must be positive (got 0)\n"),
    (lambda: fail(KeyboardInterrupt), 130, 'interrupted; run the same'),  # as shells have it
    (lambda: __import__('no_such_package'), 2,
     "error: No module named 'no_such_package'; pip install")])
def test_an_error_is_one_line_and_a_status(command, status, said, capsys):
    with pytest.raises(SystemExit) as stop:
        run_or_exit(command)
    error = capsys.readouterr().err
    assert stop.value.code == status and error.startswith(said) and error.count('\n') == 1


@pytest.mark.parametrize('kind, value, said', [
    (Literal['a', 'b'], 'c', "'name' must be one of 'a', 'b' (got 'c')"),
    (bool, 'perhaps', "'name' must be of type bool (got 'perhaps')"),
    (PositiveInt | None, '-1', "'name' must be a positive whole number")])
def test_refusals_of_the_parser_are_in_our_words(kind, value, said):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument('--name', type=kind)
    with pytest.raises(ArgumentError) as error:
        parser.parse_args([f'--name={value}'])
    assert in_short(error.value) == said


def test_an_option_is_not_abbreviated():
    parser = Parser(exit_on_error=False)
    parser.add_argument('--tokens', type=int)
    with pytest.raises(ArgumentError, match='--token 3; did you mean --tokens') as error:
        parser.parse_args(['--token', '3'])
    assert str(error.value).count('did you mean') == 1
