"""Studies of diffusion at the scale of smoke tests: what their tables say holds of the runs."""

from pathlib import Path

import pytest
import torch

from experiments.papers import runner
from experiments.papers.diffuser.documents import COUNT, Documents
from experiments.papers.study import Trained, restored
from experiments.runs.command import run_or_exit
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


def test_ablation_leaves_out_what_it_names(studied, documents):
    density = studied('ablation').set_index('model')['density, %']
    assert all(density[f'without {kind} edges'] < density['Diffuser']
               for kind in ('local', 'random', 'global'))
    assert density['without diffusion'] == density['Diffuser']
    assert density['evenly spaced keys'] == pytest.approx(density['Diffuser'], rel=0.1)
    without_local = pattern_of(documents('diffuser-0-8-8-5-0.1')).build(64)
    edges = set(map(tuple, without_local.edge_index.t().tolist()))
    assert (40, 40) not in edges or (41, 41) not in edges  # no window: not every token sees itself


def test_layers_and_hops_are_those_that_a_row_names(studied, documents):
    rows = studied('fewer_layers').set_index('model')
    for name, run, expected in (('1 layer, 1 hop', '1_layers-1-0', (1, 1)),
                                ('1 layer, 5 hops', '1_layers-5-0.1', (1, 5)),
                                ('5 layers, 1 hop', '5_layers-1-0', (5, 1))):
        encoder = encoder_of(folder := documents(f'diffuser-8-8-8-{run}'))
        assert (encoder['num_layers'], encoder['hops']) == expected
        assert rows.loc[name, 'accuracy, %'] == pytest.approx(
            100 * read_summary(folder)['accuracy'])


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
    assert list(zip(rows.hops, rows.penalty)) == [(1, 0), (5, 0), (1, 1), (5, 1)]
    encoder = encoder_of(documents('sbm-1-64-5-0.1'))
    assert encoder['hops'] == 5 and encoder['source']['class_path'].endswith('BlockModelSource')
    assert rows['density, %'].between(5, 60).all()


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
    size = 64 * runs.count
    assert runs.diffuser().edges == get('diffuser', window=runs.count, num_global=runs.count,
                                        num_random=runs.count, cls_global=True)
    assert runs.diffuser().edges.build(size).density() == pytest.approx(0.0684, abs=1e-4)
    path, = runs.configs('diffuser', 'documents')
    assert laid_over(path)['data']['init_args']['max_length'] == size


def test_other_documents_must_be_a_config(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_code:
        run_or_exit(lambda: runner.run('diffusion', scale='smoke', out=tmp_path,
                                       documents=tmp_path / 'none.yaml'))
    assert exit_code.value.code == 2 and 'none.yaml' in capsys.readouterr().err
