"""Contract of the layers with the interface of PyG: hooks, subclasses, and PyG's own tools."""

import copy
import warnings
from collections.abc import Callable
from functools import wraps

import pytest
import torch
import torch_geometric
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import MessagePassing, TransformerConv, to_hetero
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from graphattn import BipartiteGraph
from graphattn.layers import EdgeAttention, GraphGPSConv, GraphTransformerConv, MultiheadAttention
from graphattn.patterns import Full
from graphattn.sources import PatternSource
from tests.graphs import GRAPHS

GRAPH = GRAPHS['square']()
QKV = torch.randn(3, 12, 2, 4, generator=torch.Generator().manual_seed(0))
STEPS = ('propagate', 'edge_update', 'message', 'aggregate', 'message_and_aggregate')


def attend(layer: EdgeAttention, along: BipartiteGraph | Tensor = GRAPH) -> Tensor:
    return layer(*QKV, along)


def compiled(layer: EdgeAttention, along: BipartiteGraph | Tensor = GRAPH) -> Tensor:
    torch._dynamo.reset()  # hooks count if they are registered before, as with PyG's layers
    return torch.compile(lambda: attend(layer, along), backend='eager')()


RUNS = [attend, pytest.param(compiled, marks=pytest.mark.slow)]


def doubled(layer: type[MessagePassing], step: str) -> type[MessagePassing]:
    """Return a subclass with one step that returns twice the value."""
    original = getattr(layer, step)

    @wraps(original)  # PyG reads the names of arguments from the signature
    def twice(*args, **kwargs):
        return 2 * original(*args, **kwargs)

    return type(f'Doubled{step}', (layer,), {step: twice})


# The steps of message passing ########################################################


@pytest.mark.parametrize('run', RUNS)
@pytest.mark.parametrize('along, hops', [(GRAPH, 1), (GRAPH.edge_index.as_tensor(), 3)],
                         ids=['graph', 'edges'])
def test_propagate_runs_once_per_call_or_once_per_hop_with_messages(along, hops, run):
    class Counted(EdgeAttention):
        def propagate(self, edge_index, size=None, **kwargs):
            calls.append(type(edge_index))
            return super().propagate(edge_index, size, **kwargs)

    for expected in ([BipartiteGraph], [Tensor] * hops):
        layer, calls = Counted(hops=hops, teleport=.1 * (hops > 1)), []
        if expected != [BipartiteGraph]:
            layer.register_message_forward_hook(lambda *args: None)
        run(layer, along)
        assert calls == expected


@pytest.mark.parametrize('step', [*STEPS, 'update'])
def test_a_subclass_may_replace_any_step(step):
    expected = 2 * attend(EdgeAttention())
    for along in (GRAPH, GRAPH.edge_index.as_tensor()):
        torch.testing.assert_close(attend(doubled(EdgeAttention, step)(), along), expected)


def test_a_replaced_fused_step_gets_what_pyg_promises():
    class Own(EdgeAttention):
        def message_and_aggregate(self, edge_index, value, graph):
            seen.append(edge_index)
            return value * graph.num_edges

        def update(self, inputs, query):
            return inputs + query

    seen = []
    torch.testing.assert_close(attend(Own()), QKV[2] * GRAPH.num_edges + QKV[0])
    assert seen[0].is_sorted_by_col and torch.equal(seen[0], GRAPH.edge_index)


@pytest.mark.parametrize('step, run', [*((step, attend) for step in STEPS), pytest.param(
    'message', compiled, marks=pytest.mark.slow)])
def test_hooks_fire_once_and_may_replace_an_output(step, run):
    layer, called = EdgeAttention(), []
    expected = attend(layer)
    handles = [getattr(layer, f'register_{step}_forward_pre_hook')(lambda *_: called.append(step)),
               getattr(layer, f'register_{step}_forward_hook')(lambda module, inputs, out: 2 * out)]
    torch.testing.assert_close(run(layer), 2 * expected)
    assert called == [step]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(attend(layer), expected)


def features(layer: MessagePassing) -> Tensor:
    torch.manual_seed(0)
    layer.reset_parameters()
    return layer(QKV[0].flatten(1), GRAPH.edge_index.as_tensor())


