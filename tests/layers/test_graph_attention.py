"""GraphAttention and EncoderLayer against plain transformers, and the folding of heads."""

import pytest
import torch
from torch import nn

from graphattn.layers import EncoderLayer, GraphAttention, fold_heads, unfold_heads
from graphattn.patterns import Full, SlidingWindow
from graphattn.sources import BlockModelSource, PatternSource
from tests.graphs import random_graph

PTR = torch.tensor([0, 5, 6, 14])


def test_folding_puts_one_head_after_the_other():
    x = torch.arange(24.).view(4, 3, 2)
    folded = fold_heads(x)
    assert folded.shape == (12, 1, 2)
    assert torch.equal(folded[4:8, 0], x[:, 1])
    assert torch.equal(unfold_heads(folded, 3), x)


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


def test_a_head_with_a_graph_of_its_own_ignores_the_others():
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


@pytest.mark.parametrize('source', [PatternSource(SlidingWindow(1)),
                                    BlockModelSource(2, 4, 8)], ids=['pattern', 'block_model'])
@pytest.mark.parametrize('norm_first', [True, False])
def test_encoder_layer_trains_every_parameter(source, norm_first):
    layer = EncoderLayer(8, 2, source, norm_first=norm_first)
    out, graph = layer(torch.randn(14, 8), PTR, return_graph=True)
    assert out.shape == (14, 8) and graph.num_blocks in (3, 6)
    out.sin().sum().backward()
    silent = [name for name, parameter in layer.named_parameters()
              if parameter.grad is None or not parameter.grad.abs().sum() > 0]
    # The softmax does not see a constant added to all keys.
    assert set(silent) <= {'attention.lin_key.bias'}


def test_norms_stand_where_they_are_said_to():
    x = torch.randn(14, 8)
    post = EncoderLayer(8, 2, PatternSource(Full()), norm_first=False)(x, PTR)
    torch.testing.assert_close(post.mean(dim=1), torch.zeros(14), atol=1e-5, rtol=0)
    pre = EncoderLayer(8, 2, PatternSource(Full()))
    for linear in (pre.attention.lin_out, pre.feed_forward[3]):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    torch.testing.assert_close(pre(x, PTR), x)


def test_channels_must_divide_into_heads():
    with pytest.raises(ValueError, match="'channels' must be a multiple of 'heads'"):
        GraphAttention(10, 4, PatternSource(Full()))
    assert GraphAttention(10, 4, PatternSource(Full()), head_channels=3)(
        torch.randn(14, 10), PTR).shape == (14, 10)


def test_source_of_another_size_is_refused():
    attention = GraphAttention(8, 2, BlockModelSource(heads=4, head_channels=2))
    with pytest.raises(ValueError, match="'query' must have the source's 4 heads of 2 channels"):
        attention(torch.randn(14, 8), PTR)


def test_same_generator_state_gives_the_same_output():
    attention = GraphAttention(8, 2, BlockModelSource(2, 4, 8))
    x = torch.randn(14, 8)
    first, again, other = (attention(x, PTR, generator=torch.Generator().manual_seed(seed))
                           for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
