"""The command ``python -m analysis.attention``."""

from __future__ import annotations

from analysis.attention import attention
from analysis.attention.drawing import draw
from analysis.command import ask


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``attention``: measure the graphs that the command line names.

    Args:
        arguments: The command line; the process's own if omitted.
    """
    ask(attention, draw, arguments, name='attention')


if __name__ == '__main__':
    main()
