"""Choices of backend='auto'."""

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import drive, edge_attention
from graphattn.functional.choose import choose
from graphattn.graphs.complete import CompleteGraph
from graphattn.graphs.segments import Segments
from graphattn.patterns import Full, RandomKeys
from tests.forked import run_anew
from tests.ops.test_backends import draw


@pytest.fixture
def chosen(monkeypatch):
    """The names of the backends that were chosen."""
    names = []

    def spy(*args, **options):
        backend = choose(*args, **options)
        names.append(backend.name)
        return backend

    monkeypatch.setattr(drive, 'choose', spy)
    return names


def run(graph, chosen, poison=None, **options):
    inputs = draw(graph, 'per_edge' if options.pop('gated', False) else 'plain')
    if poison:
        inputs[poison][0] = torch.nan
    inputs['query'].requires_grad_()
    edge_attention(graph=graph, **inputs, **options)
    return chosen[-1]


@pytest.mark.parametrize('graph', [RandomKeys(19).build(20, seed=0), Full().build(20)])
def test_dropout_is_fused_at_every_density_with_and_without_gradients(chosen, graph):
    assert run(graph, chosen, dropout_p=0.1) == 'numba'
    with torch.no_grad():
        assert run(graph, chosen, dropout_p=0.1) == 'numba'


def test_long_complete_graphs_are_dense_unless_their_edges_are_listed(chosen):
    ptr = torch.tensor([0, 200])
    unlisted = CompleteGraph(Segments(ptr, ptr))
    assert run(Full().build(200), chosen) == 'numba'
    assert run(unlisted, chosen) == 'sdpa'
    assert '_key' not in vars(unlisted)


@pytest.mark.parametrize('lengths, expected', [
    ((20,) * 300, 'sdpa'), ((20, 21) * 3, 'numba'), ((20, 20, 170), 'sdpa'), ((), 'numba')])
def test_short_sequences_of_many_lengths_are_fused(chosen, lengths, expected):
    full = BipartiteGraph.batch([Full().build(n) for n in lengths] or [Full().build(0)])
    assert run(full, chosen) == expected
    with torch.no_grad():
        assert run(full, chosen) == expected


@pytest.mark.parametrize('poison', ['query', 'key', 'value'])
def test_nan_never_goes_through_masked_dense_attention(chosen, poison):
    assert run(RandomKeys(19).build(20, seed=0), chosen, poison) == 'numba'
    assert run(Full().build(20), chosen, poison) == 'sdpa'


WITHOUT_NUMBA = """
import warnings
import torch
from graphattn.patterns import Star
graph, x = Star().build(100), torch.randn(100, 1, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    from graphattn.functional import edge_attention
    for _ in range(3):
        edge_attention(x, x, x, graph)
messages = [str(w.message) for w in caught if 'numba' in str(w.message)]
assert len(messages) == 1 and 'pip install numba' in messages[0], messages
try:
    edge_attention(x, x, x, graph, backend='numba')
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_numba_auto_warns_once_and_numba_raises():
    result = run_anew(WITHOUT_NUMBA, missing=['numba'])
    assert "numba, which cannot be imported" in result.stdout, result.stderr
