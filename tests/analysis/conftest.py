"""Fixtures of the tests of all commands."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure


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


def save_no_picture(figure, target, **_):
    target.write(b'PNG') if hasattr(target, 'write') else Path(target).write_bytes(b'PNG')


@pytest.fixture
def pictures_of_no_work(monkeypatch):
    """Nobody looks at the pictures of a test, which take most of its time."""
    monkeypatch.setattr(Figure, 'savefig', save_no_picture)
