"""Studies of density at the scale of smoke tests, and what they are made of."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.data.sequences import SequenceData, Sequences
from experiments.papers.sbm_transformer import attention_received, densities, repeated_tokens
from experiments.papers.sbm_transformer.density import TASKS, OfInputs, of_inputs, reloaded
from experiments.papers.sbm_transformer.density_penalty import (
    ALONE,
    AVERAGE,
    FULL,
    PAPER,
    SAMPLED,
    WITH_LOOPS,
    token_counts_accuracy,
)
from experiments.papers.sbm_transformer.repeated_tokens import has_lost_edges
from experiments.papers.study import restored
from experiments.runs.checkpoints import read_checkpoint, write_checkpoint
from experiments.runs.figures import received_shares
from experiments.runs.summary import read_summary
from experiments.tasks.synthetic import occurs_twice
from graphattn.models import Encoder, SequenceClassifier, TokenClassifier
from graphattn.patterns import SlidingWindow
from graphattn.samplers.straight_through import ESTIMATORS
from graphattn.sources import BlockModelSource


def classifier(source, **options):
    return SequenceClassifier(Encoder(source, num_tokens=5, max_length=8, channels=8, heads=2,
                                      num_layers=2, **options), 3)


@pytest.mark.slow
def test_rows_are_means_of_the_runs(studied, out):
    rows = studied('density_penalty').set_index(['attention', 'lambda'])
    for name, weight, run in ((SAMPLED, '1', 'sbm-1'), (WITH_LOOPS, '0', 'sbm+I-0'),
                              (FULL, np.nan, 'full')):
        found = read_summary(out / f'smoke/runs/digits-{run}-0')
        row = rows.loc[(name, weight)]
        assert row['accuracy, %'] == pytest.approx(100 * found['accuracy'])
        assert row['density, %'] == pytest.approx(100 * np.mean([*found['density'].values()]))
    density = rows['density, %'].droplevel('lambda')
    assert density[FULL] == 100 and density[ALONE] == pytest.approx(100 / 64)
    assert density['window'] == pytest.approx(100 * SlidingWindow(8).build(64).density())
    assert (rows['below full, points'] + rows['accuracy, %']).nunique() == 1
    assert rows['accuracy, %'].droplevel('lambda')['most frequent class'] == pytest.approx(
        100 * 37 / 360, abs=0.01)


def test_averages_of_the_paper_are_those_of_its_tasks():
    for figures in PAPER.values():
        assert list(figures) == [*TASKS['paper'], AVERAGE]
        mean = np.mean([figures[task][0] for task in TASKS['paper']])
        assert figures[AVERAGE][0] == pytest.approx(mean, abs=0.006)


@pytest.mark.parametrize('of_order', [False, True])
def test_counts_know_what_is_in_a_sequence_and_not_in_what_order(of_order):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 2, (600, 9)).astype(np.uint8)
    label = tokens[:, 0] if of_order else tokens.sum(axis=1) > 4
    parts = {'train': slice(0, 400), 'test': slice(400, 600)}
    data = SequenceData('', 2, 2, {name: Sequences.of_equal_length(tokens[part], label[part])
                                   for name, part in parts.items()})
    accuracy = token_counts_accuracy(data)
    assert accuracy < 0.75 if of_order else accuracy > 0.98


@pytest.mark.slow
def test_densities_of_inputs_are_those_of_the_run(studied, out):
    rows = studied('densities').set_index(['lambda', 'layer', 'head'])
    for weight in ('0', '1'):
        for place, value in read_summary(
                out / f'smoke/runs/digits-sbm-{weight}-0')['density'].items():
            layer, head = place.removeprefix('layer').split('/head')
            row = rows.loc[weight, int(layer), head]
            assert row['density, %'] == pytest.approx(100 * value, abs=0.5)  # other draws
            assert row['lowest'] < row['density, %'] < row['highest']
        of_layer = rows.loc[weight, 0]['density, %']
        assert of_layer[densities.ALL_HEADS] == pytest.approx(of_layer[['0', '1']].mean())


def test_spread_is_over_inputs():
    density = torch.tensor([[[0.1, 0.3], [0.5, 0.5]]], dtype=torch.float64)
    both, first, second = densities.layer_rows(density)
    assert both['density, %'] == pytest.approx(35) and both['highest'] == pytest.approx(40)
    assert first['spread over inputs'] == pytest.approx(100 * np.std([0.1, 0.3], ddof=1))
    assert second['spread over inputs'] == 0 and second['head'] == '1'


def test_shares_are_densities_of_each_image():
    torch.manual_seed(0)
    model = classifier(BlockModelSource(2, 4, 4))
    some = Sequences.of_equal_length(np.arange(40, dtype=np.uint8).reshape(5, 8) % 5, np.zeros(5))
    found = of_inputs(model, some)
    assert found.density.shape == (2, 2, 5) and found.predicted.shape == (5,)
    images = torch.from_numpy(some.tokens).long().view(5, 8)
    torch.manual_seed(0)
    for layer, shares in enumerate(received_shares(model, images)):
        torch.testing.assert_close(shares.mean(dim=2).double(), found.density[layer])


def test_extremes_are_right_and_in_order():
    density = torch.tensor([[[0.5, 0.1, 0.3, 0.2, 0.4, 0.0]]])
    found = OfInputs(density, torch.tensor([1, 1, 1, 1, 1, 0]))
    label = torch.ones(6, dtype=torch.long)
    assert attention_received.extremes(found, label, 2).tolist() == [1, 3, 4, 0]
    assert attention_received.extremes(found, label, 4).tolist() == [1, 3, 2, 4, 0]  # none twice


def test_correlations_are_those_of_the_images():
    images = torch.tensor([[0, 0], [0, 4], [4, 4]])
    density = torch.tensor([[[0.1, 0.2, 0.3], [0.2, 0.2, 0.2]]])
    found = OfInputs(density, torch.tensor([0, 0, 1]))
    shares = torch.stack([0.5 - 0.1 * images, torch.full((3, 2), torch.nan)])
    shares[1, :, 0] = images[:, 0].float()
    first, second = attention_received.head_rows(images, torch.tensor([0, 0, 0]), found, [shares])
    assert first['density with mean grey level'] == pytest.approx(1.)
    assert first['received with grey level'] == pytest.approx(-1.)
    assert (first['of those right'], first['of those wrong']) == pytest.approx((15, 30))
    assert second['density with mean grey level'] is None
    assert second['received with grey level'] == pytest.approx(1.)  # of pixels that are shown


@pytest.mark.slow
def test_images_are_drawn_and_described(studied, out):
    rows = studied('attention_received')
    assert rows[['layer', 'head']].astype(int).values.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert (rows['lambda'] == '1').all()
    assert (out / 'smoke/attention_received/digits.png').stat().st_size > 10_000


@pytest.mark.slow
def test_what_was_selected_is_what_is_restored(studied, out, tmp_path):
    studied('density_penalty')
    run = shutil.copytree(out / 'smoke/runs/digits-full-0', tmp_path / 'run')
    state = read_checkpoint(run / 'checkpoints' / 'last.ckpt')
    name = 'model.encoder.norm.bias'
    state['state_dict'][name] = torch.full_like(state['state_dict'][name], 7.)
    write_checkpoint(state, run / 'checkpoints' / 'best.ckpt')
    assert not (restored(run)[0].model.encoder.norm.bias == 7.).any()
    config = (run / 'config.yaml').read_text()
    (run / 'config.yaml').write_text(config.replace('select_on: null', 'select_on: val/loss'))
    model, test = reloaded(run)
    assert (model.encoder.norm.bias == 7.).all() and len(test.label) == 360


LENGTH, STEPS = 16, 200


def densities_of_steps():
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
    density = densities_of_steps()
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
