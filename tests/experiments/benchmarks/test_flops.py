"""The formulas against what torch counts, where it sees the operations."""

import pytest
import torch

from experiments.baselines import Linear, Linformer, Nystromformer, Performer, Reformer
from experiments.benchmarks import flops
from experiments.benchmarks.layer import bring_to_density
from graphattn.functional import edge_attention
from graphattn.layers import GraphAttention
from graphattn.patterns import Full, get
from graphattn.samplers import FactorModel, sample_bernoulli
from graphattn.sources import BlockModelSource

CHANNELS, HEADS = 24, 3
WIDTH = CHANNELS // HEADS


def count(layer, n: int) -> float:
    """Return torch's count for one head, without the projections."""
    x, ptr = torch.randn(n, CHANNELS), torch.tensor([0, n])
    linears = sum(module.weight.numel() for name, module in layer.named_modules()
                  if name.startswith('lin_'))
    return (flops.counted(lambda: layer(x, ptr)) - 2 * n * linears) / HEADS


@pytest.mark.parametrize('n', [40, 64, 100])
@pytest.mark.parametrize('layer, formula', [
    (Linear(CHANNELS, HEADS), flops.linear),
    (Linear(CHANNELS, HEADS, form='released'),
     lambda n, width: flops.linear(n, width, normalised=False)),
    (Linformer(CHANNELS, HEADS, 100, rank=7), lambda n, width: flops.linformer(n, width, 7)),
    (Performer(CHANNELS, HEADS, features=11), lambda n, width: flops.performer(n, width, 11)),
    (Performer(CHANNELS, HEADS, features=11, kernel='relu'),
     lambda n, width: flops.performer(n, width, 11)),
    (Reformer(CHANNELS, HEADS, rounds=3, chunk=8), lambda n, width: flops.reformer(n, width, 3, 8)),
    (Nystromformer(CHANNELS, HEADS, landmarks=40, kernel_size=5, iterations=2),
     lambda n, width: flops.nystromformer(n, width, 40, 5, 2)),
    (Nystromformer(CHANNELS, HEADS, landmarks=10, kernel_size=None),
     lambda n, width: flops.nystromformer(n, width, 10, None, 6)),
], ids=['linear', 'linear, released', 'linformer', 'performer', 'performer, relu', 'reformer',
        'nystromformer', 'nystromformer without convolution'])
def test_formulas_are_what_torch_counts(layer, formula, n):
    expected = sum(formula(n, WIDTH).values())
    if isinstance(layer, Nystromformer) and layer.conv is not None:
        # torch counts a tap of the convolution where there are no tokens, too
        assert count(layer, n) == pytest.approx(expected, rel=0.02)
    else:
        assert count(layer, n) == expected


def test_full_attention_is_what_torch_counts():
    x = torch.randn(30, HEADS, WIDTH)
    number = flops.counted(lambda: edge_attention(x, x, x, Full().build(30), backend='sdpa'))
    assert number / HEADS == sum(flops.along_edges(30**2, WIDTH).values())


def test_gathered_edges_are_counted_once_each_way():
    """A dense product of as many columns as a query has keys."""
    graph = get('strided', stride=4).build(32)
    x = torch.randn(32, WIDTH)
    edges = graph.edge_index
    number = flops.counted(lambda: (x[edges[1]].unsqueeze(1) @ x[edges[0]].unsqueeze(2),
                                    torch.ones(graph.num_edges, 1, 1)
                                    @ x[edges[0]].unsqueeze(1)))
    assert number == sum(flops.along_edges(graph.num_edges, WIDTH).values())


def test_hops_repeat_the_sums():
    one, five = flops.along_edges(100, WIDTH), flops.along_edges(100, WIDTH, hops=5)
    assert five == {'logits': one['logits'], 'sums': 5 * one['sums']}


def made(density: float) -> tuple[BlockModelSource, torch.Tensor]:
    torch.manual_seed(0)
    source = BlockModelSource(HEADS, WIDTH, 6, exploration=0.).eval()
    bring_to_density(source, density)
    return source, torch.randn(200, HEADS, WIDTH)


def test_memberships_and_mixing_are_what_torch_counts():
    source, x = made(0.5)
    number = flops.counted(lambda: source.block_model(x, x, torch.tensor([0, 200])))
    steps = flops.block_model(200, WIDTH, 6, {}, 0)
    assert number / HEADS == steps['memberships'] + steps['mixing']


def test_sampling_takes_all_pairs_or_those_drawn():
    ptr = torch.tensor([0, 50, 200])
    dense, sparse = ((lambda source, x: source.block_model(x, x, ptr))(*made(density))
                     for density in (0.5, 0.002))
    pairs = HEADS * (50**2 + 150**2)
    assert flops.sampler(dense)['probability of pairs'] == 2 * pairs * 6
    assert 'probability of pairs' not in flops.sampler(sparse)
    assert flops.sampler(sparse)['probability of draws'] == pytest.approx(
        2 * 0.002 * pairs * 6, rel=0.05)


def test_all_probabilities_are_what_torch_counts():
    """torch's own sampler multiplies the same matrices."""
    torch.manual_seed(0)
    model = FactorModel(torch.rand(64, 5), torch.rand(5, 5) / 25, torch.rand(64, 5))
    number = flops.counted(lambda: sample_bernoulli(model, method='torch'))
    assert number == sum(flops.sampler(model).values())


def test_training_adds_the_probability_of_edges():
    steps = flops.block_model(200, WIDTH, 6, {}, 900)
    trains = flops.block_model(200, WIDTH, 6, {}, 900, trains=True)
    assert trains == {**steps, 'probability of edges': 2 * 900 * 6}


def test_a_layer_of_graph_attention_adds_its_projections():
    layer = GraphAttention(CHANNELS, HEADS)
    graph = Full().build(30)
    x, ptr = torch.randn(30, CHANNELS), torch.tensor([0, 30])
    number = flops.counted(lambda: layer(x, ptr, graph=graph))
    assert number == HEADS * sum(flops.along_edges(900, WIDTH).values()) + 8 * 30 * CHANNELS**2
