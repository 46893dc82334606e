"""Studies share what they train, among themselves and over the processes of a test run."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments.papers import runner
from experiments.papers.study import Study
from tests.experiments.conftest import draw_nothing

SEES_STAND_INS = {'question_answering', 'choices', 'image_density'}  # below the paper's scale


@pytest.fixture(scope='session')
def out(tmp_path_factory, worker_id) -> Path:
    """The folder of all studies."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == 'master' else folder.parent) / 'studies'
    folder.mkdir(exist_ok=True)
    return folder


OPTIONS = {**{name: {'tasks': ['RTE']} for name in ('pruning', 'stages', 'sbm_glue')},
           'diagonal': {'seeds': 1},
           'repeated_tokens': {'attentions': ['full', 'block model, Algorithm 1, Eq. 9', 'window',
                                              'Linformer']}}


@pytest.fixture(scope='session')
def studied(out) -> Callable[[str], pd.DataFrame]:
    """Return the table of a study, which runs when it is first asked for, and leaves a figure."""
    @cache
    def run(name):
        runner.run(name, scale='smoke', out=out, **OPTIONS.get(name, {}))
        assert (out / 'smoke' / name / 'figure.png').stat().st_size > 10_000
        return pd.read_csv(out / 'smoke' / name / 'table.csv', dtype={'lambda': str, 'head': str})
    return run


def config_of(run: Path) -> dict:
    """Return what a run was told of its module."""
    return yaml.safe_load((run / 'config.yaml').read_text())['model']['init_args']


def encoder_of(run: Path) -> dict:
    return config_of(run)['model']['init_args']['encoder']['init_args']


@pytest.fixture(scope='module', autouse=True)
def plain_figures_of_modules():
    """Nobody looks at the figures of these runs, of which there are many; other tests draw them."""
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope='session', autouse=True)
def checked_reports():
    """Whatever a study reports in a test can be seen, and is compared with its like."""
    report = Study.report

    def checked(study, table):
        for drawn in (table.figure, *table.others.values()):
            check_that_all_is_within(drawn)
        if study.name in SEES_STAND_INS and study.scale != 'paper':
            assert not any('paper' in column for row in table.rows for column in row)
        report(study, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Study, 'report', checked)
        yield


def check_that_all_is_within(figure):
    """No axis cuts off a point of a line, of a scatter, or the end of a bar."""
    for axes in figure.axes:
        points = [line.get_xydata() for line in axes.lines
                  if line.get_transform() == axes.transData]
        points += [np.asarray(some.get_offsets()) for some in axes.collections
                   if some.get_offset_transform() == axes.transData]
        points += [bar.get_bbox().get_points() for bar in axes.patches
                   if hasattr(bar, 'get_bbox') and bar.get_transform().contains_branch(
                       axes.transData) and bar.get_height() and bar.get_width()]
        for at, limits in enumerate((axes.get_xlim(), axes.get_ylim())):
            found = np.concatenate([[], *(some[:, at] for some in points)]).astype(float)
            found = found[np.isfinite(found)]
            low, high = sorted(limits)
            slack = 1e-9 * (high - low)
            cut = found[(found < low - slack) | (found > high + slack)]
            assert not cut.size, f'{axes.get_title()!r} shows {low} to {high}, and not {cut}'
