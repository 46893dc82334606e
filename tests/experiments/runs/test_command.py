from typing import Literal

import pytest
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import PositiveInt

from experiments.runs.command import in_short, run_or_exit


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
