"""Studies of pruned, frozen and sampled masks, at the scale that shows that they run."""

import json

import pytest
import torch
import yaml

from experiments.modules.measures import LAST
from experiments.papers.sbm_transformer import sbm_glue
from experiments.papers.sparsebert import pruning, stages
from experiments.papers.sparsebert.pruned import Pruned, better
from experiments.papers.sparsebert.texts import Texts
from experiments.runs.summary import read_summary
from graphattn.patterns import load_masks

pytestmark = pytest.mark.slow
HEADS, SIZE = 2, 16  # of the smoke configs


@pytest.fixture
def pruned(studied, out):
    studied('pruning')
    return Pruned(Texts('any', 'smoke', out))


def kept(mask):
    return mask.build(SIZE).to_mask()


def config_of(run):
    return yaml.safe_load((run / 'config.yaml').read_text())


def test_pruned_masks_are_the_largest_of_p(out, pruned):
    checkpoint = torch.load(out / 'smoke/runs/soft-0/checkpoints/last.ckpt', weights_only=True)
    logit = checkpoint['state_dict']['model.encoder.source.logit'].view(HEADS, SIZE, SIZE)
    assert torch.equal(pruned.probability, logit.sigmoid())
    for percent in (50, 90):
        masks = load_masks(out / f'smoke/masks/pruned{percent}-P.npz')
        assert len(masks) == HEADS
        for mask, head in zip(masks, logit):
            is_kept = kept(mask)
            assert is_kept.sum() == SIZE**2 - round(percent / 100 * SIZE**2)
            assert head[is_kept].min() >= head[~is_kept].max()


def test_random_masks_are_as_many_and_differ_by_head_and_seed(out, pruned):
    saved = load_masks(out / 'smoke/masks/pruned90-random0.npz')
    assert saved == pruned.masks(90, 0)
    masks = [kept(mask) for mask in (*saved, *pruned.masks(90, 1))]
    assert {int(mask.sum()) for mask in masks} == {SIZE**2 - round(0.9 * SIZE**2)}
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 4


def test_fine_tuning_attends_along_the_pruned_pairs(out, pruned):
    runs = out / 'smoke/runs'
    reports = {}
    for how in ('0-P', '50-P', '90-P', '90-random0'):
        run = runs / f'tuned-soft-0-pruned{how}-RTE-0'
        options = config_of(run)['model']['init_args']
        assert options['source']['init_args']['pattern'].endswith(f'/masks/pruned{how}.npz')
        assert options['pretrained'] == str(runs / 'soft-0/checkpoints/last.ckpt')
        reports[how] = json.loads((run / 'dev.json').read_text())[LAST]
    density = {how: report['density/all_layers/head0'] for how, report in reports.items()}
    assert density['0-P'] == 1. and density['50-P'] > 2 * density['90-P']
    assert 0.03 < density['90-random0'] < 0.2


def test_pruning_table(pruned, studied):
    rows = studied('pruning')
    losses, scores = (rows[rows['task'] == task] for task in (pruning.LOSS, 'RTE'))
    assert losses['sparsity, %'].tolist() == list(range(0, 100, 10))
    assert scores['sparsity, %'].tolist() == [0, 50, 90]
    assert losses['by P'].tolist()[5] == pruned.loss(pruned.masks(50))
    nothing_pruned = losses.iloc[0]
    assert nothing_pruned['by P'] == nothing_pruned['at random']
    assert losses['by P'].nunique() > 5 and losses['at random, spread'].max() > 0.
    assert scores['better in the paper'].tolist()[1:] == ['P', 'P']
    assert losses['better in the paper'].isna().all()
    num_better = (scores['better here'] == 'P').sum()
    assert rows.iloc[-1]['better here'] == f'P in {num_better} of 2'


def test_loss_is_measured_as_the_pre_training_measured_its_own(pruned):
    training, data, trainer = pruned._restored
    metrics, = trainer.test(training, data, verbose=False)
    own = read_summary(pruned.pretrained)
    assert metrics['test/mlm_loss'] == pytest.approx(own['mlm_loss'], abs=1e-6)
    assert metrics['test/nsp_loss'] == pytest.approx(own['nsp_loss'], abs=1e-6)


