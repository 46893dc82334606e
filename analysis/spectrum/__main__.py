"""The command ``python -m analysis.spectrum``."""

from __future__ import annotations

from analysis.command import ask
from analysis.spectrum import spectrum
from analysis.spectrum.drawing import draw


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``spectrum``: measure the graphs that the command line names.

    Args:
        arguments: The words of the command line; by default those of this process.
    """
    ask(spectrum, draw, arguments, name='spectrum')


if __name__ == '__main__':
    main()
