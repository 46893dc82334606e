"""Bits of every symbol, the first one included, and sequences that a model draws."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.data.batch import TokenBatch
from experiments.data.digits import DigitImages
from experiments.data.sequences import SequenceData, SequenceSource
from experiments.modules import DensityEstimation
from experiments.modules.density_estimation import behind_start
from experiments.modules.measures import Means
from experiments.tasks import Images
from experiments.tasks.images import sample
from graphattn.models import CausalLanguageModel, Encoder
from graphattn.sources import PatternSource

PTR = torch.tensor([0, 3, 3, 5])
TOKENS = torch.tensor([1, 2, 0, 4, 3])


def model(source='Full', num_tokens=6, max_length=8, **options):
    torch.manual_seed(0)
    return CausalLanguageModel(Encoder(
        PatternSource(source), num_tokens=num_tokens, max_length=max_length, channels=8, heads=2,
        num_layers=2, causal=True, **options))


def test_each_symbol_is_predicted_from_those_before_it():
    assert behind_start(TOKENS, PTR, 5).tolist() == [5, 1, 2, 5, 4]
    assert TOKENS.tolist() == [1, 2, 0, 4, 3]


def test_bits_are_those_of_all_symbols():
    module, means = DensityEstimation(model()), Means()

    def log_means(values, weight):
        for name, value in values.items():
            means.add(name, torch.as_tensor(value), weight)

    module.log_means = log_means
    for part in (slice(0, 3), slice(3, 5)):
        tokens = TOKENS[part]
        module.test_step(TokenBatch(tokens, torch.tensor([0, len(tokens)]), torch.zeros(1)), 0)
    logged = means.compute()
    log_prob = module.model(torch.tensor([5, 1, 2, 5, 4]), PTR).log_softmax(dim=1)
    nats = -log_prob[torch.arange(5), TOKENS].mean()
    assert logged['test/loss'] == pytest.approx(float(nats), rel=1e-5)
    assert logged['test/bits_per_dim'] == pytest.approx(float(nats) / math.log(2), rel=1e-5)


@pytest.mark.slow
def test_all_sequences_together_have_probability_one():
    """Four symbols and three places: a density, and not only a value that falls."""
    module = DensityEstimation(model(num_tokens=5, hops=3, teleport=.1).double())
    module.model.head[-1].bias.data[-1] = -1e9  # the beginning never comes again
    tokens = torch.cartesian_prod(*[torch.arange(4)] * 3).flatten()
    ptr = 3 * torch.arange(65)
    log_prob = module.model(behind_start(tokens, ptr, 4), ptr).log_softmax(dim=1)
    of_each = log_prob[torch.arange(192), tokens].view(64, 3).sum(dim=1)
    assert float(of_each.exp().sum()) == pytest.approx(1.)


@pytest.mark.slow
@pytest.mark.parametrize('source', ['Full', 'SlidingWindow(2)',
                                    'diffuser(window=4, num_global=2, num_random=2)'])
def test_sequences_are_drawn_by_the_probabilities_of_the_whole(source):
    drawing = model(source, hops=3, teleport=.1)
    drawing.head[-1].weight.data *= 20
    drawn = sample(drawing, 5, 8, 6, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (6, 8) and 0 <= drawn.min() <= drawn.max() < 5 and drawing.training
    generator = torch.Generator().manual_seed(0)
    again = torch.zeros(6, 0, dtype=torch.long)
    for _ in range(8):
        tokens = torch.cat([torch.full((6, 1), 5), again], dim=1)
        ptr = torch.arange(7) * tokens.size(1)
        # Edges of a sequence that is not whole yet are those of the whole one's first tokens.
        graph = drawing.encoder.layers[0].attention.source.graph(torch.tensor([0, 8]))
        mask = graph.to_mask()[:tokens.size(1), :tokens.size(1)]
        along = type(graph).batch([type(graph).from_mask(mask)] * 6)
        with torch.no_grad():
            x = drawing.eval().encoder(tokens.flatten(), ptr, graph=along)
            logits = drawing.head(x[ptr[1:] - 1])[:, :5]
        again = torch.cat([again, logits.softmax(1).multinomial(1, generator=generator)], dim=1)
    assert torch.equal(again, drawn)


class Shapeless(SequenceSource):
    def read(self, max_length):
        parts = DigitImages().read(64).parts
        return SequenceData('shapeless', 17, 10, parts)


def prepared(source=None, num_tokens=18, **options):
    task = Images(source or DigitImages(), max_length=64, **options)
    task.trainer = SimpleNamespace(lightning_module=SimpleNamespace(
        model=model(num_tokens=num_tokens, max_length=64)))
    task.prepare_data()
    return task


@pytest.mark.parametrize('options, match', [
    (dict(num_tokens=17), "'num_tokens' of the encoder must be 18, .* symbols of stand-in"),
    (dict(num_tokens=19), "'num_tokens' of the encoder must be 18"),
    (dict(source=Shapeless()), "'source' must.*source.*images .got Shapeless"),
    (dict(cls=True), "'cls' must be False for images"),
    (dict(num_samples=-1), "'num_samples' must.*got -1")])
def test_other_data_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        prepared(**options)


@pytest.mark.slow
def test_images_are_drawn_beside_real_ones():
    task = prepared(num_samples=3)
    drawing = model('SlidingWindow(2)', num_tokens=18, max_length=64, positions=[8, 8, 1])
    figure = task.figures(drawing)['samples']
    assert len(figure.axes) == 6
    real = task.data.parts['test'].sequence(1).reshape(8, 8) / 16
    assert np.allclose(figure.axes[1].images[0].get_array(), real)
    assert prepared(num_samples=0).figures(drawing) == {}
