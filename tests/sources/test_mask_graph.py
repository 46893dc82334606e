"""Hard masks as edges: attention and gradients are those of the dense form of Eq. 5 and 6."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention, pair_attention
from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout, PairLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import GraphAttention, fold_heads, unfold_heads
from graphattn.sources import LearnedMaskSource
from graphattn.sources.mask_graph import MaskGraph
from tests.pairwise import pairwise

PTR = torch.tensor([0, 9, 13, 13, 14, 16, 23, 32])
MODES = {'free': dict(mode='dam_unstructured'), 'structured': dict(mode='dam_structured')}


def tokens(num_tokens: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, num_tokens, 2, 3, generator=generator, dtype=torch.double)
    return x.requires_grad_()


def dense_mask(values: Tensor, layout: PairLayout, length: int) -> Tensor:
    """The value of each pair, ``[heads, length, length]``."""
    constants = values.new_tensor([1., 0.]).expand(len(values), 2)
    return torch.cat([values, constants], dim=1)[:, layout.index(length)]


def dense_form(x: Tensor, ptr: Tensor, mask: MaskGraph, logit_drop: float, hops: int = 1,
               teleport: float = 0.) -> Tensor:
    """Eq. 5 and 6 with every pair of every sequence, in which pairs that are off weigh nothing."""
    out = []
    for start, end in zip(ptr.tolist(), ptr.tolist()[1:]):
        query, key, value = x[:, start:end].transpose(1, 2)
        dense = dense_mask(mask.values, mask.layout, end - start)
        score = query @ key.mT / query.size(-1)**0.5 - logit_drop * (1 - dense)
        weight = score.exp() * dense.detach()
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        z = value
        for _ in range(hops):
            z = (1 - teleport) * (weight @ z) + teleport * value
        out.append(z.transpose(0, 1))
    return torch.cat(out)


def along_edges(x: Tensor, graph: MaskGraph, source: LearnedMaskSource, **options) -> Tensor:
    out = edge_attention(*map(fold_heads, x), graph, **source.logit_terms(graph), **options)
    return unfold_heads(out, x.size(2))


def gradients(out: Tensor, x: Tensor, source: LearnedMaskSource, graph: MaskGraph) -> tuple:
    loss = out.sin().sum() + 0.01 * graph.norm()
    return torch.autograd.grad(loss, [x, source.logit], retain_graph=True)


@pytest.mark.parametrize('mode, border, slope, diffusion', pairwise(
    MODES, [False, True], [(0.1, 10.), (1., 1.), (3., 1e4)], [(1, 0.), (3, 0.), (4, 0.2)]))
def test_output_and_gradients_equal_the_dense_form(mode, border, slope, diffusion):
    (temperature, logit_drop), (hops, teleport) = slope, diffusion
    torch.manual_seed(0)
    source = LearnedMaskSource(2, 9, border=border, temperature=temperature, init_std=1.,
                               logit_drop=logit_drop, **MODES[mode]).double()
    x = tokens()
    graph = source(x[0], x[1], PTR)
    out = along_edges(x, graph, source, hops=hops, teleport=teleport)
    expected = dense_form(x, PTR, graph, logit_drop, hops, teleport)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    ours, theirs = (gradients(y, x, source, graph) for y in (out, expected))
    for grad, expected_grad in zip(ours, theirs):
        error = (grad - expected_grad).abs().max() / expected_grad.abs().max()
        assert float(error) < 1e-12
    assert bool((ours[1] != 0).all()) or temperature == 0.1  # where slopes vanish


@pytest.mark.parametrize('hops', [1, 3])
def test_a_layer_learns_the_same_mask_as_in_the_dense_form(hops):
    torch.manual_seed(0)
    source = LearnedMaskSource(2, 9, mode='dam_unstructured', logit_drop=100.)
    layer = GraphAttention(6, 2, source, hops=hops, teleport=0.1 if hops > 1 else 0.).double()
    x = torch.randn(32, 6, dtype=torch.double)
    out, graph = layer(x, PTR, return_graph=True)
    projected = torch.stack([linear(x).unflatten(-1, (2, 3)) for linear in
                             (layer.lin_query, layer.lin_key, layer.lin_value)])
    expected = layer.lin_out(dense_form(projected, PTR, graph, 100., hops,
                                        layer.attention.teleport).flatten(1))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), [*layer.parameters()],
                                                     retain_graph=True) for y in (out, expected)))


LAYOUTS = [layout(6, border) for layout in (FreeLayout, DiagonalLayout)
           for border in (False, True)]


def random_graph(layout: PairLayout, ptr: Tensor = PTR, heads: int = 3, **options) -> MaskGraph:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(heads, layout.num_values, dtype=torch.double, generator=generator).round()
    return MaskGraph(values.requires_grad_(), layout, ptr, **options)


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
def test_norm_is_the_sum_over_heads_and_all_pairs(layout):
    graph = random_graph(layout, torch.tensor([0, 6]))
    dense = dense_mask(graph.values, layout, 6)
    torch.testing.assert_close(graph.norm(), dense.sum())
    torch.testing.assert_close(*(torch.autograd.grad(norm, graph.values)[0]
                                 for norm in (graph.norm(), dense.sum())))


@pytest.mark.slow
def test_structured_masks_never_visit_all_pairs(monkeypatch):
    def refuse(*_):
        raise AssertionError('all pairs')

    monkeypatch.setattr(PairLayout, 'index', refuse)
    num_tokens = 20_000
    source = LearnedMaskSource(1, num_tokens)
    torch.nn.init.constant_(source.logit, -9.)
    layer, x = GraphAttention(4, 1, source), torch.randn(num_tokens, 4)
    out, graph = layer(x, torch.tensor([0, num_tokens]), return_graph=True)
    (out.sin().sum() + graph.norm()).backward()
    assert bool((source.logit.grad > 0).all()) and graph.density() < 2e-3
    layer.eval()(x, torch.tensor([0, num_tokens]))
    source.freeze('sample')[0].build(num_tokens)


def test_copies_have_the_values_without_their_gradient():
    graph = random_graph(FreeLayout(9))
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other == graph and type(other) is MaskGraph and other.edge_bias is None
        assert other.norm() == graph.norm() and not other.norm().requires_grad
    for plain in (graph.with_edge_prob(None), graph | graph, graph.transpose()):
        assert type(plain) is BipartiteGraph


@pytest.mark.parametrize('values, ptr, match', [
    (torch.full((1, 4), .5), [0, 2], "'values' must.*0.*1 .got 0.5"),
    (torch.full((1, 4), math.nan), [0, 2], r"'values' must.*0.*1.* \(got nan\)"),
    (torch.ones(1, 3), [0, 2], r"'values' must.*\[heads, 4\]"),
    (torch.ones(1, 4), [0, 3], "'length' must.*got 3"),
])
def test_bad_arguments(values, ptr, match):
    with pytest.raises(ValueError, match=match):
        MaskGraph(values, FreeLayout(2), torch.tensor(ptr))


def test_soft_masks_have_no_edges():
    mask = PairMask(torch.rand(2, 25), FreeLayout(5))
    x = torch.randn(5, 2, 3)
    with pytest.raises(TypeError, match="'graph' must be .* call pair_attention for a soft"):
        edge_attention(x, x, x, mask)
    assert pair_attention(x, x, x, torch.tensor([0, 5]), mask).shape == x.shape
