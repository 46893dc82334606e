"""Arguments, schedules, means and masks of the modules."""

import math
from types import SimpleNamespace

import pytest
import torch

from experiments.modules import (
    Classification,
    DensityEstimation,
    DocumentClassification,
    LanguageModelling,
    MultipleChoice,
    QuestionAnswering,
    SelfPretraining,
)
from experiments.modules.measures import Means
from graphattn.models import (
    CausalLanguageModel,
    Encoder,
    MaskedLanguageModel,
    MultipleChoiceModel,
    SequenceClassifier,
    SpanModel,
)
from graphattn.patterns import load_masks
from graphattn.sources import LearnedMaskSource, PatternSource

ENCODER = {'num_tokens': 10, 'max_length': 8, 'channels': 8, 'heads': 2, 'num_layers': 1}


def encoder(**options):
    return Encoder(PatternSource('Full'), **ENCODER, **options)


MODULES = {
    Classification: lambda: SequenceClassifier(encoder(), 3),
    DocumentClassification: lambda: SequenceClassifier(encoder(), 3),
    LanguageModelling: lambda: MaskedLanguageModel(encoder()),
    DensityEstimation: lambda: CausalLanguageModel(encoder(causal=True)),
    SelfPretraining: lambda: CausalLanguageModel(encoder(causal=True)),
    MultipleChoice: lambda: MultipleChoiceModel(encoder()),
    QuestionAnswering: lambda: SpanModel(encoder()),
}
modules = pytest.mark.parametrize('module', MODULES, ids=lambda kind: kind.__name__)


@modules
@pytest.mark.parametrize('name, value', [
    ('lr', 0.), ('lr', math.nan), ('lr', '0.1'), ('lr', None), ('weight_decay', -1.),
    ('weight_decay', math.inf), ('warmup', 1.5), ('warmup', math.nan), ('warmup', True),
    ('decay', 'linar'), ('betas', (0.9, 1.)), ('betas', (-0.1, 0.9)), ('betas', ('a', 0.9)),
    ('eps', 0.), ('eps', math.nan), ('mask_weight', math.nan), ('mask_lr', 0.), ('mask_lr', 0.1)])
def test_a_bad_value_is_named(module, name, value):
    with pytest.raises((TypeError, ValueError), match=f"'{name}' (must|requires)"):
        module(MODULES[module](), **{name: value})


@modules
def test_a_bad_model_is_named(module):
    with pytest.raises(TypeError, match="'model' must be"):
        module('model')


@pytest.mark.parametrize('module', [DensityEstimation, SelfPretraining, MultipleChoice,
                                    QuestionAnswering])
def test_a_model_of_another_objective_is_named(module):
    with pytest.raises(TypeError, match="'model' must be"):
        module(SequenceClassifier(encoder(), 3))


STEPS = 200


class Trained(Classification):
    trainer = SimpleNamespace(estimated_stepping_batches=STEPS)


def rates(**options) -> tuple[list[float], list[float]]:
    """The rate and the first beta of every step."""
    encoder = Encoder(PatternSource('Full'), num_tokens=4, max_length=8, channels=4, heads=1,
                      num_layers=1)
    made = Trained(SequenceClassifier(encoder, 2), **options).configure_optimizers()
    optimizer, schedule = made['optimizer'], made['lr_scheduler']['scheduler']
    rate, beta = [], []
    for _ in range(STEPS):
        rate.append(optimizer.param_groups[0]['lr'])
        beta.append(optimizer.param_groups[0]['betas'][0])
        optimizer.step()
        schedule.step() if len(rate) < STEPS else None
    return rate, beta


def test_one_cycle_begins_at_a_25th_and_its_momentum_falls_and_rises():
    rate, beta = rates(lr=5e-4, decay='one-cycle', warmup=0.2)
    assert rate[0] == pytest.approx(2e-5) and rate[-1] == pytest.approx(2e-9)
    peak = max(range(STEPS), key=rate.__getitem__)
    assert peak == 39 and rate[peak] == pytest.approx(5e-4)
    assert [beta[0], beta[peak], beta[-1]] == pytest.approx([0.95, 0.85, 0.95])
    steps = torch.tensor(rate).diff()
    torch.testing.assert_close(steps[:39], steps[:1].expand(39), atol=1e-8, rtol=1e-3)
    torch.testing.assert_close(steps[39:], steps[-1:].expand(160), atol=1e-8, rtol=1e-3)


@pytest.mark.parametrize('warmup', [0.2, 1.])
def test_rsqrt_is_long_range_arenas_formula(warmup):
    warm = warmup * STEPS
    factor = 0.05
    rate, beta = rates(lr=factor / warm**0.5, decay='rsqrt', warmup=warmup, betas=(0.9, 0.98))
    expected = [factor * min(1, (step + 1) / warm) / max(step, warm)**0.5 for step in range(STEPS)]
    assert rate == pytest.approx(expected) and set(beta) == {0.9}


@pytest.mark.parametrize('decay', ['cosine', 'linear'])
def test_a_rate_falls_to_zero(decay):
    rate, _ = rates(lr=1., decay=decay, warmup=0.1)
    assert rate[19] == 1. and rate[0] == pytest.approx(1 / 20) and 0. < rate[-1] < 0.01


def test_betas_and_eps_are_the_optimisers():
    made = Trained(classifier(), betas=(0.8, 0.9), eps=1e-6).configure_optimizers()
    group = made['optimizer'].param_groups[0]
    assert group['betas'] == (0.8, 0.9) and group['eps'] == 1e-6


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
    module.on_test_start()
    tested = load_masks(tmp_path / 'masks.npz')
    assert all(mask.build(8).num_edges == 64 for mask in last)
    assert all(mask.build(8).num_edges < 64 for mask in tested)
