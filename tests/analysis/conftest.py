"""Fixtures of the tests of all commands."""

import pytest


@pytest.fixture
def error_line(capsys):
    """Runs a command that must fail: the one line that it writes, with exit status 2."""
    def run(main, arguments):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        lines = capsys.readouterr().err.strip().splitlines()
        assert exit_.value.code == 2
        assert len(lines) == 1
        return lines[0]
    return run