@pytest.mark.parametrize('change', [
    *(lambda layer, step=step: doubled(layer, step)(8, 4, 2)
      for step in ('propagate', 'message', 'aggregate', 'update')),
    lambda layer: layer(8, 4, 2, aggr='mean')],
    ids=['propagate', 'message', 'aggregate', 'update', 'aggr'])
def test_a_changed_convolution_is_pygs(change: Callable[[type], MessagePassing]):
    expected = features(change(TransformerConv))
    torch.testing.assert_close(features(change(GraphTransformerConv)), expected)
    assert not torch.allclose(expected, features(TransformerConv(8, 4, 2)))


# PyG's tools #########################################################################


X = QKV[0].flatten(1)
SHUFFLED = GRAPH.edge_index.as_tensor()[:, torch.randperm(
    GRAPH.num_edges, generator=torch.Generator().manual_seed(1))]
BATCH = torch.tensor([0] * 5 + [1] * 7)


class Attend(nn.Module):
    """A convolution around EdgeAttention."""

    def __init__(self, in_channels: int = 8, out_channels: int = 4, heads: int = 2):
        super().__init__()
        self.lin, self.heads = nn.Linear(in_channels, heads * out_channels), heads
        self.attention = EdgeAttention()

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        x = x if isinstance(x, tuple) else (x, x)
        key, query = (self.lin(side).unflatten(1, (self.heads, -1)) for side in x)
        return self.attention(query, key, key, edge_index).flatten(1)


def gps() -> GraphGPSConv:
    return GraphGPSConv(8, GraphTransformerConv(8, 4, 2), heads=2, norm=None)


CONVS: dict[str, Callable[[], nn.Module]] = {
    'GraphTransformerConv': lambda: GraphTransformerConv(8, 4, 2), 'EdgeAttention': Attend,
    'GraphGPSConv': gps}
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {
    'GraphTransformerConv': (CONVS['GraphTransformerConv'], dict(x=X, edge_index=SHUFFLED)),
    'GraphGPSConv': (gps, dict(x=X, edge_index=SHUFFLED, batch=BATCH)),
    'EdgeAttention': (EdgeAttention, dict(zip(('query', 'key', 'value', 'edge_index'),
                                              (*QKV, SHUFFLED)))),
    'MultiheadAttention': (lambda: MultiheadAttention(8, 2, source='SlidingWindow(1)'),
                           dict(query=X, key=X, value=X)),
}


def call(layer: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    out = layer(*inputs.values())
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_layers_are_compiled(name):
    make, inputs = CASES[name]
    torch.manual_seed(0)
    layer = make()
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        run = torch_geometric.compile(layer, backend='eager')
        torch.testing.assert_close(call(run, inputs), call(layer, inputs))


class TwoLayers(nn.Module):
    def __init__(self, make: Callable[[], nn.Module]):
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize('algorithm', [AttentionExplainer, lambda: GNNExplainer(epochs=2)],
                         ids=['attention', 'GNN'])
@pytest.mark.parametrize('name', CONVS)
def test_explainers_weigh_the_edges_of_the_data(name, algorithm):
    model = TwoLayers(CONVS[name])
    expected, alphas = model(X, SHUFFLED), []
    explainer = Explainer(
        model, algorithm(), explanation_type='model', edge_mask_type='object',
        model_config=dict(mode='multiclass_classification', task_level='node', return_type='raw'))
    edge_mask = explainer(X, SHUFFLED).edge_mask
    assert edge_mask.shape == (SHUFFLED.size(1),) and edge_mask.sum() > 0
    torch.testing.assert_close(model(X, SHUFFLED), expected)
    torch.testing.assert_close(copy.deepcopy(model)(X, SHUFFLED), expected)
    if algorithm is AttentionExplainer:
        # Only the convolutions attend along the edges of the data.
        for conv in [conv for conv in model.modules() if isinstance(conv, MessagePassing)]:
            if conv.explain is not False:
                conv.register_message_forward_hook(
                    lambda _, inputs, out: alphas.append(inputs[0].get('alpha', out)))
        model(X, SHUFFLED)
        assert [len(alpha) for alpha in alphas] == [SHUFFLED.size(1)] * 2


def hetero_data() -> HeteroData:
    data = HeteroData()
    data['author'].x, data['paper'].x = X[:7], X[7:]
    data['author', 'writes', 'paper'].edge_index = torch.tensor([[6, 0, 3, 1], [4, 0, 0, 2]])
    data['paper', 'cites', 'paper'].edge_index = torch.tensor([[4, 0, 3, 1], [4, 0, 0, 2]])
    data['paper', 'of', 'author'].edge_index = torch.tensor([[4, 0, 3, 1], [4, 0, 0, 6]])
    return data


@pytest.mark.slow
def test_a_model_becomes_heterogeneous_as_with_pyg():
    data, outs = hetero_data(), []
    for conv in (TransformerConv, GraphTransformerConv):
        torch.manual_seed(0)
        model = to_hetero(TwoLayers(lambda conv=conv: conv(8, 4, 2)), data.metadata())
        outs.append(model(data.x_dict, data.edge_index_dict))
    torch.testing.assert_close(*outs)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.attention = nn.Linear(8, 8), EdgeAttention()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x).view(-1, 2, 4)
        return self.attention(x, x, x, edge_index)


