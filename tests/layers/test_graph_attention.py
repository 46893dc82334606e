"""GraphAttention and EncoderLayer against plain transformers, and the folding of heads."""

import copy
import math

import pytest
import torch
from torch import nn
from torch_geometric.utils.sparse import index2ptr

from graphattn import BipartiteGraph, edge_attention
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import EncoderLayer, GraphAttention
from graphattn.patterns import Full, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource
from tests.counted_source import CountedSource
from tests.graphs import random_graph
from tests.ops.numbers import saved_bytes

PTR = torch.tensor([0, 5, 6, 14])


def test_full_attention_equals_torch():
    attention = GraphAttention(8, 2, PatternSource(Full())).double()
    mha = nn.MultiheadAttention(8, 2, batch_first=True).double()
    projections = (attention.lin_query, attention.lin_key, attention.lin_value)
    with torch.no_grad():
        mha.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        mha.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        mha.out_proj.load_state_dict(attention.lin_out.state_dict())
    x = torch.randn(14, 8, dtype=torch.double)
    expected = [mha(part, part, part)[0] for part in x.split(PTR.diff().tolist())]
    torch.testing.assert_close(attention(x, PTR), torch.cat(expected))


def test_a_head_with_its_own_graph_ignores_the_other_graphs():
    class OneGraphPerHead(PatternSource):
        per_head = True

        def forward(self, query, key, ptr, *, generator=None):
            return type(graphs[0]).batch(graphs)

    graphs = [random_graph(6, 6, 0.5, seed=head) for head in range(2)]
    attention = GraphAttention(8, 2, OneGraphPerHead(Full())).double()
    attention.lin_out = nn.Identity()
    x = torch.randn(6, 8, dtype=torch.double)
    out = attention(x, torch.tensor([0, 6]))
    for head, graph in enumerate(graphs):
        query, key, value = (linear(x).view(6, 2, 4)[:, [head]] for linear in
                             (attention.lin_query, attention.lin_key, attention.lin_value))
        torch.testing.assert_close(out[:, 4 * head:4 * (head + 1)],
                                   attention.attention(query, key, value, graph).flatten(1))


@pytest.mark.parametrize('source', [PatternSource(SlidingWindow(1)), BlockModelSource(2, 4, 8)],
                         ids=['pattern', 'block_model'])
@pytest.mark.parametrize('options', [
    {'norm_first': True}, {'norm_first': False}, {'hops': 3, 'teleport': 0.2},
    {'hops': 3, 'teleport': 0.2, 'learn_teleport': True}], ids=str)
def test_encoder_layer_trains_every_parameter(source, options):
    layer = EncoderLayer(8, 2, source, **options).double()
    x = torch.randn(14, 8, dtype=torch.double)
    out, graph = layer(x, PTR, return_graph=True)
    assert out.shape == (14, 8) and graph.num_segments in (3, 6)
    out.sin().sum().backward()
    silent = {name for name, parameter in layer.named_parameters()
              if parameter.grad is None or not parameter.grad.abs().sum() > 0}
    # The softmax does not see a constant added to all keys.
    assert silent <= {'attention.lin_key.bias'}
    if 'hops' in options:
        one_hop = EncoderLayer(8, 2, source).double()
        one_hop.load_state_dict(layer.state_dict(), strict=False)
        assert not torch.allclose(one_hop(x, PTR, graph=graph), out)


def test_pre_norm_and_post_norm_are_the_formulas():
    x = torch.randn(14, 8)
    post = EncoderLayer(8, 2, PatternSource(Full()), norm_first=False)(x, PTR)
    torch.testing.assert_close(post.mean(dim=1), torch.zeros(14), atol=1e-5, rtol=0)
    pre = EncoderLayer(8, 2, PatternSource(Full()))
    for linear in (pre.attention.lin_out, pre.feed_forward[3]):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    torch.testing.assert_close(pre(x, PTR), x)


