"""Constants to which a model compares, and what a user is told of a run."""

import math

import pytest
import torch
from torch import nn

from experiments.modules.measures import of_constant
from experiments.runs.attention import nearly_full
from experiments.runs.figures import compared_curves, received_shares, training_curves
from experiments.runs.run_folder import RunFolder, epoch_line, heads_without_edges
from experiments.runs.summary import BASELINE_ACCURACY, BASELINE_MAE
from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource


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


SIZES = {'num_tokens': 10, 'max_length': 8, 'channels': 8, 'heads': 2, 'num_layers': 2}
DENSITY = {'layer0/head0': 0.0009, 'layer0/head1': 0.3, 'layer1/head0': 0.002, 'layer1/head1': 0.}


@pytest.mark.parametrize('exploration, lost', [
    (0.01, ['layer0/head0', 'layer1/head1']), (0., ['layer1/head1']),
    (0.1, ['layer0/head0', 'layer1/head0', 'layer1/head1'])])
def test_heads_of_block_models_by_their_exploration(exploration, lost):
    model = Encoder(BlockModelSource(2, 4, 4, exploration=exploration), **SIZES)
    assert heads_without_edges(model, DENSITY) == lost


@pytest.mark.parametrize('places', [['layer0/head0', 'layer1/head0'], ['all_layers/head0']])
def test_heads_of_learned_masks_by_their_values(places):
    # The border is on, so the density is not 0.
    model = Encoder(LearnedMaskSource(2, 8), share_source=len(places) == 1, **SIZES)
    density = {place.replace('head0', head): 0.4 for place in places for head in ('head0', 'head1')}
    masks = [module for module in model.modules() if isinstance(module, LearnedMaskSource)]
    with torch.no_grad():
        for mask in masks:
            mask.logit[0], mask.logit[1] = -1., torch.arange(-5., 1)[:mask.logit.size(1)] + 0.5
    assert heads_without_edges(model, density) == places


def test_heads_of_a_layer_are_judged_by_the_source_of_this_layer():
    model = Encoder(['SlidingWindow(1)', BlockModelSource(2, 4, 4, exploration=0.1)], **SIZES)
    assert heads_without_edges(model, DENSITY) == ['layer1/head0', 'layer1/head1']


IMAGES = torch.randint(1, 5, (3, 16), generator=torch.Generator().manual_seed(0))
SOURCES = {'pattern': PatternSource('SlidingWindow(2)'), 'block model': BlockModelSource(2, 4, 8),
           **{mode: LearnedMaskSource(2, 16, mode=mode)
              for mode in ('dam_structured', 'dam_unstructured', 'soft')}}


@pytest.mark.parametrize('padding', [None, 4])
@pytest.mark.parametrize('source', SOURCES.values(), ids=SOURCES)
def test_the_mean_over_pixels_is_the_density(source, padding):
    encoder = Encoder(source, num_tokens=5, max_length=16, channels=8, heads=2, num_layers=2,
                      padding_token=padding)
    shares = received_shares(SequenceClassifier(encoder, 3), IMAGES, draws=2)
    for share in shares:
        assert share.shape[1:] == IMAGES.shape
        assert torch.equal(share.isnan(), (IMAGES == (padding or -1)).expand_as(share))
        assert ((0 <= share) & (share <= 1) | share.isnan()).all()
    if isinstance(source, LearnedMaskSource) and source.mode == 'soft' and padding is None:
        prob = source.logit.sigmoid()
        assert float(shares[0].mean()) == pytest.approx(float(prob.mean()), abs=.01)


def test_compared_runs_have_their_density_and_a_ring_at_the_tested_epoch():
    run = [{'epoch': epoch, 'val/f1': .5, 'val/density/layer0/head0': .2,
            'val/density/layer0/head1': .1 * epoch} for epoch in (1, 2)]
    of_f1, of_density = compared_curves({'run': [run]}, {'run': [2]}).axes
    for axes, value in (of_f1, .5), (of_density, .2):
        ring = axes.lines[1]
        assert [*ring.get_xdata(), *ring.get_ydata()] == pytest.approx([2, value])


def test_an_epoch_is_told_once_its_checkpoint_is_written(capsys):
    folder = RunFolder()
    folder.unsaid = ['epoch 1']
    folder.on_train_end(None, None)
    folder.on_train_end(None, None)
    assert capsys.readouterr().out == 'epoch 1\n'
