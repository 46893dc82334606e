"""The command ``python -m analysis.diffusion``."""

from __future__ import annotations

from analysis.command import ask
from analysis.diffusion import diffusion
from analysis.diffusion.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``diffusion``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(diffusion, draw, arguments, name='diffusion',
        pattern='SlidingWindow(2) | RandomKeys(2)', n=512)


if __name__ == '__main__':
    main()
