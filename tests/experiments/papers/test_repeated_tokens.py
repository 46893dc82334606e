"""Repeated tokens need all edges: block models find them, keep them, and the studies say so."""

import pytest
import torch
import torch.nn.functional as F

from experiments.papers.sbm_transformer import repeated_tokens
from experiments.papers.sbm_transformer.repeated_tokens import has_lost_edges
from experiments.runs.summary import read_summary
from experiments.tasks.duplicates import occurs_twice
from graphattn.models import Encoder, TokenClassifier
from graphattn.samplers.straight_through import ESTIMATORS
from graphattn.sources import BlockModelSource

LENGTH, STEPS = 16, 200


def densities():
    """The density of each step of a training by the recipe of the shipped configs, in small."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        source = BlockModelSource(1, 16, clusters=8)
        encoder = Encoder(source, num_tokens=LENGTH + 1, max_length=LENGTH, channels=16, heads=1,
                          num_layers=1, positions='none', embedding_std=1.)
        model = TokenClassifier(encoder, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        ptr, history = torch.arange(17) * LENGTH, []
        for _ in range(STEPS):
            tokens = torch.randint(1, LENGTH + 1, (16, LENGTH))
            logits, (graph,) = model(tokens.flatten(), ptr, return_graphs=True)
            optimizer.zero_grad()
            F.cross_entropy(logits, occurs_twice(tokens).long().flatten()).backward()
            optimizer.step()
            history.append(graph.density())
    return history


@pytest.mark.slow
def test_a_block_model_finds_its_edges_and_keeps_them():
    density = densities()
    assert density[0] < 0.35 and min(density[-30:]) > 0.9


@pytest.mark.slow
def test_every_row_is_of_a_run(studied, out):
    assert studied('estimators')['estimator'].tolist() == [
        'full attention', *ESTIMATORS]
    table = studied('repeated_tokens')
    assert {*table['attention']} < {*repeated_tokens.models(16, 4)}
    assert table['accuracy, %'][0] == pytest.approx(
        100 * read_summary(out / 'smoke/runs/repeated_tokens-full-0')['accuracy'])


@pytest.mark.parametrize('column, expected', [([.2, .9, .5], False), ([.2, .9, .4], True)])
def test_edges_are_lost_below_half_of_the_highest_density(tmp_path, column, expected):
    lines = [f'{epoch},{epoch},{value}' for epoch, value in enumerate(column)]
    header = 'epoch,step,train/density/layer0/all_heads'
    (tmp_path / 'metrics.csv').write_text('\n'.join([header, *lines]))
    assert has_lost_edges(tmp_path) is expected