SHARED_KEYS = {
    'pattern': ({}, lambda: PatternSource(SlidingWindow(1))),
    'pattern of each head': ({}, lambda: PatternSource([SlidingWindow(width) for width in
                                                        range(4)])),
    'block model': ({}, lambda: BlockModelSource(4, 2, 8)),
    'soft mask': ({}, lambda: LearnedMaskSource(4, 8, mode='soft')),
    'hops': ({'hops': 3, 'teleport': 0.2}, lambda: PatternSource(SlidingWindow(1))),
    'learned teleport': ({'teleport': 0.2, 'learn_teleport': True, 'hops': 2},
                         lambda: PatternSource(SlidingWindow(1))),
    'recompute': ({'recompute': True}, lambda: PatternSource(SlidingWindow(1))),
}


@pytest.mark.parametrize('name, num_kv_heads', [
    (name, 1 + number % 2) for number, name in enumerate(SHARED_KEYS)])
def test_heads_that_share_keys_equal_heads_with_the_same_keys(name, num_kv_heads):
    options, source = SHARED_KEYS[name]
    attention = GraphAttention(8, 4, source(), num_kv_heads=num_kv_heads, **options).double()
    other = GraphAttention(8, 4, copy.deepcopy(attention.source), **options).double()
    assert attention.lin_key.weight.shape == (2 * num_kv_heads, 8)
    state = attention.state_dict()
    for kind in 'weight', 'bias':
        for linear in 'lin_key', 'lin_value':
            of_heads = state[f'{linear}.{kind}'].unflatten(0, (num_kv_heads, 2))
            state[f'{linear}.{kind}'] = of_heads.repeat_interleave(4 // num_kv_heads, 0).flatten(0,
                                                                                                 1)
    other.load_state_dict(state)
    x = torch.randn(14, 8, dtype=torch.double, requires_grad=True)
    results = []
    for module in (attention, other):
        out = module(x, PTR, generator=torch.Generator().manual_seed(0))
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, module.lin_query.weight])])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize('make', [
    lambda: PatternSource(SlidingWindow(1)), lambda: PatternSource([SlidingWindow(1), Full()]),
    lambda: LearnedMaskSource(2, 8, mode='soft')], ids=['shared', 'a graph per head', 'soft mask'])
def test_softcaps_and_sinks_are_those_of_the_definition(make):
    source, x = make(), torch.randn(14, 8, dtype=torch.double)
    attention = GraphAttention(8, 2, source, softcap=0.1, sinks=True).double()
    assert not attention.sink.any()
    attention.sink.data = sink = torch.tensor([-1., 2.], dtype=torch.double)
    linears = attention.lin_query, attention.lin_key, attention.lin_value
    query, key, value = (linear(x).view(-1, 2, 4) for linear in linears)
    out, graph = attention(x, PTR, return_graph=True)
    expected = []
    for head in range(2):
        one = slice(head, head + 1)
        heads = [nodes[:, one] for nodes in (query, key, value)]
        if isinstance(graph, BipartiteGraph):
            mask = graph.to_mask()
            mask = mask if len(mask) == 14 else mask[14 * head:, 14 * head:][:14, :14]
            own, bias = BipartiteGraph.from_mask(mask), None
        else:
            own = BipartiteGraph.batch([Full().build(length) for length in PTR.diff().tolist()])
            bias = torch.cat([graph.bias(length)[head].flatten() for length in PTR.diff().tolist()])
        expected.append(edge_attention(*heads, own, edge_bias=bias, softcap=0.1, sink=sink[one],
                                       backend='reference'))
    torch.testing.assert_close(out, attention.lin_out(torch.cat(expected, 1).flatten(1)))
    if isinstance(graph, BipartiteGraph):
        explicit, _ = attention(x, PTR, return_attention_weights=False)  # as PyG's layers
        torch.testing.assert_close(explicit, out)
    attention.reset_parameters()
    assert not attention.sink.any()


