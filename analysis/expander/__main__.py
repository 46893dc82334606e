"""The command ``python -m analysis.expander``."""

from __future__ import annotations

from analysis.command import ask
from analysis.expander import expander
from analysis.expander.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``expander``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(expander, draw, arguments, name='expander')


if __name__ == '__main__':
    main()
