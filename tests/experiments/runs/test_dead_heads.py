"""Heads that keep no edges of their own."""

import pytest
import torch

from experiments.runs.dead_heads import heads_without_edges
from graphattn.models import Encoder
from graphattn.sources import BlockModelSource, LearnedMaskSource

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
