"""Colours and type that all figures share."""

import re
from pathlib import Path

import matplotlib.image
import pytest
from jsonargparse import ArgumentParser

from analysis import command as analysis_command
from experiments.runs import command as experiments_command
from graphattn.style import SHADES

ROOT = Path(__file__).parent.parent


def test_all_commands_draw_in_it(tmp_path):
    seen = []

    def run(options=None):
        seen.append(matplotlib.rcParams['image.cmap'])

    parser = ArgumentParser()
    parser.add_argument('--out', type=Path, default=tmp_path)
    experiments_command.run_or_exit(run)
    analysis_command.run_or_exit(parser, run, [])
    assert seen == [SHADES, SHADES]


@pytest.mark.parametrize('folder', ['analysis', 'experiments'])
def test_no_figure_has_colours_and_type_of_its_own(folder):
    own = re.compile(r"fontsize=\d|dpi=|'tab:|'viridis|'Greys|rcParams|style\.use|pyplot")
    assert [path for path in (ROOT / folder).rglob('*.py') if own.search(path.read_text())] == []