def test_keys_that_heads_share_are_not_repeated():
    attention = GraphAttention(8, 4, PatternSource(SlidingWindow(1)), num_kv_heads=2)
    seen = []
    attention.attention.register_forward_pre_hook(lambda _, given: seen.append(given[1].shape))
    attention(torch.randn(14, 8), PTR)
    assert seen == [(14, 2, 2)]
    assert 'num_kv_heads=2' in repr(attention)


@pytest.mark.parametrize('channels, heads, options, match', [
    (10, 4, {}, "'channels' must be a multiple of 'heads'"),
    (8, 4, {'softcap': 0.}, "'softcap' must be positive and finite"),
    (8, 4, {'num_kv_heads': 3}, r"'num_kv_heads' must.*'heads' \(got.*4\)"),
    (8, 2, {'hops': math.inf, 'teleport': 0.1, 'recompute': True}, "'recompute' must be False"),
    *((8, 2, {'hops': 2, 'teleport': teleport, 'learn_teleport': True},
       "'teleport' must.*number") for teleport in (0., 1., (0.1, 0.2)))])
def test_bad_options(channels, heads, options, match):
    with pytest.raises(ValueError, match=match):
        GraphAttention(channels, heads, **options)


def test_source_of_another_size_is_refused():
    with pytest.raises(ValueError, match="'source' must.*2.*.got.*4"):
        GraphAttention(8, 2, BlockModelSource(heads=4, head_channels=2))
    attention = GraphAttention(8, 2, BlockModelSource(heads=2, head_channels=2))
    with pytest.raises(ValueError, match="'query' must.*2.*channels"):
        attention(torch.randn(14, 8), PTR)
    with pytest.raises(ValueError, match="'source' must be a source for 2 heads"):
        attention(torch.randn(14, 8), PTR, source=BlockModelSource(heads=4, head_channels=4))


def test_a_given_graph_replaces_the_sources_graph():
    source = CountedSource(2, 4, 8)
    attention = GraphAttention(8, 2, source)
    x = torch.randn(14, 8)
    out, graph = attention(x, PTR, return_graph=True)
    again, same = attention(x, PTR, graph=graph, return_graph=True)
    assert same is graph and (source.num_graphs, source.num_terms) == (1, 2)
    torch.testing.assert_close(again, out)
    gradients = [torch.autograd.grad(y.sin().sum(), source.centroid, retain_graph=True)[0]
                 for y in (out, again)]
    assert gradients[0].any()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize('per_head', [False, True])
def test_an_edge_bias_and_the_weights_equal_dense_attention(per_head):
    torch.manual_seed(0)
    attention = GraphAttention(8, 2)
    x, ptr = torch.randn(9, 8), torch.tensor([0, 4, 9])
    graph = PatternSource([SlidingWindow(1), SlidingWindow(2)] if per_head else SlidingWindow(1)
                          ).graph(ptr)
    bias = torch.randn(graph.num_edges, *([] if per_head else [2]), requires_grad=True)
    out, kept, (edge_index, alpha) = attention(x, ptr, graph=graph, edge_bias=bias,
                                               return_graph=True, return_attention_weights=True)
    assert kept is graph and torch.equal(edge_index, graph.edge_index.as_tensor())
    query, key, value = (linear(x).view(9, 2, 4).transpose(0, 1) for linear in (
        attention.lin_query, attention.lin_key, attention.lin_value))
    added = torch.full((2, 9, 9), -torch.inf)
    head = graph.query // 9
    if per_head:
        added = added.index_put((head, graph.query % 9, graph.key % 9), bias)
    else:
        added = torch.stack([added[h].index_put((graph.query, graph.key), bias[:, h])
                             for h in range(2)])
    weight = (query @ key.mT / 2 + added).softmax(dim=-1)
    expected = attention.lin_out((weight @ value).transpose(0, 1).flatten(1))
    torch.testing.assert_close(out, expected)
    on_edges = (weight[head, graph.query % 9, graph.key % 9].unsqueeze(1) if per_head
                else weight[:, graph.query, graph.key].T)
    torch.testing.assert_close(alpha, on_edges)
    grads = [torch.autograd.grad(result.square().sum(), bias, retain_graph=True)[0]
             for result in (attention(x, ptr, graph=graph, edge_bias=bias), expected)]
    torch.testing.assert_close(*grads)


