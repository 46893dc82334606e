"""What all commands share, tried on a question made for it."""

import errno
import json
import resource
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from matplotlib.figure import Figure

from analysis import command
from analysis.graph_files import read_graph
from analysis.graphs import as_graph, sampled_graphs
from analysis.result import Result
from graphattn import BipartiteGraph
from graphattn.patterns import SlidingWindow

CONFIG = ['fit', '--config', 'experiments/configs/digits/sbm.yaml', '--trainer.max_epochs', '1',
          '--trainer.limit_train_batches', '1', '--trainer.limit_val_batches', '1',
          '--trainer.limit_test_batches', '1', '--trainer.enable_progress_bar', 'false',
          '--model.model.init_args.encoder.init_args.num_layers', '1',
          '--model.density_weight', '0']  # for tests whose source is a pattern


@dataclass(frozen=True)
class Size(Result):
    """How large a graph is."""

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


def draw(results):
    return Figure()


def ask(*arguments, **options):
    command.ask(size, draw, list(map(str, arguments)), name='size', **options)


def main(arguments):
    ask(*arguments)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Checkpoints of a model that samples and of one that does not."""
    from experiments.train import main

    folder = tmp_path_factory.mktemp('runs')
    main([*CONFIG, '--trainer.default_root_dir', str(folder / 'sampled')])
    main([*CONFIG, '--trainer.default_root_dir', str(folder / 'fixed'),
          '--model.model.init_args.encoder.init_args.source', 'graphattn.sources.PatternSource',
          '--model.model.init_args.encoder.init_args.source.init_args.pattern', 'SlidingWindow(2)'])
    return folder


def checkpoint(runs, name):
    return runs / name / 'checkpoints' / 'last.ckpt'


def test_patterns_side_by_side(tmp_path, capsys):
    ask('--pattern', 'star', 'SlidingWindow(2) & Causal()', '--n', 50, '--large', 140,
        '--out', tmp_path)
    printed = capsys.readouterr().out
    header, edges, *_ = printed.splitlines()
    assert header.split(maxsplit=1) == ['star', 'SlidingWindow(2) & Causal()']
    assert edges.split() == ['edges', '244', '147']
    saved = json.loads((tmp_path / 'size.json').read_text())
    assert [saved[label][0]['edges'] for label in saved] == [244, 147]
    assert len(saved['star'][0]['degree']) == 50
    assert (tmp_path / 'size.png').stat().st_size > 0


def test_default_pattern_and_length(tmp_path, capsys):
    ask('--out', tmp_path, pattern='SlidingWindow(1)', n=10)
    assert json.loads((tmp_path / 'size.json').read_text())['SlidingWindow(1)'][0]['edges'] == 28


GRAPH = (SlidingWindow(1)).build(5) - BipartiteGraph.from_mask(torch.eye(5, dtype=torch.bool))


@pytest.mark.parametrize('write, name', [
    (lambda path: sp.save_npz(path, GRAPH.to_scipy()), 'graph.npz'),
    (lambda path: nx.write_graphml(GRAPH.to_networkx(), path), 'graph.graphml'),
    (lambda path: nx.write_edgelist(GRAPH.to_networkx(), path, data=False), 'graph.txt'),
    (lambda path: path.write_text('# key query\n1 0\n0 1 # a comment\n\n'
                                  '2 1\n1 2\n3 2\n2 3\n4 3\n3 4'), 'graph.edges'),
])
def test_every_file_format(tmp_path, write, name):
    write(tmp_path / name)
    assert read_graph(tmp_path / name) == GRAPH
    ask('--graph', tmp_path / name, '--out', tmp_path)
    assert list(json.loads((tmp_path / 'size.json').read_text())) == [name]


@pytest.mark.parametrize('graph', [
    GRAPH, GRAPH.to_mask(), GRAPH.to_scipy(), GRAPH.to_networkx(),
    GRAPH.to_networkx().to_undirected(),
])
def test_every_kind_of_graph(graph):
    assert as_graph(graph) == GRAPH


def test_no_kind_of_graph():
    with pytest.raises(TypeError, match=r"'graph' must be a BipartiteGraph, .* \(got list\)"):
        as_graph([[0, 1]])


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
def test_bad_checkpoints(runs, tmp_path, capsys, error_line):
    capsys.readouterr()
    assert 'do not sample' in error_line(main, ['--checkpoint', checkpoint(runs, 'fixed')])
    assert "'example' must be from 0 to 359" in error_line(
        main, ['--checkpoint', checkpoint(runs, 'sampled'), '--example', 360])
    (tmp_path / 'no.ckpt').write_bytes(b'nothing')
    assert "'checkpoint' cannot be read" in error_line(main, ['--checkpoint', tmp_path / 'no.ckpt'])


@pytest.mark.parametrize('arguments, message', [
    (['--pattern', 'bigbrd'], "did you mean 'bigbird'"),
    (['--pattern', 'SlidingWindow('], 'is not an expression'),
    (['--pattern', '__import__("os")'], 'unknown pattern'),
    (['--n', '-1'], "'n' must be at least 1 (got -1)"),
    (['--n', '1'], "'n' must be at least 64 for diffuser (got 1)"),
    (['--n', '100000000000'], "'n' must be at most 16,777,216"),
    (['--n', '50000', '--pattern', 'Full()'], 'GiB that are free'),
    (['--seed', '-1'], "'seed' must be at least 0 (got -1)"),
    (['--samples', '0'], "'samples' must be at least 1 (got 0)"),
    (['--n', 'many'], 'many'),
    (['--graph', 'missing.npz'], "'graph' cannot be read: missing.npz"),
    (['--graph', 'README.md'], "'graph' cannot be read: README.md (line 3"),
    (['--graph', '/dev/zero'], "'graph' cannot be read: /dev/zero (/dev/zero, line 1: longer"),
    (['--checkpoint', 'missing.ckpt'], "'checkpoint' cannot be read: missing.ckpt"),
    (['--large', '-1'], "'large' must not be negative (got -1)"),
    (['--unknown', '1'], 'unknown'),
])
def test_one_line_for_bad_input(arguments, message, error_line):
    assert message in error_line(main, arguments)


def never(graph: BipartiteGraph) -> Size:
    raise AssertionError('it has begun to work')


@pytest.mark.parametrize('out', ['file', 'file/below', 'file/far/below', '/proc/none', 'x' * 300])
def test_output_folder_is_checked_before_the_work(tmp_path, monkeypatch, error_line, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    assert f"'out' must be a folder that can be written to (got {out}: " in error_line(
        lambda arguments: command.ask(never, draw, arguments, name='size'), ['--out', out])
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_full_disk_is_seen_before_the_work(tmp_path, monkeypatch, error_line):
    def full(**_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr('tempfile.TemporaryFile', full)
    assert 'No space left on device' in error_line(
        lambda arguments: command.ask(never, draw, arguments, name='size'),
        ['--out', str(tmp_path)])


def test_bound_on_memory_ends_with_the_command(tmp_path, error_line):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    error_line(main, ['--n', '50000', '--pattern', 'Full()', '--out', str(tmp_path)])
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize('name, content', [
    ('a.npz', b'PK nothing'), ('a.graphml', b'<xml'), ('a.txt', b'0 1\n1 x\n'), ('a.txt', b''),
    ('a.txt', b'\xff\xfe'), ('a.txt', b'-1 2'),
])
def test_files_that_hold_no_graph(tmp_path, error_line, name, content):
    (tmp_path / name).write_bytes(content)
    assert "'graph' cannot be read" in error_line(main, ['--graph', tmp_path / name])


def test_results_convert_and_print():
    result = Size(3, float('inf'), np.bool_(True), None, np.array([1, 2]))
    assert result.to_dict() == {'edges': 3, 'density': None, 'is_large': True, 'reason': None,
                                'degree': [1, 2]}
    assert str(result).splitlines() == ['Size', '  edges     3', '  density   inf',
                                        '  is large  yes', '  reason    -']
    assert json.dumps(result.to_dict(), allow_nan=False)
