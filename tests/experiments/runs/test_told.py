"""Constants to which a model compares, and what a user is told of an epoch."""

import math

import pytest
import torch
from torch import nn

from experiments.modules.baseline import of_constant
from experiments.runs.attention import nearly_full
from experiments.runs.figures import training_curves
from experiments.runs.run_folder import RunFolder, epoch_line
from experiments.runs.summary import BASELINE_ACCURACY, BASELINE_MAE
from graphattn.sources import PatternSource


@pytest.mark.parametrize('targets, name, value', [
    ([0, 1, 1, 2], BASELINE_ACCURACY, .5), ([1, -100, -100, 1], BASELINE_ACCURACY, 1.),
    ([3, 4], BASELINE_ACCURACY, .5),
    ([[1.], [2.], [6.]], BASELINE_MAE, 5 / 3),
    ([[1., 0.], [math.nan, 4.], [1., 0.]], BASELINE_MAE, 4 / 5)])
def test_a_constant_is_measured(targets, name, value):
    found, measured = of_constant(torch.tensor(targets))
    assert found == name and float(measured) == pytest.approx(value)


def test_a_line_has_all_metrics_of_an_epoch_and_one_density():
    row = {'epoch': 2, 'step': 8, 'train/loss': .5, 'train/density/layer0/head0': .25,
           'train/density/layer0/head1': .75, 'val/loss': .625, 'heads_without_edges': 1.}
    assert epoch_line(row, 10, 3.) == ('epoch 2/10, step 8, 3.0 s; training loss 0.5, density '
                                       '50.0%; development loss 0.625')
    assert epoch_line({'epoch': 1, 'step': 1}, None, 0.) == 'epoch 1, step 1, 0.0 s'


@pytest.mark.parametrize('pattern, density, is_told', [
    ('bigbird(block=16)', {'all': 1.}, True), ('bigbird(block=16)', {'a': .2, 'b': 1.}, False),
    ('Full', {'all': 1.}, False), ('bigbird(block=16)', {}, False)])
def test_a_pattern_that_is_nearly_full_is_told(pattern, density, is_told):
    line = nearly_full(nn.Sequential(PatternSource(pattern)), density)
    assert (line is not None) == is_told
    assert not is_told or '--attention' in line and '100%' in line


def test_curves_mark_the_tested_epoch_and_leave_noise_small():
    history = [{'epoch': epoch, 'val/f1': .9 + .015 * (epoch % 2)} for epoch in (1, 2, 3)]
    axes, = training_curves(history, 2).axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_label() == 'tested'] == [2]
    low, high = axes.get_ylim()
    assert .15 < high - low < .2 and low < .9 < .915 < high


def test_epochs_of_an_earlier_version_are_counted_from_1():
    folder = RunFolder()
    folder.load_state_dict({'history': [{'epoch': 0}, {'epoch': 1}], 'seconds': 1.})
    assert [row['epoch'] for row in folder.history] == [1, 2]
