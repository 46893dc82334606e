"""Studies by name: ``python -m experiments.papers NAME --scale smoke``."""

import sys

from experiments.papers.runner import run_words
from experiments.runs.command import run_or_exit


def command() -> None:
    run_or_exit(lambda: run_words(*(sys.argv[1:] or ['--help'])))


if __name__ == '__main__':
    command()
