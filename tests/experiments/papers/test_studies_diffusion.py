"""Studies of diffusion, of questions, choices, pre-training and densities at the scale of smoke
tests: what their tables say holds of the runs."""

import json
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from experiments.papers import runner
from experiments.papers.diffuser import diffusion
from experiments.papers.diffuser.documents import COUNT, Documents
from experiments.papers.diffuser.tasks import DIFFUSER, FULL, NO_DIAGONAL, ONE_HOP, Attentions
from experiments.papers.study import Trained, restored
from experiments.runs.config_file import laid_over
from experiments.runs.summary import read_summary
from graphattn.patterns import get, parse
from tests.experiments.papers.conftest import encoder_of

pytestmark = pytest.mark.slow

COLUMNS = {'accuracy, %': 'accuracy', 'macro F1, %': 'macro_f1'}


@pytest.fixture
def documents(out):
    """Return the run of a model of documents."""
    return lambda name: out / f'smoke/runs/documents-{name}-0'


def pattern_of(run):
    return parse(encoder_of(run)['source']['init_args']['pattern'])


def test_diffusion_is_added_to_three_patterns_and_nothing_else_changes(studied, documents):
    rows = studied('diffusion').set_index('attention')
    assert list(rows.hops) == [1, 1, 5, 1, 5, 1, 5, 1, 5]
    diffuser = documents('diffuser-8-8-8-5-0.1')
    for row, run in (('BigBird, diffused', documents('bigbird-5-0.1')), ('Diffuser', diffuser)):
        for column, metric in COLUMNS.items():
            assert rows.loc[row, column] == pytest.approx(100 * read_summary(run)[metric])
    one_hop, diffused = (encoder_of(documents(f'bigbird-{how}')) for how in ('1-0', '5-0.1'))
    assert (one_hop.pop('hops'), one_hop.pop('teleport')) == (1, 0.)
    assert (diffused.pop('hops'), diffused.pop('teleport')) == (5, 0.1)
    assert one_hop == diffused
    assert pattern_of(diffuser) == get('diffuser', window=8, num_global=8, num_random=8,
                                       cls_global=True)
    local_cls, global_cls = (int(pattern_of(documents(name)).build(64).in_degree()[0]) for name in (
        'diffuser-8-8-8-local-cls-1-0', 'diffuser-8-8-8-1-0'))
    assert local_cls < 64 == global_cls


def test_a_row_begins_with_given_weights(out, tmp_path):
    folder = tmp_path / 'bert-small'
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *ascii_lowercase]
    config = BertConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=24, max_position_embeddings=32)
    BertModel(config).save_pretrained(folder)
    (folder / 'vocab.txt').write_text('\n'.join(words))
    BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(folder)
    study = Documents('diffusion', scale='smoke', out=out, weights={'BERT': folder})
    table = study.compared('attention', {}, range(1), '', ('paper', diffusion.PAPER))
    row, = table.rows
    assert (row['attention'], row['density, %'], row['paper']) == ('BERT', 100, 74.36)
    assert table.about.endswith('no --weights of RoBERTa, BigBird, BigBird, diffused, Longformer, '
                                'Longformer, diffused, Diffuser')
    broken = Documents('diffusion', scale='smoke', out=out, weights={'BERT': tmp_path / 'none'})
    with pytest.raises(ValueError, match="'weights' must be folders .*none"):
        broken.compared('attention', {}, range(1), '', ('paper', {}))


def test_ablation_leaves_out_what_it_names(studied, documents):
    density = studied('ablation').set_index('model')['density, %']
    assert all(density[f'without {kind} edges'] < density['Diffuser']
               for kind in ('local', 'random', 'global'))
    assert density['without diffusion'] == density['Diffuser']
    assert density['evenly spaced keys'] == pytest.approx(density['Diffuser'], rel=0.1)