def test_a_bias_is_added_to_the_bias_of_the_source():
    source = LearnedMaskSource(2, 16, hard=True).train()
    attention = GraphAttention(8, 2, source)
    x, ptr = torch.randn(9, 8), torch.tensor([0, 9])
    _, graph = attention(x, ptr, return_graph=True)
    nothing = torch.zeros(graph.num_edges)
    torch.testing.assert_close(attention(x, ptr, graph=graph, edge_bias=nothing),
                               attention(x, ptr, graph=graph))
    bias = torch.randn(graph.num_edges)
    attention(x, ptr, graph=graph, edge_bias=bias).square().sum().backward()
    assert source.logit.grad.any()


@pytest.mark.parametrize('options, message', [
    ({'edge_bias': torch.zeros(3)}, "'edge_bias' must.*'graph'"),
    ({'edge_bias': torch.zeros(3), 'graph': SlidingWindow(1).build(9)}, "25 edges"),
    ({'return_attention_weights': True, 'graph': PairMask(torch.ones(2, 81), FreeLayout(9))},
     "'return_attention_weights' must be omitted .* soft masks"),
])
def test_soft_masks_have_neither_bias_nor_weights(options, message):
    attention = GraphAttention(8, 2, PatternSource(Full()))
    with pytest.raises(ValueError, match=message):
        attention(torch.randn(9, 8), torch.tensor([0, 9]), **options)


def test_a_source_of_the_call_replaces_the_layers_source():
    with_source = GraphAttention(8, 2, PatternSource(Full()))
    without = GraphAttention(8, 2)
    without.load_state_dict(with_source.state_dict())
    x, window = torch.randn(14, 8), PatternSource(SlidingWindow(1))
    expected, graph = without(x, PTR, source=window, return_graph=True)
    assert graph == window(x, x, PTR)
    torch.testing.assert_close(with_source(x, PTR, source=window), expected)
    torch.testing.assert_close(without(x, PTR, graph=graph), expected)
    with pytest.raises(ValueError, match="'graph'.*given"):
        without(x, PTR)


class OneMask(PatternSource):
    """Says that all sequences have one mask, which is being learned."""

    def __init__(self, mask):
        super().__init__(Full())
        self.mask = mask

    def forward(self, query, key, ptr, *, generator=None):
        return self.mask


def soft_mask(lowest=0., heads=2, size=9):
    layout = FreeLayout(size)
    values = torch.empty(heads, layout.num_values, dtype=torch.double)
    values.uniform_(lowest, 1., generator=torch.Generator().manual_seed(0))
    return PairMask(values.requires_grad_(), layout)


def test_a_soft_mask_of_ones_is_the_graph_of_all_pairs():
    mask = soft_mask(lowest=1.)
    attention = GraphAttention(8, 2, OneMask(mask), dropout=0.5).double().eval()
    x = torch.randn(14, 8, dtype=torch.double, requires_grad=True)
    out, returned = attention(x, PTR, return_graph=True)
    expected = attention(x, PTR, graph=PatternSource(Full()).graph(PTR))
    assert returned is mask
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x, retain_graph=True)[0]
                                 for y in (out, expected)))
    out.sin().sum().backward()
    assert mask.values.grad.any()
    assert not torch.equal(attention.train()(x, PTR), out)  # dropout


