"""The command ``python -m analysis.speed``."""

from __future__ import annotations

from analysis.command import ask
from analysis.speed import speed
from analysis.speed.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``speed``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(speed, draw, arguments, name='speed', n=4096)


if __name__ == '__main__':
    main()
