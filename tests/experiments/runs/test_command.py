import pytest
from jsonargparse import ArgumentParser

from experiments.runs.command import in_short, run_or_exit
from graphattn.sources import GraphSource, LearnedMaskSource


def test_an_error_is_one_line_and_a_status(capsys):
    def command():
        raise ValueError("'size' must be positive (got 0)")

    with pytest.raises(SystemExit) as stop:
        run_or_exit(command)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: 'size' must be positive (got 0)\n"


def test_an_interrupt_is_one_line_and_the_status_of_shells(capsys):
    def command():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        run_or_exit(command)
    assert stop.value.code == 130
    assert capsys.readouterr().err == 'interrupted\n'


def test_a_package_that_is_missing_is_told_how_to_get(capsys):
    with pytest.raises(SystemExit) as stop:
        run_or_exit(lambda: __import__('no_such_package'))
    line, = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "No module named 'no_such_package'; pip install" in line


def test_errors_of_nested_classes_come_without_the_config():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument('--source', type=GraphSource | None)
    path = f'{LearnedMaskSource.__module__}.LearnedMaskSource'
    config = {'class_path': path, 'init_args': {'heads': 2, 'size': 8, 'temperature': 0}}
    with pytest.raises(Exception) as raised:
        parser.instantiate(parser.parse_object({'source': config}))
    line = in_short(ValueError(str(raised.value)))
    assert "'temperature' must be positive" in line and 'init_args' not in line


def test_other_errors_are_put_into_one_line():
    assert in_short(ValueError('corpus.txt, line 2:\n  - a list')) == 'corpus.txt, line 2: - a list'
