"""GraphTransformerConv is PyG's TransformerConv, whatever it is built with and given."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch_geometric import EdgeIndex
from torch_geometric.explain import (
    AttentionExplainer,
    CaptumExplainer,
    Explainer,
    GNNExplainer,
    PGExplainer,
)
from torch_geometric.nn import TransformerConv

from graphattn import BipartiteGraph
from graphattn.graphs.cache import GRAPHS
from graphattn.layers import GraphTransformerConv
from graphattn.patterns import SlidingWindow
from tests.ops.numbers import saved_tensors
from tests.ops.test_backends import BACKENDS, skip_if_missing
from tests.pairwise import pairwise

NUM_KEYS, NUM_QUERIES, NUM_EDGES, EDGE_DIM = 12, 9, 40, 3
OPTIONS = [dict(zip(('concat', 'beta', 'edge_dim', 'bias', 'root_weight'), values))
           for values in pairwise((True, False), (True, False), (None, EDGE_DIM), (True, False),
                                  (True, False))]


def drawn(seed: int = 0, square: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes that are keys, nodes that are queries, edges in no order, and their features."""
    generator = torch.Generator().manual_seed(seed)
    num_keys = NUM_QUERIES if square else NUM_KEYS
    pair = torch.randperm(num_keys * NUM_QUERIES, generator=generator)[:NUM_EDGES]
    edge_index = torch.stack([pair % num_keys, pair // num_keys])
    return (torch.randn(num_keys, 5, generator=generator),
            torch.randn(NUM_QUERIES, 7, generator=generator), edge_index,
            torch.randn(NUM_EDGES, EDGE_DIM, generator=generator))


def twins(*arguments, backend: str = 'auto', **options) -> tuple[nn.Module, nn.Module]:
    theirs = TransformerConv(*arguments, **options)
    ours = GraphTransformerConv(*arguments, **options, backend=backend)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def assert_same(theirs: nn.Module, ours: nn.Module, x, edges, edge_attr=None, edges_of_ours=None):
    """Outputs, and gradients of parameters, nodes and features of edges."""
    results = []
    for conv, own in ((theirs, edges), (ours, edges if edges_of_ours is None else edges_of_ours)):
        leaves = [tensor.detach().requires_grad_() for tensor in (*x, edge_attr)
                  if tensor is not None]
        attr = None if edge_attr is None else leaves[-1]
        out = conv(tuple(leaves[:2]), own, attr)
        grads = torch.autograd.grad(out.sin().sum(), [*conv.parameters(), *leaves],
                                    allow_unused=True)
        results.append([out, *(grad for grad in grads if grad is not None)])
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_equals_pyg_for_every_argument(options):
    *x, edge_index, edge_attr = drawn()
    assert_same(*twins((5, 7), 4, 3, **options), x, edge_index,
                edge_attr if options['edge_dim'] else None)


@pytest.mark.parametrize('edge_dim', [None, EDGE_DIM])
@pytest.mark.parametrize('backend', BACKENDS)
def test_equals_pyg_by_every_backend(backend, edge_dim):
    *x, edge_index, edge_attr = drawn()
    convs = twins((5, 7), 4, 2, edge_dim=edge_dim, backend=skip_if_missing(backend))
    assert_same(*convs, x, edge_index, edge_attr if edge_dim else None)


def sparse_tensor(edge_index: Tensor, edge_attr: Tensor | None):
    torch_sparse = pytest.importorskip('torch_sparse', reason='the format needs torch-sparse')
    return torch_sparse.SparseTensor(row=edge_index[1], col=edge_index[0], value=edge_attr,
                                     sparse_sizes=(NUM_QUERIES, NUM_KEYS))


def coo_tensor(edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    """Not coalesced, and in no order."""
    values = torch.ones(NUM_EDGES) if edge_attr is None else edge_attr
    return torch.sparse_coo_tensor(edge_index.flip(0), values,
                                   (NUM_QUERIES, NUM_KEYS, *values.shape[1:]))


def csr_tensor(edge_index: Tensor, _) -> Tensor:
    return coo_tensor(edge_index, None).to_sparse_csr()


FORMATS = {
    'edge_index': lambda edge_index, _: edge_index,
    'EdgeIndex': lambda edge_index, _: EdgeIndex(edge_index, sparse_size=(NUM_KEYS, NUM_QUERIES)),
    'sorted EdgeIndex': lambda edge_index, _: EdgeIndex(
        edge_index, sparse_size=(NUM_KEYS, NUM_QUERIES)).sort_by('col').values,
    'SparseTensor': sparse_tensor,
    'coo': coo_tensor,
    'csr': csr_tensor,
    'graph': lambda edge_index, _: BipartiteGraph.from_edge_index(edge_index, NUM_QUERIES,
                                                                  NUM_KEYS),
}


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support:UserWarning')
@pytest.mark.parametrize('wanted', [None, True])
@pytest.mark.parametrize('name', FORMATS)
def test_equals_pyg_for_every_format(name, wanted):
    *x, edge_index, _ = drawn()
    theirs, ours = twins((5, 7), 4, 2)
    edges = FORMATS[name](edge_index, None)
    plain = edges.edge_index.as_tensor() if name == 'graph' else edges
    plain = edge_index if name == 'coo' else plain  # which PyG wants coalesced
    expected, actual = theirs(tuple(x), plain, None, wanted), ours(tuple(x), edges, None, wanted)
    if wanted:
        (expected, expected_alpha), (actual, alpha) = expected, actual
        if name == 'SparseTensor':
            expected_alpha, alpha = (adj.coo()[2] for adj in (expected_alpha, alpha))
        else:
            expected_alpha, alpha = expected_alpha[1], alpha[1]
        torch.testing.assert_close(alpha, expected_alpha)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


def test_features_of_a_sparse_tensor_are_those_of_its_edges():
    *x, edge_index, edge_attr = drawn()
    theirs, ours = twins((5, 7), 4, 2, edge_dim=EDGE_DIM)
    adj_t = sparse_tensor(edge_index, edge_attr)
    torch.testing.assert_close(ours(tuple(x), adj_t), theirs(tuple(x), adj_t))


def test_features_of_a_coalesced_adjacency_have_their_gradient():
    *x, edge_index, edge_attr = drawn()
    conv = GraphTransformerConv((5, 7), 4, 2, edge_dim=EDGE_DIM)
    attr = edge_attr.requires_grad_()
    expected, = torch.autograd.grad(conv(tuple(x), edge_index, attr).sin().sum(), attr)
    adj_t = coo_tensor(edge_index, attr)
    grad, = torch.autograd.grad(conv(tuple(x), adj_t.coalesce()).sin().sum(), attr)
    torch.testing.assert_close(grad, expected)
    with torch.no_grad():
        torch.testing.assert_close(conv(tuple(x), adj_t), conv(tuple(x), edge_index, attr))
    with pytest.raises(ValueError, match="'edge_index' must be coalesced if its values"):
        conv(tuple(x), adj_t)


@pytest.mark.parametrize('options', [dict(aggr='mean'), dict(flow='target_to_source')])
def test_other_aggregations_equal_pyg(options):
    *_, edge_index, _ = drawn(square=True)
    theirs, ours = twins(6, 4, 2, **options)
    x = torch.randn(NUM_QUERIES, 6)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))


def test_repeated_edges_count_repeatedly_with_a_warning():
    *x, edge_index, edge_attr = drawn()
    edge_index[:, 1] = edge_index[:, 0]
    theirs, ours = twins((5, 7), 4, 2, edge_dim=EDGE_DIM)
    with pytest.warns(UserWarning, match='slower.*40 edges, 39 of them different') as warned:
        out = ours(tuple(x), edge_index, edge_attr)
    assert warned[0].filename == __file__
    torch.testing.assert_close(out, theirs(tuple(x), edge_index, edge_attr))
    with pytest.raises(ValueError, match="'edge_attr' must have 40 rows, .*got 3 rows"):
        ours(tuple(x), edge_index, edge_attr[:3])


@pytest.mark.filterwarnings('ignore')
def test_repeated_edges_of_a_sparse_tensor_have_features_in_their_order():
    nodes, _, edge_index, edge_attr = drawn(square=True)
    edge_index[:, 1] = edge_index[:, 0]
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(NUM_EDGES),
                                        (NUM_QUERIES, NUM_QUERIES))
    theirs, ours = twins(5, 4, 2, edge_dim=EDGE_DIM)
    torch.testing.assert_close(ours(nodes, adjacency, edge_attr),
                               theirs(nodes, edge_index, edge_attr))