@pytest.mark.parametrize('task, by_p, at_random, expected', [
    (pruning.LOSS, [1.], [2., 3.], 'P'), (pruning.LOSS, [4.], [2., 3.], 'random'),
    ('RTE', [60., 70.], [50., 60.], 'P'), ('RTE', [50.], [60.], 'random'),
    ('RTE', [50.], [50.], 'neither'), ('RTE', [], [50.], None)])
def test_better_is_less_loss_and_more_score(task, by_p, at_random, expected):
    assert better(task, {'P': by_p, 'random': at_random}) == expected


def test_two_stages_are_asked_for_the_sparsity_of_one(out, studied):
    table = studied('stages')
    one = table[table['one stage'].notna() & (table['task'] == 'RTE')]
    assert one['one stage'].tolist() == ['DAM_u, 1e-1', 'DAM_s, 1e-1']
    for name, percent in zip(('dam_u-1e-1-0', 'dam_s-1e-1-0'), one['sparsity, %']):
        num_kept = sum(int(kept(mask).sum())
                       for mask in load_masks(out / f'smoke/runs/{name}/masks.npz'))
        assert percent == pytest.approx(100 * (1 - num_kept / (HEADS * SIZE**2)))
        matched = load_masks(out / f'smoke/masks/pruned{percent:g}-P.npz')
        assert sum(int(kept(mask).sum()) for mask in matched) == pytest.approx(num_kept, abs=HEADS)
    for task in (stages.LOSS, 'RTE'):
        rows = table[table['task'] == task]
        only_two = rows[rows['one stage'].isna()]
        assert only_two['sparsity, %'].tolist() == [80, 85, 90, 95]
        assert only_two['one'].isna().all() and rows['two'].notna().all()
    losses = table[table['task'] == stages.LOSS].set_index('one stage')['one']
    own = read_summary(out / 'smoke/runs/dam_u-1e-1-0')['mlm_loss']
    assert losses['DAM_u, 1e-1'] == pytest.approx(own)
    assert table.iloc[-1]['better here'].endswith(' of 2')


def test_sbm_compares_what_it_says(out, studied):
    rows, runs = studied('sbm_glue'), out / 'smoke/runs'
    for name, source in (('mlm_full-0', 'PatternSource'), ('mlm_window-0', 'PatternSource'),
                         ('mlm_sbm-0', 'BlockModelSource')):
        config = config_of(runs / name)
        model = config['model']['init_args']['model']['init_args']
        assert not model['next_sentence'] and not config['data']['init_args']['next_sentence']
        assert model['encoder']['init_args']['source']['class_path'].endswith(f'.{source}')
        tuned = config_of(runs / f'tuned-{name}-mean-RTE-0')['model']['init_args']
        assert tuned['pooling'] == 'mean' and tuned['source'] is None
    full, window, sampled = (rows[rows['attention'] == kind].set_index('task')
                             for kind in (sbm_glue.FULL, sbm_glue.WINDOW, sbm_glue.SAMPLED))
    for table in (full, window, sampled):
        assert table.index.tolist() == ['RTE', 'masked tokens']
    assert (full['density, %'] == 100.).all()
    densities = [table.loc['masked tokens', 'density, %'] for table in (window, sampled)]
    assert 0 < densities[0] < densities[1] < 80.
    assert rows['paper, F1'].isna().all()  # it did not measure local tasks


def test_published_f1_of_three_classes_stands_beside_the_paper():
    report = {'density/layer0/head0': 0.1, 'density/layer0/head1': 0.2}
    for name, shift in (('dev_matched', 0.), ('dev_mismatched', 0.1)):
        report |= {f'accuracy/{name}': 0.5 + shift, f'macro_f1/{name}': 0.4 + shift,
                   f'published_f1/{name}': 0.7 + shift}
    matched, mismatched = sbm_glue._rows('MNLI', sbm_glue.SAMPLED, [report], is_glue=True)
    assert (matched['task'], mismatched['task']) == ('MNLI, matched', 'MNLI, mismatched')
    assert matched['F1 as published, %'] == 70. and mismatched['F1 as published, %'] == 80.
    assert matched['macro F1, %'] == 40. and matched['accuracy, %'] == 50.
    assert matched['paper, F1'] == 83.5 and matched['paper, density'] == 13.5
    assert matched['density, %'] == pytest.approx(15.)
