"""The command ``python -m analysis.communication``."""

from __future__ import annotations

from analysis.command import ask
from analysis.communication import communication
from analysis.communication.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``communication``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(communication, draw, arguments, name='communication',
        pattern='SlidingWindow(64) | GlobalTokens(4) | RandomKeys(4)', n=16384)


if __name__ == '__main__':
    main()
