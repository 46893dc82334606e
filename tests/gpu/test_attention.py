"""Examine the kernels of Triton, and the other backends, on a real GPU by the public function."""

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention, edge_feature_attention
from graphattn.patterns import Full, RandomKeys, SlidingWindow
from graphattn.testing import check_attention
from graphattn.testing.checks import CHECKS
from tests.testing.test_backends import declared

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.ops.attention import triton_short_rows as short_rows  # noqa: E402
from graphattn.ops.attention import triton_tiles as tiles  # noqa: E402
from graphattn.ops.triton.launch import MAX_CHANNELS  # noqa: E402
from graphattn.ops.triton.plans import TIMES_BEFORE_COPY  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'),
              pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')]

# The number of edges from which on a tile is computed as a whole, and the mean number below which
# rows are short.
WAYS = {'rows': (2**20, 0), 'short rows': (2**20, 2**20), 'tiles': (1, 0), 'as chosen': None}


@pytest.mark.parametrize('check', [check.name for check in CHECKS])
@pytest.mark.parametrize('way', WAYS)
def test_kernels_are_right(way, check, monkeypatch):
    if WAYS[way] is not None:
        edges_of_a_tile, short = WAYS[way]
        monkeypatch.setattr(tiles, 'EDGES_OF_A_TILE',
                            dict.fromkeys(tiles.EDGES_OF_A_TILE, edges_of_a_tile))
        monkeypatch.setattr(short_rows, 'FASTER_BELOW', short)
        monkeypatch.setattr(short_rows, 'MAX_BYTES', 2**20)

    def attention(query, key, value, graph, **terms):
        backend = 'triton' if query.size(-1) <= MAX_CHANNELS else 'auto'
        return edge_attention(query, key, value, graph, backend=backend, **terms)

    check_attention(attention, supports=declared('triton'), checks=[check], device='cuda',
                    time_limit=60.)


@pytest.mark.parametrize('name', ['gather', 'sdpa', 'reference'])
def test_other_backends_are_right(name):
    def attention(query, key, value, graph, **terms):
        return edge_attention(query, key, value, graph, backend=name, **terms)

    checks = ['graphs', 'nothing to attend to', 'half precision', 'bias', 'grouped queries']
    check_attention(attention, supports=declared(name), checks=checks, device='cuda',
                    time_limit=60.)


@pytest.mark.parametrize('num_features', [3, 16, 64])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('num_kv_heads', [4, 2])
@pytest.mark.parametrize('degree', [4, 1500])
def test_features_of_edges(degree, num_kv_heads, dtype, num_features):
    """Rows of 1,500 edges, of queries or of keys, are computed in parts."""
    generator = torch.Generator().manual_seed(0)
    graph, channels = RandomKeys(degree).build(12_000 // degree, 2 * degree, seed=0), 32
    shapes = [(graph.num_queries, 4, channels), *[(graph.num_keys, num_kv_heads, channels)] * 2,
              (graph.num_edges, num_features), (4, channels, num_features)]
    inputs = [torch.randn(shape, generator=generator).mul(0.5).to(dtype) for shape in shapes]

    def step(device: str, dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
        leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
        out = edge_feature_attention(*leaves[:3], graph.to(device), *leaves[3:], backend=backend)
        grads = torch.autograd.grad(out.float().square().sum(), leaves)
        return [x.double().cpu() for x in (out, *grads)]

    found, expected = step('cuda', dtype, 'triton'), step('cpu', torch.float32, 'gather')
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for actual, right in zip(found, expected):
        scale = right.abs().max()
        torch.testing.assert_close(actual / scale, right / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_captured_graph_is_replayed(dtype):
    """Before and after the numbers of a plan have arrived on the host."""
    graph = SlidingWindow(40).build(3000).to('cuda')
    query, key, value = torch.randn(3, 3000, 2, 16, device='cuda', dtype=dtype)
    expected = edge_attention(query, key, value, graph, backend='triton')
    for _ in range(2):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = edge_attention(query, key, value, graph, backend='triton')
        out.zero_()
        captured.replay()
        torch.testing.assert_close(out, expected)
        for _ in range(2 * TIMES_BEFORE_COPY):
            torch.cuda.synchronize()
            edge_attention(query, key, value, graph, backend='triton')


@pytest.mark.parametrize('lengths', [(1, 700, 33), (64, 64, 65), (2000,)])
def test_complete_graphs_of_any_lengths(lengths):
    full = BipartiteGraph.batch([Full().build(n) for n in lengths])
    inputs = [torch.randn(sum(lengths), 4, 64).bfloat16() for _ in range(4)]

    def step(device: str) -> list[torch.Tensor]:
        leaves = [x.to(device).requires_grad_() for x in inputs[:3]]
        out = edge_attention(*leaves, full.to(device))
        return [out, *torch.autograd.grad(out, leaves, inputs[3].to(device))]

    for actual, expected in zip(step('cuda'), step('cpu')):
        scale = expected.abs().max().float()
        torch.testing.assert_close(actual.cpu().float() / scale, expected.float() / scale, rtol=0,
                                   atol=2e-2)
