"""Reports of modules are of the weights, and of the evaluations, that they claim to be of."""

import math
from types import SimpleNamespace

import torch

from experiments.modules import Classification
from experiments.modules.means import Means
from graphattn.models import Encoder, SequenceClassifier
from graphattn.patterns import load_masks
from graphattn.sources import LearnedMaskSource


def classifier(source='Full'):
    return SequenceClassifier(Encoder(source, num_tokens=10, max_length=8, channels=8, heads=2,
                                      num_layers=1), 3)


def test_means_weigh_and_hide_no_nan():
    means = Means()
    for value, weight in ((1., 1), (4., 2)):
        means.add('loss', torch.tensor(value), weight)
    assert means.compute() == {'loss': 3.}
    for value in (math.nan, 1.):
        means.add('loss', torch.tensor(value), 10)
    assert math.isnan(means.compute()['loss'])


def test_means_are_exact_where_half_precision_is_the_default():
    means = Means()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        for _ in range(600):
            means.add('loss', torch.tensor(1.2, dtype=torch.float), 8)
    finally:
        torch.set_default_dtype(default)
    assert math.isclose(means.compute()['loss'], 1.2, rel_tol=1e-4)


def test_masks_are_those_of_the_weights_that_are_tested(tmp_path):
    module = Classification(classifier(
        LearnedMaskSource(heads=2, size=8, mode='dam_structured')))
    source, = module.mask_sources
    module.trainer = SimpleNamespace(is_global_zero=True, default_root_dir=str(tmp_path))
    source.logit.data.fill_(1)
    module.on_train_end()
    last = load_masks(tmp_path / 'masks.npz')
    source.logit.data.fill_(-1)  # as another checkpoint has them
    module.on_test_end()
    tested = load_masks(tmp_path / 'masks.npz')
    assert all(mask.build(8).num_edges == 64 for mask in last)
    assert all(mask.build(8).num_edges < 64 for mask in tested)
