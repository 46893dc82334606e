"""The command ``python -m analysis.mixing``."""

from __future__ import annotations

from analysis.command import ask
from analysis.mixing import mixing
from analysis.mixing.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``mixing``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(mixing, draw, arguments, name='mixing',
        pattern='SlidingWindow(2) | RandomKeys(2)', n=512)


if __name__ == '__main__':
    main()