@pytest.mark.slow
def test_attention_along_edges_becomes_heterogeneous():
    data = hetero_data()
    model = to_hetero(Attention(), data.metadata())
    out = model(data.x_dict, data.edge_index_dict)
    x = {kind: model.lin[kind](data[kind].x).view(-1, 2, 4) for kind in data.node_types}
    expected = dict.fromkeys(data.node_types, 0)
    for source, relation, target in data.edge_types:
        edges = data[source, relation, target].edge_index
        expected[target] = expected[target] + EdgeAttention()(x[target], x[source], x[source],
                                                              edges)
    torch.testing.assert_close(out, expected)


needs_sampler = pytest.mark.skipif(not (WITH_PYG_LIB or WITH_TORCH_SPARSE),
                                   reason='neither pyg-lib nor torch-sparse is installed')


@needs_sampler
@pytest.mark.parametrize('name', CONVS)
def test_sampled_neighbours_have_the_values_of_the_whole_graph(name):
    model = TwoLayers(CONVS[name]).eval()
    for conv in model.children():
        if name == 'GraphGPSConv':
            conv.attn.source = PatternSource('SlidingWindow(0)')  # the same in every sample
    expected = model(X, SHUFFLED)
    for batch in NeighborLoader(Data(x=X, edge_index=SHUFFLED), [-1, -1], batch_size=5):
        out = model(batch.x, batch.edge_index)[:batch.batch_size]
        torch.testing.assert_close(out, expected[batch.input_id])
        if name != 'GraphGPSConv':  # a block: the last layer only computes the first nodes
            x = model.first(batch.x, batch.edge_index).relu()
            edge_index = batch.edge_index[:, batch.edge_index[1] < batch.batch_size]
            out = model.second((x, x[:batch.batch_size]), edge_index)
            torch.testing.assert_close(out, expected[batch.input_id])


def test_a_bias_on_pairs_is_pygs_attention_under_a_mask():
    """As in GraphGPS, whose layer adds a bias for each pair of nodes of a graph."""
    layer = gps()
    attention, dense = layer.attn, nn.MultiheadAttention(8, 2, batch_first=True)
    dense.in_proj_weight.data = torch.cat([linear.weight for linear in (
        attention.lin_query, attention.lin_key, attention.lin_value)]).detach()
    dense.in_proj_bias.data = torch.cat([linear.bias for linear in (
        attention.lin_query, attention.lin_key, attention.lin_value)]).detach()
    dense.out_proj.load_state_dict(attention.lin_out.state_dict())
    graph = BipartiteGraph.batch([Full().build(5), Full().build(7)])
    edge_bias = torch.randn(graph.num_edges, 2)
    biases = edge_bias.T.split([25, 49], dim=1)
    expected = [dense(*[x.unsqueeze(0)] * 3, attn_mask=bias.reshape(2, len(x), len(x)))[0][0]
                for x, bias in zip(X.split([5, 7]), biases)]
    h = (X + layer.conv(X, SHUFFLED)) + (X + torch.cat(expected))
    out = layer(X, SHUFFLED, BATCH, graph=graph, edge_bias=edge_bias)
    torch.testing.assert_close(out, h + layer.mlp(h))
    with pytest.raises(ValueError, match="'edge_bias' must be omitted for a layer without"):
        GraphGPSConv(8, layer.conv, attn_type=None)(X, SHUFFLED, BATCH, edge_bias=edge_bias)