# Sorted once #########################################################################


@pytest.fixture
def sorts(monkeypatch) -> list:
    """A call for each time that edges are sorted."""
    calls, sort = [], BipartiteGraph.from_edge_index.__func__
    monkeypatch.setattr(BipartiteGraph, 'from_edge_index', classmethod(
        lambda *args, **kwargs: calls.append(1) or sort(*args, **kwargs)))
    return calls


@pytest.mark.parametrize('name', [name for name in FORMATS if name != 'graph'])
@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support:UserWarning')
def test_edges_are_sorted_once_for_all_layers_and_steps(name, sorts):
    *x, edge_index, _ = drawn()
    edges = FORMATS[name](edge_index, None)
    for _ in range(2):
        for conv in (GraphTransformerConv((5, 7), 4), GraphTransformerConv((5, 7), 4, 2)):
            conv(tuple(x), edges)
    assert len(sorts) == 1


def test_edges_that_changed_are_sorted_again(sorts):
    *x, edge_index, _ = drawn()
    theirs, ours = twins((5, 7), 4)
    for _ in range(2):
        torch.testing.assert_close(ours(tuple(x), edge_index), theirs(tuple(x), edge_index))
        edge_index.copy_(drawn(seed=1)[2])
    assert len(sorts) == 2
    with torch.inference_mode():
        own = edge_index.clone()  # whose changes cannot be seen
        for _ in range(2):
            ours(tuple(x), own)
    assert len(sorts) == 4