def test_layers_are_those_that_a_row_names(studied, documents):
    rows = studied('fewer_layers').set_index('model')
    run = documents('diffuser-8-8-8-5_layers-1-0')
    assert (encoder_of(run)['num_layers'], encoder_of(run)['hops']) == (5, 1)
    assert rows.loc['5 layers, 1 hop', 'accuracy, %'] == pytest.approx(
        100 * read_summary(run)['accuracy'])


@pytest.mark.parametrize('metric, best', [('accuracy/dev', 0.5), ('loss', 0.1)])
def test_a_grid_is_searched_by_the_last_result_on_development_data(metric, best, tmp_path,
                                                                   monkeypatch):
    last = {'0.5': [0.1, 0.5], '0.1': [0.9, 0.1]}

    def train(args):
        folder = Path(args[args.index('--trainer.default_root_dir') + 1])
        rows = [f'{value},0' for value in last[args[args.index('--lr') + 1]]]
        (folder / 'metrics.csv').write_text('\n'.join([f'val/{metric},train/x', *rows, ',1', '']))

    monkeypatch.setattr('experiments.papers.study.train.main', train)
    study = Trained('any', 'smoke', tmp_path, grid={'--lr': [0.5, 0.1], '--penalty': ['0', '1']})
    assert study.trained('run', '--a', 'b').name == f'run-lr={best}-penalty=0'
    assert len(list(tmp_path.rglob('metrics.csv'))) == 4


def test_hops_and_teleports_are_those_of_the_runs(studied, documents):
    for _, row in studied('hops').iterrows():
        setting = {'hops': (row.value, 0.1), 'teleport': (5, row.value), 'attention': (1, 0.)}
        num_hops, teleport = setting[row.varied]
        run = documents(f'diffuser-8-8-8-{num_hops:g}-{teleport:g}')
        assert (encoder_of(run)['hops'], encoder_of(run)['teleport']) == (num_hops, teleport)
        assert row['accuracy, %'] == pytest.approx(100 * read_summary(run)['accuracy'])


def test_edge_types_vary_one_kind_or_exchange_two(studied):
    rows = studied('edge_types')
    for kind in ('local', 'global', 'random'):
        of_kind = rows[rows.varied == f'{kind} edges']
        assert list(of_kind.value) == [0, COUNT['smoke']]
        assert of_kind['density, %'].is_monotonic_increasing
    assert list(rows[rows.varied.str.startswith('random of')].value) == [0, 8, 16]


def test_sampled_edges_are_diffused(studied, documents):
    rows = studied('sbm_diffusion')
    assert list(zip(rows.hops, rows.penalty)) == [(1, 1), (5, 1)]
    assert encoder_of(documents('sbm-1-64-5-0.1'))['hops'] == 5


def test_rolling_drops_nothing_at_zero_and_tests_what_was_trained(studied, documents):
    rows = studied('rolling')
    unrolled = rows[rows.by == 0]
    assert (unrolled['drop, points'] == 0).all() and len(unrolled) == 2 * rows.attention.nunique()
    full = read_summary(documents('full-1-0'))['accuracy']
    assert list(unrolled[unrolled.attention == 'full']['accuracy, %']) == [
        pytest.approx(100 * full)] * 2


def test_documents_are_rolled(out):
    study = Documents('any', 'smoke', out)
    training, data, trainer = restored(study.runs.trained(study.kinds['full'], 0))
    trainer.test(training, data, verbose=False)
    documents = data.sets['test']
    for keep_ends in (False, True):
        for number in range(len(documents)):
            before, label = documents[number]
            after, same_label = documents.rolled(3, keep_ends)[number]
            assert label == same_label
            if keep_ends:
                assert torch.equal(after[[0, -1]], before[[0, -1]])
                before, after = before[1:-1], after[1:-1]
            assert torch.equal(after, before.roll(3)) and not torch.equal(after, before)