def test_a_mask_for_other_heads_is_refused():
    with pytest.raises(ValueError, match="'query' must have shape .14, 3, channels"):
        GraphAttention(8, 2, OneMask(soft_mask(heads=3))).double()(
            torch.randn(14, 8, dtype=torch.double), PTR)


# Several hops ########################################################################


@pytest.mark.parametrize('hops', [1, 3])
@pytest.mark.parametrize('source', [
    lambda: PatternSource(SlidingWindow(1)), lambda: BlockModelSource(2, 4, 8),
    lambda: LearnedMaskSource(2, 8)],
    ids=['pattern', 'block_model', 'learned_mask'])
def test_recomputed_gradients_are_the_same(source, hops):
    torch.manual_seed(0)
    options = dict(hops=hops, teleport=0.2, learn_teleport=hops > 1)
    layer = EncoderLayer(8, 2, source(), dropout=0.3, attention_dropout=0.4, **options).double()
    x = torch.randn(14, 8, dtype=torch.double, requires_grad=True)
    results = []
    for layer.attention.recompute in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            out = layer(x, PTR, generator=(generator := torch.Generator().manual_seed(1)))
            for other in (None, generator):  # the backward pass finds them in another state
                torch.rand(7, generator=other)
            results.append((out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()],
                                                      allow_unused=True, materialize_grads=True)))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize('hops', [1, 5])
def test_recomputing_only_keeps_the_tokens(hops):
    x, ptr = torch.randn(60, 8, requires_grad=True), torch.tensor([0, 60])
    graph = random_graph(60, 60, 0.2)

    def kept(recompute):
        attention = GraphAttention(8, 2, hops=hops, teleport=0.1, backend='numba',
                                   recompute=recompute)
        return saved_bytes(lambda: attention(x, ptr, graph=graph))

    assert kept(recompute=True) == x.nbytes + ptr.nbytes
    assert kept(recompute=False) > (4 + hops) * x.nbytes


def test_a_learned_teleport_begins_where_it_is_told_to():
    x = torch.randn(14, 8)
    fixed = GraphAttention(8, 2, PatternSource(SlidingWindow(1)), hops=3, teleport=0.2)
    learned = GraphAttention(8, 2, PatternSource(SlidingWindow(1)), hops=3, teleport=0.2,
                             learn_teleport=True)
    assert learned.load_state_dict(fixed.state_dict(), strict=False).missing_keys == [
        'teleport_logit']
    torch.testing.assert_close(learned.teleport(), torch.full((2,), 0.2))
    torch.testing.assert_close(learned(x, PTR), fixed(x, PTR))
    with torch.no_grad():
        learned.teleport_logit.add_(1)
    assert not torch.allclose(learned(x, PTR), fixed(x, PTR))
    learned.reset_parameters()
    torch.testing.assert_close(learned.teleport(), torch.full((2,), 0.2))


@pytest.mark.parametrize('norm_first', [True, False])
def test_only_pre_norm_drops_inside_the_feed_forward_network(norm_first):
    layer = EncoderLayer(8, 2, PatternSource(Full()), norm_first=norm_first, dropout=0.5)
    hidden = []
    layer.feed_forward[3].register_forward_pre_hook(lambda _, args: hidden.extend(args))
    out = layer(torch.randn(14, 8), PTR)
    assert bool((hidden[0] == 0).any()) == norm_first
    assert not torch.equal(out, layer.eval()(torch.randn(14, 8), PTR))


def test_a_batch_vector_in_the_place_of_ptr_is_refused_with_the_conversion():
    attention, batch = GraphAttention(8, 2, 'SlidingWindow(2)'), torch.tensor([0] * 4 + [1] * 5)
    with pytest.raises(ValueError, match=r"'ptr' must .*index2ptr\(batch\)"):
        attention(torch.randn(9, 8), batch)
    assert attention(torch.randn(9, 8), index2ptr(batch)).shape == (9, 8)
