"""Colours that everyone can tell apart, and type that all figures share."""

import io
import re
from itertools import combinations
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from jsonargparse import ArgumentParser
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from analysis import command as analysis_command
from experiments.runs import command as experiments_command
from graphattn.style import COLOURS, SHADES, in_style

ROOT = Path(__file__).parent.parent

# What linear RGB becomes for those who lack a kind of cone: Machado et al., "A Physiologically-
# based Model for Simulation of Color Vision Deficiency" (2009), Table 1, severity 1.
SIGHT = {
    'normal': np.eye(3),
    'protanopia': np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    'deuteranopia': np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    'tritanopia': np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}
XYZ = np.array([[.4124, .3576, .1805], [.2126, .7152, .0722], [.0193, .1192, .9505]])


def linear(colour: str) -> np.ndarray:
    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055)**2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    x = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * x[1] - 16, 500 * (x[0] - x[1]), 200 * (x[1] - x[2])])


@pytest.mark.parametrize('sight', SIGHT)
def test_colours_are_told_apart(sight):
    seen = [lab(SIGHT[sight] @ linear(colour)) for colour in COLOURS[:6]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


def test_no_colour_is_lost_on_white_paper():
    assert min(1.05 / (XYZ[1] @ linear(colour) + 0.05) for colour in COLOURS) > 2.5


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
