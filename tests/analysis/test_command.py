"""Options and errors that all commands share, tried on a question made for it."""

import errno
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from analysis import command
from analysis.commands import COMMANDS
from analysis.expander import expander
from analysis.graphs import as_graph
from analysis.mixing import mixing
from analysis.result import Result, table
from analysis.runs import attention_matrices, sampled_graphs
from graphattn import BipartiteGraph
from graphattn.patterns import Full, SlidingWindow, Star

CONFIG = ['fit', '--config', 'experiments/configs/digits/sbm.yaml', '--trainer.max_epochs', '1',
          '--trainer.limit_train_batches', '1', '--trainer.limit_val_batches', '1',
          '--trainer.limit_test_batches', '1', '--trainer.enable_progress_bar', 'false',
          '--model.model.init_args.encoder.init_args.num_layers', '1',
          '--model.density_weight', '0']  # for tests whose source is a pattern


@dataclass(frozen=True)
class Size(Result):
    """Size of a graph."""

    edges: int
    density: float
    is_large: bool
    reason: str | None
    degree: np.ndarray


def size(graph: BipartiteGraph, large: int = 100) -> Size:
    """Counts the edges.

    Args:
        graph: Which graph.
        large: From how many edges on a graph is large.
    """
    if large < 0:
        raise ValueError(f"'large' must not be negative (got {large})")
    return Size(graph.num_edges, graph.density(), graph.num_edges >= large, None,
                graph.in_degree().numpy())


def draw(results, graphs):
    return Figure()


def ask(*arguments, **options):
    command.ask(size, draw, list(map(str, arguments)), name='size', **options)