@pytest.mark.slow
def test_sorted_edges_are_freed_with_the_edges():
    *x, edge_index, _ = drawn()
    conv = GraphTransformerConv((5, 7), 4)
    GRAPHS.clear()
    conv(tuple(x), edge_index)
    assert len(GRAPHS) == 1
    del edge_index
    conv(tuple(x), drawn(seed=2)[2])
    assert len(GRAPHS) == 1


# Explainers ##########################################################################


class TwoLayers(nn.Module):
    def __init__(self, conv: type[nn.Module]):
        super().__init__()
        self.first, self.second = conv(7, 4, 2), conv(8, 3, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def explained(model: nn.Module, make: Callable, x: Tensor, edge_index: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        algorithm = make()
        is_trained = isinstance(algorithm, PGExplainer)
        explainer = Explainer(
            model, algorithm, explanation_type='phenomenon' if is_trained else 'model',
            edge_mask_type='object', model_config=dict(
                mode='multiclass_classification', task_level='node', return_type='raw'))
        target = torch.zeros(len(x), dtype=torch.long) if is_trained else None
        if is_trained:
            algorithm.train(0, model, x, edge_index, target=target, index=2)
        return explainer(x, edge_index, target=target, index=2).edge_mask


needs_captum = pytest.mark.skipif(find_spec('captum') is None, reason='captum is missing')


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', [
    AttentionExplainer, lambda: GNNExplainer(epochs=3), lambda: PGExplainer(epochs=1),
    pytest.param(lambda: CaptumExplainer('IntegratedGradients'), marks=needs_captum)])
def test_explainers_return_the_same_as_with_pyg(algorithm):
    *_, edge_index, _ = drawn(square=True)
    x = torch.randn(NUM_QUERIES, 7)
    theirs, ours = (TwoLayers(conv) for conv in (TransformerConv, GraphTransformerConv))
    ours.load_state_dict(theirs.state_dict())
    ours(x, edge_index)  # and once as a kernel
    expected = explained(theirs, algorithm, x, edge_index)
    assert expected.abs().sum() > 0
    torch.testing.assert_close(explained(ours, algorithm, x, edge_index), expected, atol=1e-5,
                               rtol=1e-4)


