"""Studies at the scale of smoke tests: what their tables say holds of what was trained."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from experiments import train
from experiments.data.text.corpus import is_held_out
from experiments.modules.fine_tuning import BEST, LAST
from experiments.papers.diffuser import two_hop
from experiments.papers.few_documents import few_documents
from experiments.papers.ours import attached
from experiments.papers.sparsebert import diagonal, importance, masks
from experiments.papers.sparsebert.text_runs import LAMBDAS, PATTERNS, TextRuns, scores
from experiments.papers.study import Study
from graphattn.patterns import load_masks, parse, without_diagonal

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def studied(out):
    for study in (importance, diagonal, masks, two_hop):
        study.main(scale='smoke', out=out)
    return out


def table(out, study):
    assert (out / 'smoke' / study / 'figure.png').stat().st_size > 10_000
    return pd.read_csv(out / 'smoke' / study / 'table.csv')


def learned_probability(run):
    state = torch.load(run / 'checkpoints' / 'last.ckpt', weights_only=True)['state_dict']
    logit = state['model.encoder.source.logit']
    size = math.isqrt(logit.size(1))
    return logit.sigmoid().view(-1, size, size)


def source_patterns(run):
    return yaml.safe_load((run / 'config.yaml').read_text())['model']['init_args']['source'][
        'init_args']['pattern']


def test_every_pair_is_in_one_set_of_positions():
    for size in (3, 16, 64):
        sets = importance.positions(size)
        assert (torch.stack(list(sets.values())).sum(dim=0) == 1).all()
    assert sets['diagonal'].sum() == 64 and sets['[CLS] as key'].sum() == 63
    assert sets['distance 2'].nonzero().diff(dim=1).abs().unique().tolist() == [2]
    assert sets['[SEP] as query'].nonzero()[:, 0].unique().tolist() == [63]


def test_planted_importance_is_ranked():
    probability = torch.full((2, 16, 16), 0.5)
    sets = importance.positions(16)
    probability[:, sets['diagonal']] = 0.1
    probability[:, sets['distance 1']] = 0.9
    probability[1, sets['[CLS] as key']] = 0.8
    rows = {row['pairs']: row for row in importance.table(probability)}
    assert rows['diagonal']['rank'] == len(rows) and rows['distance 1']['rank'] == 1
    assert rows['[CLS] as key']['rank'] == 2
    assert rows['[CLS] as key']['mean P'] == pytest.approx(0.65)
    head = rows['distance 1']['head 0']
    assert head == pytest.approx(0.9 / float(probability[0].mean()))


def test_head_without_contrast_does_not_outweigh_the_others():
    probability = torch.full((2, 16, 16), 0.01)
    probability[0, 0] = 0.02
    probability[1] = 0.9
    rows = {row['pairs']: row for row in importance.table(probability)}
    assert rows['[CLS] as query']['rank'] == 1
    assert all(row['head 1'] == pytest.approx(1.) for row in rows.values())


def test_importance_is_that_of_the_trained_masks(studied):
    rows = table(studied, 'importance').set_index('pairs')
    run = studied / 'smoke/runs/soft-0'
    probability = learned_probability(run)
    heads, size, _ = probability.shape
    assert rows['number'].sum() == size**2
    assert rows.loc['diagonal', 'mean P'] == pytest.approx(
        float(probability.diagonal(0, 1, 2).mean()))
    assert rows.loc['[CLS] as key', 'head 1'] == pytest.approx(
        float(probability[1, 1:, 0].mean() / probability[1].mean()))
    normalised = rows['P / mean of the head']
    assert np.average(normalised, weights=rows['number']) == pytest.approx(1.)
    assert (normalised.rank(ascending=False) == rows['rank']).all()
    assert rows.loc['diagonal', 'paper'] == 'least important'
    source = yaml.safe_load((run / 'config.yaml').read_text())['model']['init_args']['model'][
        'init_args']['encoder']['init_args']['source']['init_args']
    assert source['mode'] == 'soft' and source['logit_drop'] == 10.
    assert probability.std() > 0.01  # it was learned: it starts at 1/2 within 0.001


def test_diagonal_takes_away_exactly_one_nth(studied):
    rows = table(studied, 'diagonal')
    assert list(rows.columns) == [
        'attention', 'diagonal', 'sparsity, %', 'paper, sparsity', 'masked tokens, loss',
        'loss, spread', 'RTE', 'average', 'average, spread', 'paper, average']
    sparsity = rows.set_index(['attention', 'diagonal'])['sparsity, %']
    assert sparsity['Full', 'with'] == 0.
    assert sparsity['Full', 'without'] == pytest.approx(100 / 16)
    assert sparsity['Full', 'with, random pairs dropped'] == pytest.approx(100 / 16)
    assert sparsity['Star', 'with'] == pytest.approx(100 * (1 - 74 / 256))
    for name in ('Star', 'DAM_s, 1e-1'):
        assert sparsity[name, 'without'] - sparsity[name, 'with'] == pytest.approx(100 / 16)


def test_diagonal_means_are_those_of_the_runs(studied):
    rows = table(studied, 'diagonal').set_index(['attention', 'diagonal'])
    runs = studied / 'smoke/runs'
    losses = [json.loads((runs / f'full_no_diagonal-{seed}/summary.json').read_text())['mlm_loss']
              for seed in (0, 1)]
    assert losses[0] != losses[1]
    row = rows.loc['Full', 'without']
    assert row['masked tokens, loss'] == pytest.approx(np.mean(losses))
    assert row['loss, spread'] == pytest.approx(np.std(losses, ddof=1))
    found = [scores(runs / f'tuned-full_no_diagonal-{seed}-RTE-{seed}')['RTE'] for seed in (0, 1)]
    assert row['average'] == pytest.approx(np.mean(found))
    assert 0 <= row['RTE'] <= 100


def test_dam_is_tuned_with_and_without_the_diagonal(studied):
    runs = studied / 'smoke/runs'
    for change, has_diagonal in (('with', True), ('without', False)):
        tuned = runs / f'tuned-dam_s-1e-1-0-{change}_diagonal-RTE-0'
        heads = load_masks(runs / 'dam_s-1e-1-0' / 'masks.npz')
        assert len(source_patterns(tuned)) == len(heads)
        for text, head in zip(source_patterns(tuned), heads):
            mask = parse(text).build(16).to_mask()
            assert (mask.diagonal() == has_diagonal).all()
            off_diagonal = ~torch.eye(16, dtype=torch.bool)
            assert torch.equal(mask[off_diagonal], head.build(16).to_mask()[off_diagonal])


def test_masks_are_those_that_were_learned(studied):
    rows = table(studied, 'masks').set_index('mask')
    assert list(rows.index) == ['Star', 'DAM_u, 1e-4', 'DAM_u, 1e-1', 'DAM_s, 1e-4', 'DAM_s, 1e-1']
    for name in rows.index[1:]:
        run = studied / 'smoke/runs' / f'{name.replace("DAM", "dam").replace(", ", "-")}-0'
        heads = load_masks(run / 'masks.npz')
        dense = torch.stack([mask.build(16).to_mask() for mask in heads]).float()
        assert rows.loc[name, 'sparsity, %'] == pytest.approx(100 * float(1 - dense.mean()))
        if name.startswith('DAM_s'):
            values = np.array([[int(value) for value in mask.values] for mask in heads])
            assert rows.loc[name, 'diagonal, %'] == pytest.approx(100 * values[:, 0].mean())
            assert rows.loc[name, 'neighbours, %'] == pytest.approx(100 * values[:, 1].mean())
    star = rows.loc['Star']
    assert (star['diagonal, %'], star['neighbours, %'], star['paper, average']) == (100, 100, 78.9)


def test_penalty_makes_masks_sparser(studied):
    sparsity = table(studied, 'masks').set_index('mask')['sparsity, %']
    for kind in ('u', 's'):
        assert sparsity[f'DAM_{kind}, 1e-1'] > sparsity[f'DAM_{kind}, 1e-4'] + 5


def test_studies_share_their_runs(studied, monkeypatch):
    monkeypatch.setattr(train, 'main', lambda args: pytest.fail(f'trained again: {args}'))
    before = table(studied, 'masks')
    masks.main(scale='smoke', out=studied)
    pd.testing.assert_frame_equal(table(studied, 'masks'), before)
    shared = [path.name for path in (studied / 'smoke/runs').iterdir()]
    assert 'star-0' in shared and len(shared) == len(set(shared))


def test_one_hop_of_one_layer_is_right_as_often_as_a_guess(studied):
    rows = table(studied, 'two_hop').set_index(['layers', 'hops'])
    assert list(rows.index) == [(1, 1), (1, 2), (1, 3), (1, 5), (2, 1)]
    assert rows.loc[(1, 1), 'mean'] == rows.loc[(1, 1), 'seed 0'] == rows.loc[(1, 1), 'chance']
    for layers, hops in rows.index:
        run = studied / 'smoke/runs' / f'two_hop-{layers}x{hops}-0'
        encoder = yaml.safe_load((run / 'config.yaml').read_text())['model']['init_args']['model'][
            'init_args']['encoder']['init_args']
        assert (encoder['num_layers'], encoder['hops']) == (layers, hops)
        accuracy = json.loads((run / 'summary.json').read_text())['accuracy']
        assert rows.loc[(layers, hops), 'mean'] == accuracy


def test_published_patterns_have_the_published_sparsity():
    for name, pattern in PATTERNS.items():
        without = without_diagonal(pattern)
        for changed, kind in ((pattern, diagonal.WITH), (without, diagonal.WITHOUT)):
            sparsity = 100 * (1 - changed.build(128, seed=0).density())
            assert sparsity == pytest.approx(diagonal.PAPER[name, kind][0], abs=0.11)
        assert masks.PAPER[name] == diagonal.PAPER[name, diagonal.WITH]
    assert {f'DAM_{kind}, {weight}' for kind in 'us' for weight in LAMBDAS} < set(masks.PAPER)


def test_all_of_glue_is_tuned_where_it_is_given(tmp_path):
    for task in ('RTE', 'MNLI', 'notes'):
        (tmp_path / task).mkdir()
    runs = TextRuns(Study('masks', 'smoke', tmp_path), glue=tmp_path)
    assert runs.tasks == ('MNLI', 'RTE') and runs.tasks_folder == tmp_path
    assert str(tmp_path) in runs.about and 'local' not in runs.about
    assert 'local tasks' in TextRuns(Study('masks', 'smoke', tmp_path)).about


def test_few_documents_suffice_for_both_parts():
    documents = list(few_documents())
    sentences = [sentence for _, document in documents for sentence in document]
    assert len(sentences) == len(set(sentences))
    assert {(package, is_held_out(document)) for package, document in documents} == {
        (package, held_out) for package in ('python', 'torch') for held_out in (False, True)}


@pytest.mark.parametrize('study', [diagonal, masks])
def test_tasks_that_are_not_there_are_refused_before_training(study, tmp_path):
    with pytest.raises(ValueError, match="'tasks' must be some of CoLA, RTE, SST-2 .got QNLI"):
        study.main(scale='smoke', out=tmp_path, tasks=['RTE', 'QNLI'])
    assert not list(tmp_path.rglob('options.json'))


def test_scores_are_those_after_the_last_epoch(tmp_path):
    metrics = {'accuracy/dev_matched': 0.5, 'accuracy/dev_mismatched': 0.25}
    better = {name: value + 0.1 for name, value in metrics.items()}
    (tmp_path / 'dev.json').write_text(json.dumps({'task': 'MNLI', LAST: metrics, BEST: better}))
    assert scores(tmp_path) == {'MNLI-m': 50., 'MNLI-mm': 25.}


def test_an_attached_model_begins_where_full_attention_ended(out):
    attached.main(scale='smoke', out=out)
    rows = table(out, 'attached').set_index('attention')
    assert [*rows.index] == [attached.FULL, 'window', 'BigBird', 'block model and window']
    full = rows.loc[attached.FULL]
    assert full['density, %'] == 100. and full['right after, loss'] == full['before, loss']
    assert (rows['before, loss'] == full['before, loss']).all()
    others = rows.drop(attached.FULL)
    assert (others['density, %'] < 100.).all()
    assert (others['right after, loss'] != full['before, loss']).all()
    assert (others['adapted, loss'] != others['right after, loss']).all()
    block_model = yaml.safe_load(
        (out / 'smoke/runs/attached-block_model_and_window-0/config.yaml').read_text())
    along = block_model['model']['init_args']['model']['init_args']['along']
    assert along['class_path'] == 'graphattn.sources.BlockModelSource'
