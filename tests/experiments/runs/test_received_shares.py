"""The share of an image's queries that attend to each pixel, for every kind of source."""

from __future__ import annotations

import pytest
import torch

from experiments.runs.figures import received_shares
from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

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
