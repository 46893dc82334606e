"""Colours and type that all figures share."""

from pathlib import Path

import matplotlib.image
from jsonargparse import ArgumentParser

from analysis import command as analysis_command
from experiments.runs import command as experiments_command
from graphattn.style import SHADES


def test_all_commands_draw_in_it(tmp_path):
    seen = []

    def run(options=None):
        seen.append(matplotlib.rcParams['image.cmap'])

    parser = ArgumentParser()
    parser.add_argument('--out', type=Path, default=tmp_path)
    experiments_command.run_or_exit(run)
    analysis_command.run_or_exit(parser, run, [])
    assert seen == [SHADES, SHADES]
