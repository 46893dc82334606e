"""Arguments of the modules: each that is refused is named."""

import math

import pytest

from experiments.modules import (
    Classification,
    DensityEstimation,
    DocumentClassification,
    LanguageModelling,
    MultipleChoice,
    QuestionAnswering,
    SelfPretraining,
)
from graphattn.models import (
    CausalLanguageModel,
    Encoder,
    MaskedLanguageModel,
    MultipleChoiceModel,
    SequenceClassifier,
    SpanModel,
)
from graphattn.sources import PatternSource

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
