"""Colours and type that all figures share."""

import io
import re
from pathlib import Path

import matplotlib.image
import pytest
from jsonargparse import ArgumentParser
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import command as analysis_command
from experiments.runs import command as experiments_command
from graphattn.style import COLOURS, SHADES, in_style

ROOT = Path(__file__).parent.parent


def test_the_style_ends_where_it_began():
    before = dict(matplotlib.rcParams)
    with in_style():
        assert [to_hex(f'C{number}') for number in range(10)] == list(COLOURS)
        title = Figure().subplots().set_title('title')
        assert title.get_fontsize() == matplotlib.rcParams['font.size']
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_no_title_is_cut_off():
    picture = io.BytesIO()
    with in_style():
        figure = Figure(figsize=(2, 2), layout='constrained')
        figure.subplots().set_title('a title that is much longer than the figure is wide')
        figure.savefig(picture, format='png')
    picture.seek(0)
    border = matplotlib.image.imread(picture)[:, [0, -1], :3]
    assert (border == 1).all()


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