def main(arguments):
    ask(*arguments)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Checkpoints of a model that samples, of one that does not, and of one with soft masks."""
    from experiments.train import main

    folder = tmp_path_factory.mktemp('runs')
    source = '--model.model.init_args.encoder.init_args.source'
    main([*CONFIG, '--trainer.default_root_dir', str(folder / 'sampled')])
    main([*CONFIG, '--trainer.default_root_dir', str(folder / 'fixed'),
          source, 'graphattn.sources.PatternSource',
          f'{source}.init_args.pattern', 'SlidingWindow(2)'])
    main([*CONFIG, '--trainer.default_root_dir', str(folder / 'soft'), source, json.dumps(
        {'class_path': 'graphattn.sources.LearnedMaskSource',
         'init_args': {'heads': 4, 'size': 64, 'mode': 'soft'}})])
    return folder


def checkpoint(runs, name):
    return runs / name / 'checkpoints' / 'last.ckpt'


GRAPH = (SlidingWindow(1)).build(5) - BipartiteGraph.from_mask(torch.eye(5, dtype=torch.bool))


@pytest.mark.parametrize('graph', [
    GRAPH, GRAPH.to_mask(), GRAPH.to_scipy(), GRAPH.to_networkx(),
    GRAPH.to_networkx().to_undirected(),
])
def test_every_kind_of_graph(graph):
    assert as_graph(graph) == GRAPH


def test_a_batch_is_asked_of_segment_by_segment():
    batch = BipartiteGraph.batch([GRAPH, GRAPH])
    with pytest.raises(ValueError, match='got 2 segments.*unbatch'):
        as_graph(batch)
    rows = table({'batch': [size(GRAPH), size(Full().build(5))]}).splitlines()
    assert [row.split()[:3] for row in rows] == [
        ['batch', 'edges', 'density'], ['0', '8', '0.32'], ['1', '25', '1'],
        ['all', '16.5', '±']]


def test_a_table_says_what_its_rows_mean_and_why_some_are_left_out():
    *rows, last = table({'path': [expander(SlidingWindow(1).build(4))]}).splitlines()
    row, = [row.split() for row in rows if row.startswith('edge expansion ')]
    assert row == ['edge', 'expansion', '0.5', *'The minimum of E(S, bar S) / |S| over sets of at '
                   'most half the ...'.split()]
    assert last.startswith('left out: adjacency gap, expander (only of regular graphs); ')
    assert not any(row.startswith('adjacency gap') for row in rows)
    row, = [row for row in rows if row.startswith('sweep expansion ')]
    assert row.split()[2:4] == ['0.5', 'sweep_boundary']


def test_a_pattern_that_turns_out_to_be_full_is_said(tmp_path, capsys):
    main(['--pattern', 'SlidingWindow(20)', 'SlidingWindow(2)', 'Full()', '--n', '16',
          '--out', str(tmp_path / 'x.json')])
    said = capsys.readouterr().out
    assert said.count('joins all pairs') == 1 and 'SlidingWindow(20) joins all pairs of 16' in said


def test_wide_and_long_tables_are_cut():
    text = table({'batch': [Size(edges, 0.5, True, 'because ' * 6, None) for edges in range(60)]})
    wide, rest = text.split('\n\n')
    assert len(wide.splitlines()) == len(rest.splitlines()) == 1 + 50 + 2
    assert wide.splitlines()[-2] == '... 60 in all' and max(map(len, text.splitlines())) <= 100


@pytest.mark.slow
def test_heads_of_a_trained_model(runs, tmp_path, capsys):
    graphs = sampled_graphs(checkpoint(runs, 'sampled'), example=3, samples=4, seed=1)
    assert list(graphs) == [f'layer 0, head {head}' for head in range(4)]
    assert all(len(samples) == 4 and all(graph.num_queries == 64 for graph in samples)
               for samples in graphs.values())
    first, second = graphs['layer 0, head 0'][:2]
    assert first != second and 0.1 < first.density() < 0.5
    again = sampled_graphs(checkpoint(runs, 'sampled'), example=3, samples=4, seed=1)
    assert again['layer 0, head 3'][2] == graphs['layer 0, head 3'][2]

    capsys.readouterr()
    ask('--checkpoint', checkpoint(runs, 'sampled'), '--samples', 4, '--out', tmp_path)
    assert '±' in capsys.readouterr().out
    assert len(json.loads((tmp_path / 'size.json').read_text())['layer 0, head 2']) == 4


@pytest.mark.slow
def test_a_pattern_of_a_trained_model_is_one_graph_of_each_layer(runs):
    assert sampled_graphs(runs / 'fixed') == {'layer 0': [SlidingWindow(2).build(64)]}


@pytest.mark.slow
@pytest.mark.parametrize('run, question', [
    ('sampled', 'spectrum'), ('fixed', 'attention')])
def test_attention_of_a_trained_model(runs, run, question, tmp_path, capsys):
    matrices = attention_matrices(runs / run, example=3, samples=2, seed=1)
    assert list(matrices) == [f'layer 0, head {head}' for head in range(4)]
    assert all(len(samples) == 2 for samples in matrices.values())
    for matrix in matrices['layer 0, head 1']:
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(
        attention_matrices(runs / run, example=4, samples=1)['layer 0, head 0'][0].shape, 64)
    main_of(question)(['--checkpoint', str(runs / run), '--weights', '--samples', '2',
                       '--out', str(tmp_path)])
    assert 'layer 0, head 3' in capsys.readouterr().out
    saved = json.loads((tmp_path / f'{question}.json').read_text())
    assert saved.keys() == matrices.keys() and len(saved['layer 0, head 2']) == 2
    assert (tmp_path / f'{question}.png').stat().st_size > 10_000


@pytest.mark.slow
def test_examples_at_the_end_of_a_test_set(runs):
    last = attention_matrices(runs / 'fixed', example=358, samples=8)
    assert [len(samples) for samples in last.values()] == [2] * 4


@pytest.mark.slow
def test_bad_checkpoints(runs, tmp_path, capsys, error_line):
    capsys.readouterr()
    assert 'attends along edges' in error_line(main, ['--checkpoint', checkpoint(runs, 'soft')])
    assert 'from 0 to 359, the examples ' in error_line(
        main, ['--checkpoint', checkpoint(runs, 'sampled'), '--example', 360])
    (tmp_path / 'no.ckpt').write_bytes(b'nothing')
    assert "'checkpoint' cannot be read" in error_line(main, ['--checkpoint', tmp_path / 'no.ckpt'])


@pytest.mark.parametrize('arguments, message', [
    (['--pattern', 'bigbrd'], "did you mean 'bigbird'"),
    (['--pattern', 'SlidingWindow('], 'must be an expression'),
    (['--pattern', '__import__("os")'], 'unknown pattern'),
    (['--n', '-1'], "'n' must be at least 1 (got -1)"),
    (['--n', '1'], "'n' must be at least 64, the fewest tokens of diffuser (got 1)"),
    (['--n', '100000000000'], "'n' must be at most 16,777,216"),
    (['--n', '200000', '--pattern', 'Full()'], 'more than the free memory of'),
    (['--seed', '-1'], "'seed' must be at least 0 (got -1)"),
    (['--samples', '0'], "'samples' must be at least 1 (got 0)"),
    (['--n', 'many'], "error: 'n' must be of type int (got 'many')"),
    (['--graph', 'missing.npz'], "'graph' cannot be read: missing.npz"),
    (['--graph', 'README.md'], "'graph' cannot be read: README.md (line"),
    (['--graph', '/dev/zero'], "'graph' cannot be read: /dev/zero (/dev/zero, line 1: longer"),
    (['--checkpoint', 'missing.ckpt'], "'checkpoint' cannot be read: missing.ckpt"),
    (['--large', '-1'], "'large' must not be negative (got -1)"),
    (['--unknown', '1'], 'unknown'),
    (['--grph', 'a.csv'], 'did you mean --graph?'),
    (['--graph', 'a.csv', '--pattern', 'star'], '--pattern: not allowed with argument --graph'),
    (['--pattern', 'diffuser', '--graph', 'a.csv'], '--graph: not allowed with argument --pattern'),
    (['--graph', 'a.csv', '--checkpoint', 'b.ckpt'], 'not allowed with argument --graph'),
    (['--out', 'page.html'], "'out' must be a folder without a suffix"),
    (['--out', 'results.txt'], "'out' must be a folder without a suffix"),
    (['x' * 300], 'unrecognized arguments: xxx'),
    (['--out', '/proc/none/x.csv'], "'out' must be a writable folder"),
])
def test_one_line_for_bad_input(arguments, message, error_line):
    assert message in error_line(main, arguments)


# Each question #######################################################################

def main_of(question):
    return COMMANDS[question]


@pytest.mark.slow
@pytest.mark.parametrize('question, options, printed, holds', [
    ('spectrum', [], 'lambda 2', lambda star, _: len(star['values']) == 32),
    ('attention', [], 'effective rank', lambda star, _: len(star['singular_values']) == 32),
    ('expander', [], 'sweep conductance', lambda star, _: star['diameter'] == 2),
    ('mixing', ['--steps', '100'], 'mixing time', lambda star, _: (
        star['mixing_time'] == mixing(Star().build(32)).mixing_time
        and len(star['bound']) == len(star['distance']))),
    ('communication', ['--processes', '[1,4]'], 'needed', lambda star, _: (
        star['messages'] == [0, 3] and star['halo_mib'][0] == 0)),
    ('diffusion', ['--hops', '3'], 'hops to reach all', lambda star, drawn: (
        len(star['distance']) == 4 and len(star['eigenvalue']) == 32
        and isinstance(drawn['eigenvalue'][0], list)))])  # which is complex
def test_an_answer_is_printed_saved_and_drawn(question, options, printed, holds, tmp_path, capsys):
    main_of(question)(['--pattern', 'Star()', 'SlidingWindow(1) | RandomKeys(2)', '--n', '32',
                       *options, '--out', str(tmp_path)])
    assert printed in capsys.readouterr().out
    saved = json.loads((tmp_path / f'{question}.json').read_text())
    assert holds(*(samples[0] for samples in saved.values()))
    assert (tmp_path / f'{question}.png').stat().st_size > 10_000


@pytest.mark.parametrize('question, arguments, message', [
    ('spectrum', '--pattern SlidingWindow(1) --n 5000', '--extremes 6'),
    ('diffusion', '--n 2049', 'spectra=False'),
    ('diffusion', '--hops 0', "'hops' must be at least 1 (got 0)"),
    ('mixing', '--epsilon 2', "'epsilon' must be in (0, 1] (got 2.0)"),
    ('mixing', '--steps 0', "'steps' must be at least 1 (got 0)"),
    ('communication', '--n 8 --processes [9]', "'processes' must be at most 8 (got 9)"),
    ('communication', '--processes []', "'processes' must contain at least one"),
    ('communication', '--heads 0', "'heads' must be at least 1"),
    ('hamiltonian', '--time_limit 0', "'time_limit' must be positive"),
    ('hamiltonian', '--time_limit soon', 'soon'),
    ('universality', '--time_limit 0', "'time_limit' must be positive"),
    ('universality', '--max_layers 0', "'max_layers' must be at least 1"),
    ('universality', '--hops 0', "'hops' must be at least 1"),
    ('universality', '--clusters 0', "'clusters' must be at least 1"),
    ('report', '--out a.csv', "'out' must be a folder"),
    ('report', '--graph a.csv --pattern star', 'not allowed'),
    ('report', '--time_limit x', 'time_limit')])
def test_one_line_for_bad_input_to_a_question(question, arguments, message, error_line):
    assert message in error_line(main_of(question), arguments.split())


# Output ##############################################################################

def never(graph: BipartiteGraph) -> Size:
    raise AssertionError('it has begun to work')


def test_full_disk_is_seen_before_the_work(tmp_path, monkeypatch, error_line):
    def full(**_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr('tempfile.TemporaryFile', full)
    assert 'No space left on device' in error_line(
        lambda arguments: command.ask(never, draw, arguments, name='size'),
        ['--out', str(tmp_path)])


def test_results_convert_and_print():
    result = Size(3, float('inf'), np.bool_(True), None, np.array([1, 2]))
    assert result.to_dict() == {'edges': 3, 'density': None, 'is_large': True, 'reason': None,
                                'degree': [1, 2]}
    assert str(result).splitlines() == ['Size', '  edges     3', '  density   inf',
                                        '  is large  yes', '  reason    -']
    assert json.dumps(result.to_dict(), allow_nan=False)
