"""The command ``python -m analysis.speed``."""

from __future__ import annotations

from analysis.command import ask
from analysis.speed import speed
from analysis.speed.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``speed``: measure the graphs that the command line names.

    Args:
        arguments: The command line; the process's own if omitted.
    """
    ask(speed, draw, arguments, name='speed', n=4096)


if __name__ == '__main__':
    main()
