"""Studies at the scale of smoke tests: what their tables say holds of what was trained."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments import train
from experiments.modules.measures import BEST, LAST
from experiments.papers import runner
from experiments.papers.ours import attached
from experiments.papers.sparsebert import diagonal, importance, masks, planted
from experiments.papers.sparsebert.texts import LAMBDAS, PATTERNS, Texts, scores
from experiments.runs.summary import read_summary
from graphattn.graphs.pair_layout import DiagonalLayout
from graphattn.patterns import Mask, load_masks, parse, without_diagonal
from tests.experiments.papers.conftest import config_of, encoder_of

pytestmark = pytest.mark.slow


def test_nothing_is_trained_twice(studied, monkeypatch):
    before = studied('masks')
    monkeypatch.setattr(train, 'main', lambda args: pytest.fail(f'trained again: {args}'))
    pd.testing.assert_frame_equal(studied.__wrapped__('masks'), before)


# By the study: its options, and what the refusal says.
REFUSED = [
    *((name, dict(tasks=['RTE', 'QNLI']), "'tasks' must contain only .* CoLA, RTE, SST-2 .got QNLI")
      for name in ('diagonal', 'masks')),
    *((name, dict(glue=Path('glue'), tasks=['QNLI', 'RTE']),
       "'tasks' must contain only .* RTE .got QNLI") for name in ('pruning', 'stages', 'sbm_glue')),
    *((name, dict(scale='small', tasks=['listops']), "'tasks' must contain .*digits .*got listops")
      for name in ('density_penalty', 'densities', 'attention_received')),
    ('sbm_glue', dict(scale='paper', glue=Path('none')), "'glue' must be the folder .*got none"),
    ('fewer_layers', dict(grid={'lr': ['1e-3']}), "'grid' must .*got 'lr'"),
    ('hops', dict(grid={'--model.init_args.lr': []}), "'grid' must .*--model.init_args.lr"),
    ('attention_received', dict(scale='paper', tasks=['listops']),
     "'tasks' must contain at least one task with images"),
    *(('density_penalty', dict(scale='paper', tasks=[task]), 'data/')
      for task in ('text', 'retrieval', 'image', 'pathfinder')),
    ('long_range_arena', dict(tasks=['Listops']), "'tasks' must contain .*ListOps; .*got Listops"),
    ('long_range_arena', dict(attentions=['SBM', 'none']), "'attentions' must contain .*got none"),
    ('long_range_arena', dict(protocol='sbm'), "'protocol' must be 'clean' if .*got 'sbm'"),
    ('repeated_tokens', dict(attentions=['fool']), "'attentions' must contain .*full; .*got fool"),
    *((name, dict(names=['fool']), "'names' must contain only names from full, .*got fool")
      for name in ('question_answering', 'choices', 'pretraining', 'image_density')),
    *((name, dict(names=['full'], sets=['mnist']), "'sets' must contain only .*got mnist")
      for name in ('question_answering', 'choices', 'image_density')),
]


@pytest.mark.parametrize('study, options, match', REFUSED)
def test_what_is_not_there_is_refused_before_any_training(study, options, match, tmp_path,
                                                          monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('glue/RTE').mkdir(parents=True)
    with pytest.raises(ValueError, match=match):
        runner.run(study, **{'scale': 'smoke', 'out': Path('out'), **options})
    assert not list(tmp_path.rglob('options.json'))


def test_a_name_that_is_no_study_is_refused():
    with pytest.raises(ValueError, match="'name' must be a study; .*got 'fool'"):
        runner.run_words('fool', '--scale', 'smoke')


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


def test_importance_is_that_of_the_trained_masks(studied, out):
    rows, run = studied('importance').set_index('pairs'), out / 'smoke/runs/soft-0'
    state = torch.load(run / 'checkpoints/last.ckpt', weights_only=True)['state_dict']
    logit = state['model.encoder.source.logit']
    size = math.isqrt(logit.size(1))
    probability = logit.sigmoid().view(-1, size, size)
    assert rows['number'].sum() == size**2
    assert rows.loc['diagonal', 'mean P'] == pytest.approx(
        float(probability.diagonal(0, 1, 2).mean()))
    assert rows.loc['[CLS] as key', 'head 1'] == pytest.approx(
        float(probability[1, 1:, 0].mean() / probability[1].mean()))
    assert (rows['P / mean of the head'].rank(ascending=False) == rows['rank']).all()
    assert probability.std() > 0.01  # it was learned: it starts at 1/2 within 0.001


def test_diagonal_takes_away_exactly_one_nth(studied):
    sparsity = studied('diagonal').set_index(['attention', 'diagonal'])['sparsity, %']
    assert sparsity['Full', 'with'] == 0.
    assert sparsity['Full', 'without'] == pytest.approx(100 / 16)
    assert sparsity['Full', 'with, random pairs dropped'] == pytest.approx(100 / 16)
    assert sparsity['Star', 'with'] == pytest.approx(100 * (1 - 74 / 256))
    for name in ('Star', 'DAM_s, 1e-1'):
        assert sparsity[name, 'without'] - sparsity[name, 'with'] == pytest.approx(100 / 16)


def test_diagonal_means_are_those_of_the_runs(studied, out):
    row = studied('diagonal').set_index(['attention', 'diagonal']).loc['Full', 'without']
    runs = out / 'smoke/runs'
    loss = read_summary(runs / 'full_no_diagonal-0')['mlm_loss']
    assert row['masked tokens, loss'] == pytest.approx(loss)
    found = scores(runs / 'tuned-full_no_diagonal-0-RTE-0')['RTE']
    assert row['average'] == row['RTE'] == pytest.approx(found)


def test_dam_is_tuned_with_and_without_the_diagonal(studied, out):
    studied('diagonal')
    runs, off_diagonal = out / 'smoke/runs', ~torch.eye(16, dtype=torch.bool)
    for change, has_diagonal in (('with', True), ('without', False)):
        tuned = config_of(runs / f'tuned-dam_s-1e-1-0-{change}_diagonal-RTE-0')
        texts = tuned['source']['init_args']['pattern']
        heads = load_masks(runs / 'dam_s-1e-1-0/masks.npz')
        assert len(texts) == len(heads)
        for text, head in zip(texts, heads):
            mask = parse(text).build(16).to_mask()
            assert (mask.diagonal() == has_diagonal).all()
            assert torch.equal(mask[off_diagonal], head.build(16).to_mask()[off_diagonal])


def test_masks_are_those_that_were_learned(studied, out):
    rows = studied('masks').set_index('mask')
    assert list(rows.index) == ['Star', 'DAM_u, 1e-4', 'DAM_u, 1e-1', 'DAM_s, 1e-4', 'DAM_s, 1e-1']
    for name in rows.index[1:]:
        run = out / 'smoke/runs' / f'{name.replace("DAM", "dam").replace(", ", "-")}-0'
        heads = load_masks(run / 'masks.npz')
        dense = torch.stack([mask.build(16).to_mask() for mask in heads]).float()
        assert rows.loc[name, 'sparsity, %'] == pytest.approx(100 * float(1 - dense.mean()))
        if name.startswith('DAM_s'):
            values = np.array([[int(value) for value in mask.values] for mask in heads])
            assert rows.loc[name, 'diagonal, %'] == pytest.approx(100 * values[:, 0].mean())
            assert rows.loc[name, 'neighbours, %'] == pytest.approx(100 * values[:, 1].mean())
    for kind in ('u', 's'):  # the penalty makes them sparser
        sparse, dense = (rows.loc[f'DAM_{kind}, {weight}', 'sparsity, %']
                         for weight in ('1e-1', '1e-4'))
        assert sparse > dense + 5


def test_one_hop_of_one_layer_is_right_as_often_as_a_guess(studied, out):
    rows = studied('two_hop').set_index(['layers', 'hops'])
    assert list(rows.index) == [(1, 1), (1, 2), (1, 3), (1, 5), (2, 1)]
    assert rows.loc[(1, 1), 'mean'] == rows.loc[(1, 1), 'seed 0'] == rows.loc[(1, 1), 'chance']
    run = out / 'smoke/runs/two_hop-1x3-0'
    assert (encoder_of(run)['num_layers'], encoder_of(run)['hops']) == (1, 3)
    assert rows.loc[(1, 3), 'mean'] == read_summary(run)['accuracy']


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
    texts = Texts('masks', 'smoke', tmp_path, glue=tmp_path)
    assert texts.asked() == ('MNLI', 'RTE')
    assert str(tmp_path) in texts.about and 'local' not in texts.about
    assert 'local tasks' in Texts('masks', 'smoke', tmp_path).about


def test_scores_are_those_after_the_last_epoch(tmp_path):
    metrics = {'accuracy/dev_matched': 0.5, 'accuracy/dev_mismatched': 0.25}
    better = {name: value + 0.1 for name, value in metrics.items()}
    (tmp_path / 'dev.json').write_text(json.dumps({'task': 'MNLI', LAST: metrics, BEST: better}))
    assert scores(tmp_path) == {'MNLI-m': 50., 'MNLI-mm': 25.}


def test_an_attached_model_begins_where_full_attention_ended(studied):
    rows = studied('attached').set_index('attention')
    assert [*rows.index] == [attached.FULL, 'window', 'BigBird', 'block model and window']
    full, others = rows.loc[attached.FULL], rows.drop(attached.FULL)
    assert full['density, %'] == 100. and full['right after, loss'] == full['before, loss']
    assert (rows['before, loss'] == full['before, loss']).all()
    assert (others['density, %'] < 100.).all()
    assert (others['right after, loss'] != full['before, loss']).all()
    assert (others['adapted, loss'] != others['right after, loss']).all()


PLANTED = Mask(DiagonalLayout(12), '0010010000')


@pytest.mark.slow
def test_the_table_says_what_the_masks_hold(studied, out):
    table = studied('planted')
    assert table['masks'].tolist() == 2 * [planted.LEARNED, planted.FROZEN, planted.RANDOM,
                                           planted.FULL]
    masks = load_masks(out / 'smoke/runs/planted-learned-0/masks.npz')
    density = torch.stack([mask.build(32).to_mask() for mask in masks]).float().mean()
    assert table['sparsity'][0] == pytest.approx(1 - float(density))
    assert table['sparsity'][:2].nunique() == 1 and table['sparsity'][3] == 0
    on = set.union(*planted.distances_on(masks))
    assert table['found'][0] == str(sorted({2, 5} & on))
    assert table['left over'][0] == str(sorted(on - {2, 5}))


def test_random_diagonals_have_the_sparsity_but_not_the_distances():
    drawn = [planted.random_diagonals((PLANTED, PLANTED), seed) for seed in range(20)]
    for pair in drawn:
        for mask in pair:
            lacking = PLANTED.build(12).num_edges - mask.build(12).num_edges
            smallest_off = min(10 if d == 0 else 2 * (10 - d)
                               for d, digit in enumerate(mask.values) if digit == '0')
            assert 0 <= lacking < smallest_off  # or that one would have been taken
    assert planted.distances_on((PLANTED,)) == [{2, 5}]