@pytest.mark.parametrize('scale', ['small', 'paper'])
def test_diffuser_has_the_density_of_the_paper(scale, tmp_path):
    runs = Documents('any', scale, tmp_path)
    assert runs.diffuser().edges == get('diffuser', window=runs.count, num_global=runs.count,
                                        num_random=runs.count, cls_global=True)
    path, = runs.configs('diffuser', 'documents')
    size = laid_over(path)['data']['init_args']['max_length']
    assert runs.diffuser().edges.build(size).density() == pytest.approx(0.0684, abs=1e-4)


def test_other_documents_must_be_a_config(tmp_path):
    with pytest.raises((OSError, ValueError), match='none.yaml'):
        runner.run('diffusion', scale='smoke', out=tmp_path, documents=tmp_path / 'none.yaml')


def test_question_answering(studied, out):
    table = studied('question_answering').set_index('set')
    rows = table.loc['local_squad1'].set_index('attention')
    hop = read_summary(out / 'smoke/runs/local_triviaqa-linked-1-0-0')
    assert table.loc['local_triviaqa'].set_index('attention').loc[
        'window and equal words', 'F1, %'] == pytest.approx(100 * hop['f1'])
    linked = read_summary(out / 'smoke/runs/local_squad1-linked-1-0-0')
    assert rows.loc['window and equal words', 'F1, %'] == pytest.approx(100 * linked['f1'])
    assert rows.loc['full', 'density, %'] == 100 > rows.loc['window and equal words', 'density, %']


def test_choices(studied, out):
    table = studied('choices').set_index('set')
    rows = table.loc[['local_swag']].set_index('attention')
    assert table.loc[['local_wikihop'], 'accuracy, %'].notna().all()
    assert rows.loc['full', 'accuracy, %'] == pytest.approx(
        100 * read_summary(out / 'smoke/runs/local_swag-full-1-0-0')['accuracy'])


def test_pretraining(studied, out):
    rows = studied('pretraining').set_index('attention')
    run = read_summary(out / 'smoke/runs/pretraining-diffuser-5-0.1-0')
    assert rows.loc['Diffuser', 'bits per token'] == pytest.approx(run['mlm_loss'] / np.log(2))
    assert rows.loc['Diffuser', 'bits per character'] <= rows.loc['Diffuser', 'bits per token']
    start = read_summary(out / 'smoke/runs/pretraining-start-diffuser-5-0.1-0')
    assert start['epochs'] == 0
    assert rows.loc['Diffuser', 'bits per token, step 0'] == pytest.approx(start['bits_per_token'])
    assert rows.loc['Diffuser', 'paper, in the end'] == 1.68
    options = json.loads((out / 'smoke/runs/pretraining-diffuser-5-0.1-0/options.json').read_text())
    assert options[options.index('--model.init_args.pretrained') + 1] == str(
        out / 'smoke/runs/pieces-full-1-0-0/checkpoints/last.ckpt')


def test_image_density(studied, out):
    rows = studied('image_density').set_index('attention')
    run = read_summary(out / 'smoke/runs/density-digits-diffuser-5-0.1-0')
    assert rows.loc['Diffuser', 'bits per byte'] == pytest.approx(run['bits_per_dim'])
    assert (out / 'smoke/runs/density-digits-diffuser-5-0.1-0/samples.png').stat().st_size > 1000


@pytest.mark.parametrize('scale', ['smoke', 'small', 'paper'])
def test_attentions_have_the_edges_that_they_name(scale, tmp_path):
    names = {scale: (FULL, NO_DIAGONAL, ONE_HOP, DIFFUSER)}
    known = Attentions('any', scale, tmp_path).kinds(names)
    density = {name: one.edges.build(1024, seed=0).density() for name, one in known.items()}
    assert density[FULL] == 1 and density[NO_DIAGONAL] == pytest.approx(1 - 1 / 1024)
    assert density[DIFFUSER] == density[ONE_HOP] < .6
    assert (known[DIFFUSER].hops, known[ONE_HOP].hops) == (5, 1)