def test_a_hook_sees_the_messages_of_pyg():
    *x, edge_index, _ = drawn()
    conv, seen = GraphTransformerConv((5, 7), 4, 2), []
    out = conv(tuple(x), edge_index)
    hook = conv.register_message_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    torch.testing.assert_close(conv(tuple(x), edge_index), out)
    assert seen == [(NUM_EDGES, 2, 4)]
    graph = BipartiteGraph.from_edge_index(edge_index, NUM_QUERIES, NUM_KEYS)
    with pytest.raises(ValueError, match="'edge_index' must have its edges in the order"):
        conv(tuple(x), graph)
    hook.remove()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        torch.testing.assert_close(conv(tuple(x), graph), out)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize('change', [
    lambda conv: prune.l1_unstructured(conv.lin_edge, 'weight', amount=0.5),
    lambda conv: parametrize.register_parametrization(conv.lin_edge, 'weight', Doubled()),
    lambda conv: conv.lin_edge.register_forward_hook(lambda module, inputs, out: 2 * out),
    lambda conv: setattr(conv, 'lin_edge', nn.Linear(EDGE_DIM, 8))],
    ids=['pruned', 'parametrized', 'hooked', 'replaced'])
def test_a_replaced_projection_of_features_is_used(change):
    *x, edge_index, edge_attr = drawn()
    theirs, ours = twins((5, 7), 4, 2, edge_dim=EDGE_DIM)
    for conv in (theirs, ours):
        torch.manual_seed(0)
        change(conv)
        with torch.no_grad():  # a step of training
            for parameter in conv.parameters():
                parameter.mul_(2)
    assert_same(theirs, ours, x, edge_index, edge_attr)


# Memory and bad input ################################################################


def test_nothing_of_edges_times_channels_is_kept_for_the_backward_pass():
    *x, edge_index, edge_attr = drawn()
    conv = GraphTransformerConv((5, 7), 64, 2, edge_dim=EDGE_DIM)
    saved = saved_tensors(lambda: conv(tuple(x), edge_index, edge_attr))
    assert max(tensor.numel() for tensor in saved) < NUM_EDGES * 2 * 64


@pytest.mark.parametrize('edge_dim, edge_attr, match', [
    (None, torch.randn(NUM_EDGES, 3), "'edge_attr' must.*edge_dim=None.*edge_dim=3"),
    (3, None, "'edge_attr' must.*given.*layer.*edge_dim=3"),
    (3, torch.randn(NUM_EDGES, 4), "'edge_attr' must.*edge_dim=3 .got shape .40, 4"),
    (3, torch.randn(NUM_EDGES + 1, 3), "'edge_attr' must.*40.*got 41 rows"),
])
def test_features_of_the_wrong_size_are_refused(edge_dim, edge_attr, match):
    *x, edge_index, _ = drawn()
    with pytest.raises(ValueError, match=match):
        GraphTransformerConv((5, 7), 4, edge_dim=edge_dim)(tuple(x), edge_index, edge_attr)


def test_nodes_out_of_range_and_other_kinds_are_refused():
    *x, edge_index, _ = drawn()
    conv = GraphTransformerConv((5, 7), 4)
    with pytest.raises(ValueError, match=r"'edge_index\[0\]' must contain .* from 0 to 11"):
        conv(tuple(x), edge_index + 5)
    with pytest.raises(TypeError, match="'edge_index' must be a Tensor, a SparseTensor or a"):
        conv(tuple(x), 'edges')
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(NUM_EDGES),
                                        (NUM_QUERIES, NUM_KEYS + 1))
    for edges in (SlidingWindow(2).build(NUM_KEYS), adjacency.to_sparse_csr()):
        with pytest.raises(ValueError, match="'edge_index' must have 9 queries and 12 keys"):
            conv(tuple(x), edges)


@pytest.mark.parametrize('options, wanted', [
    ({}, None), ({}, False), ({'aggr': 'mean'}, None), ({'flow': 'target_to_source'}, None)])
def test_edges_in_32_bits_are_refused(options, wanted):
    """PyG computes wrong gradients along them, without an error."""
    *_, edge_index, _ = drawn()
    conv = GraphTransformerConv(5, 4, **options)
    for edges in (edge_index.int(), EdgeIndex(edge_index.int())):
        with pytest.raises(TypeError, match="'edge_index' must be an int64 Tensor .*32"):
            conv(torch.randn(NUM_KEYS, 5), edges, return_attention_weights=wanted)
