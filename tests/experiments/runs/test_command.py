import pytest

from experiments.runs.command import run_or_exit


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
