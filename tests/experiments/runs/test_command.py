import pytest
from jsonargparse import ArgumentParser

from experiments.runs.command import in_short, run_or_exit
from graphattn.sources import GraphSource, LearnedMaskSource


def fail(error):
    raise error


@pytest.mark.parametrize('command, status, said', [
    (lambda: fail(ValueError("'size' must be positive (got 0)")), 2,
     "error: 'size' must be positive (got 0)\n"),
    (lambda: fail(KeyboardInterrupt), 130, 'interrupted\n'),  # as shells have it
    (lambda: __import__('no_such_package'), 2,
     "error: No module named 'no_such_package'; pip install")])
def test_an_error_is_one_line_and_a_status(command, status, said, capsys):
    with pytest.raises(SystemExit) as stop:
        run_or_exit(command)
    error = capsys.readouterr().err
    assert stop.value.code == status and error.startswith(said) and error.count('\n') == 1


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
