"""The command ``python -m analysis.attention``."""

from __future__ import annotations

from analysis.attention import attention
from analysis.attention.drawing import draw
from analysis.command import ask


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``attention``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(attention, draw, arguments, name='attention')


if __name__ == '__main__':
    main()
