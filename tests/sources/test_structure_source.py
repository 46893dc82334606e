"""A source beside the edges of the data."""

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.layers import GraphAttention, GraphGPSConv, GraphTransformerConv
from graphattn.patterns import Full, get
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource, StructureSource

PTR = torch.tensor([0, 4, 4, 9])
BATCH = torch.tensor([0] * 4 + [2] * 5)
EDGES = torch.tensor([[8, 2, 1, 5, 3], [5, 1, 2, 8, 3]])
TOKENS = torch.randn(9, 2, 4)


def adjacency(edge_index: Tensor = EDGES) -> Tensor:
    """``adj_t``, not coalesced."""
    return torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.size(1)), (9, 9))


def structure() -> BipartiteGraph:
    return BipartiteGraph.from_edge_index(EDGES, 9, query_ptr=PTR)


@pytest.mark.parametrize('edges', [EDGES, structure(), structure().edge_index, adjacency()],
                         ids=type)
@pytest.mark.parametrize('pattern', ['SlidingWindow(0)', get('exphormer', degree=1)], ids=str)
def test_has_the_edges_of_the_pattern_and_of_the_data(edges, pattern):
    source = PatternSource(pattern)
    graph = (source | edges)(TOKENS, TOKENS, PTR)
    assert graph == source(TOKENS, TOKENS, PTR) | structure()


def test_exphormer_is_an_expander_and_virtual_nodes():
    pattern = get('exphormer', degree=3, num_virtual=2)
    assert repr(pattern) == 'GlobalTokens(tokens=2) | RandomRegular(degree=3)'
    assert (pattern.build(30, seed=0).in_degree()[2:] >= 3).all()


def test_bad_edges_and_sampled_patterns_are_refused():
    with pytest.raises(TypeError, match="'edges' must be a Tensor, a SparseTensor or a Bipartite"):
        PatternSource(Full()) | 'edges'
    for mask in (LearnedMaskSource(2, 5), LearnedMaskSource(2, 5, mode='soft')):
        with pytest.raises(ValueError, match="'source' must return.*pattern.*block"):
            StructureSource(mask, EDGES)(TOKENS, TOKENS, PTR)


@pytest.mark.parametrize('fixed', [None, 'SlidingWindow(0)'])
def test_a_block_model_keeps_the_edges_of_the_data_in_every_head(fixed):
    of_data, block_model = BipartiteGraph.batch([structure()] * 2), BlockModelSource(2, 4, 3,
                                                                                     fixed=fixed)
    joined, seed = block_model | EDGES, torch.Generator().manual_seed
    drawn = block_model(TOKENS, TOKENS, PTR, generator=seed(0))
    graph = joined(TOKENS, TOKENS, PTR, generator=seed(0))
    assert torch.equal(graph.to_mask(), (drawn | of_data).to_mask())
    is_sure = graph.isin(of_data if fixed is None else drawn.fixed | of_data)
    assert (graph.edge_prob[is_sure] == 1).all() and (graph.edge_prob[~is_sure] < 1).all()
    joined.eval()
    assert joined(TOKENS, TOKENS, PTR, generator=seed(0)).edge_prob is None


def test_only_drawn_edges_have_a_gradient_to_the_block_model():
    block_model, layer = BlockModelSource(2, 4, 3), GraphAttention(8, 2)
    x = torch.randn(9, 8)
    full = BipartiteGraph.batch([BipartiteGraph.from_edge_index(
        torch.tensor([[j, i] for own in (range(4), range(4, 9)) for i in own for j in own]).T, 9,
        query_ptr=PTR)])
    layer(x, PTR, source=block_model | full).square().sum().backward()
    assert block_model.centroid.grad is None or not block_model.centroid.grad.any()
    layer(x, PTR, source=block_model | EDGES).square().sum().backward()
    assert block_model.centroid.grad.any()


# GPS #################################################################################


def layer(conv: bool = True, **options) -> GraphGPSConv:
    return GraphGPSConv(8, GraphTransformerConv(8, 4, 2, edge_dim=3) if conv else None,
                        2, attn_kwargs={'source': 'exphormer'}, **options)


@pytest.mark.parametrize('options', [{}, dict(conv=False), dict(norm=None),
                                     dict(norm='layer_norm'), dict(dropout=0.5)], ids=str)
def test_gps_trains_along_any_source(options):
    x, gps = torch.randn(9, 8), layer(**options)
    gps.reset_parameters()
    kwargs: dict[str, Tensor] = {} if 'conv' in options else {'edge_attr': torch.randn(5, 3)}
    out = gps(x, EDGES, BATCH, source=PatternSource('exphormer') | EDGES, **kwargs)
    out.square().sum().backward()
    assert out.shape == x.shape
    unused = 'norm1' if gps.conv is None else ' '
    assert all(parameter.grad is not None for name, parameter in gps.named_parameters()
               if not name.startswith(unused))


def test_gps_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"'attention' must have .*8 channels.* \(got 4\)"):
        GraphGPSConv(8, None, attention=GraphAttention(4, 2))
    with pytest.raises(TypeError, match=r"GraphAttention\(8, heads, 'Full\(\)'\)"):
        GraphGPSConv(8, None, attention=torch.nn.MultiheadAttention(8, 2))
    for bad, match in ((dict(heads=GraphAttention(8, 2)), "'heads' must.*pass a module as 'att"),
                       (dict(heads=3, attention=GraphAttention(8, 2)), "'heads' must be omitted"),
                       (dict(attn_kwargs={}, attention=GraphAttention(8, 2)), "'attn_kwargs' must"),
                       (dict(attn_type='performer'), "'attn_type' must.*torch_geometric.nn.GPS"),
                       (dict(attn_type=None), "'attn_type' must be 'multihead' without 'conv'")):
        with pytest.raises((TypeError, ValueError), match=match):
            GraphGPSConv(8, None, **bad)
    for batch, match in ((BATCH.flip(0), "'batch' must ascend"), (BATCH[:3], "'batch' must have")):
        with pytest.raises(ValueError, match=match):
            layer(conv=False)(torch.randn(9, 8), EDGES, batch)
