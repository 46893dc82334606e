"""A layer in place of another library's has its arguments, defaults, attributes, repr and weights;
and passes what that library tests its own layer by."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch_geometric.transforms as pyg
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GPSConv, HeteroConv, SAGEConv, Sequential, TransformerConv
from torch_geometric.utils import to_dense_batch

from graphattn.layers import GraphGPSConv, GraphTransformerConv, MultiheadAttention
from graphattn.transforms import LaplacianPE

CHANNELS = 8


class DropIn(NamedTuple):
    ours: Callable
    theirs: Callable
    arguments: tuple
    options: dict[str, object] = {}  # what a trial instance is built with
    methods: tuple[str, ...] = ('__init__', 'forward')
    excepted: dict[str, str] = {}  # parameters and attributes that differ, and why


DROP_INS = {
    'TransformerConv': DropIn(
        GraphTransformerConv, TransformerConv, (CHANNELS, 4, 2), {'edge_dim': 3, 'beta': True},
        ('__init__', 'forward', 'message', 'reset_parameters')),
    'GPSConv': DropIn(
        GraphGPSConv, GPSConv, (CHANNELS, None, 2), {}, ('__init__', 'forward', 'reset_parameters'),
        {'attn_type': "'performer' is PyG's own attention, and approximates no graph",
         'attn': 'attends along a graph; the weights of the other are read by load_state_dict'}),
    'MultiheadAttention': DropIn(
        MultiheadAttention, nn.MultiheadAttention, (CHANNELS, 2), {},
        ('__init__', 'forward', '_reset_parameters', 'merge_masks'),
        {'add_bias_kv': 'graphs have no key without a token',
         'add_zero_attn': 'graphs have no key without a token',
         '_qkv_same_embed_dim': "torch's fast path would skip the graph",
         'repr': 'shows the sizes, which torch leaves out, and the source'}),
    'AddLaplacianEigenvectorPE': DropIn(
        LaplacianPE, pyg.AddLaplacianEigenvectorPE, (3,), {}, ('__init__', 'forward'),
        {'kwargs': 'of the solver of large graphs, which is chosen here',
         'SPARSE_THRESHOLD': 'is MAX_DENSE of the module'}),
}
contract = pytest.mark.parametrize('name', DROP_INS)


def both(name: str) -> tuple[object, object]:
    drop_in = DROP_INS[name]
    return tuple(kind(*drop_in.arguments, **drop_in.options)
                 for kind in (drop_in.ours, drop_in.theirs))


def parameters(function: Callable) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@contract
def test_every_parameter_has_its_name_place_and_default(name):
    drop_in = DROP_INS[name]
    for method in drop_in.methods:
        ours, theirs = (parameters(getattr(kind, method)) for kind in (
            drop_in.ours, drop_in.theirs))
        by_place = [key for key, each in theirs.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert [key for key, each in ours.items()
                if each.kind is each.POSITIONAL_OR_KEYWORD] == by_place
        for key in theirs.keys() - drop_in.excepted.keys():
            assert ours[key].kind is theirs[key].kind, key
            assert ours[key].default == theirs[key].default, key
        added = [ours[key] for key in ours.keys() - theirs.keys()]
        assert all(each.kind is each.KEYWORD_ONLY and each.default is not each.empty
                   for each in added)


@contract
def test_every_attribute_that_is_read_is_there(name):
    ours, theirs = both(name)
    public = set(vars(theirs)) | (set(dict(theirs.named_children()))
                                  if isinstance(theirs, nn.Module) else set())
    for key in public - {'_modules', '_parameters', '_buffers'} - DROP_INS[name].excepted.keys():
        value, expected = getattr(ours, key), getattr(theirs, key)
        if isinstance(expected, bool | int | float | str | tuple | None):
            assert value == expected, key
        else:
            assert isinstance(value, type(expected)) or type(value) is type(expected), key
    assert {key for key in dir(theirs) if not key.startswith('_')} <= {
        *dir(ours), *DROP_INS[name].excepted}


@contract
def test_the_repr_is_that_of_the_original_but_for_the_name(name):
    ours, theirs = (repr(module) for module in both(name))
    ours = ours.replace(DROP_INS[name].ours.__name__, DROP_INS[name].theirs.__name__)
    assert (ours == theirs) == ('repr' not in DROP_INS[name].excepted)


@pytest.mark.parametrize('name', [name for name in DROP_INS
                                  if inspect.isclass(DROP_INS[name].theirs)
                                  and issubclass(DROP_INS[name].theirs, nn.Module)])
def test_weights_of_the_original_are_loaded(name):
    ours, theirs = both(name)
    assert not ours.load_state_dict(theirs.state_dict()).unexpected_keys
    counts = [sum(each.numel() for each in module.parameters()) for module in (ours, theirs)]
    assert counts[0] == counts[1]
    if name != 'GPSConv':
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert not theirs.load_state_dict(ours.state_dict()).unexpected_keys
    nested = nn.ModuleList([copy.deepcopy(theirs)])
    assert nn.ModuleList([ours]).load_state_dict(nested.state_dict()).missing_keys == []


# PyG's tests of TransformerConv ######################################################


X1, X2 = torch.randn(2, 4, CHANNELS, generator=torch.Generator().manual_seed(0))
EDGE_INDEX = torch.tensor([[0, 1, 2, 3, 3], [0, 0, 1, 1, 2]])
def convs(*arguments, **options) -> tuple[TransformerConv, GraphTransformerConv]:
    theirs = TransformerConv(*arguments, **options)
    ours = GraphTransformerConv(*arguments, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval()


def test_transformer_conv_of_lazy_sizes_of_both_kinds():
    for sizes, x in ((-1, X1), ((-1, -1), (X1, X2[:3, :4])), ((CHANNELS, -1), (X1, X2[:3]))):
        conv = GraphTransformerConv(sizes, 16, heads=2)
        assert conv(x, EDGE_INDEX).shape == (len(x[1]) if isinstance(x, tuple) else 4, 32)
        again = TransformerConv(sizes, 16, heads=2)
        again.load_state_dict(conv.state_dict())
        torch.testing.assert_close(conv(x, EDGE_INDEX), again(x, EDGE_INDEX))


@pytest.mark.parametrize('edges', [torch.empty(2, 0, dtype=torch.long), EDGE_INDEX])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64])
def test_transformer_conv_of_other_dtypes_and_of_no_edges(dtype, edges):
    theirs, ours = (conv.to(dtype) for conv in convs(CHANNELS, 16, heads=2))
    out = ours(X1.to(dtype), edges)
    assert out.dtype == dtype
    tolerance = dict(atol=.03, rtol=.03) if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(out, theirs(X1.to(dtype), edges), **tolerance)


def test_transformer_conv_refuses_static_graphs_by_name():
    """PyG's layer joins the nodes of all copies of a static graph, with the edges of the first."""
    with pytest.raises(ValueError, match=r"'x' must have shape \[num_nodes, 8\]"):
        GraphTransformerConv(CHANNELS, 4)(torch.stack([X1, X2]), EDGE_INDEX)


def test_transformer_conv_in_containers_of_pyg():
    model = Sequential('x, edge_index', [
        (GraphTransformerConv(CHANNELS, 4, 2), 'x, edge_index -> x'), nn.ReLU(),
        (GraphTransformerConv(CHANNELS, 4), 'x, edge_index -> x')])
    assert model(X1, EDGE_INDEX).shape == (4, 4)
    data = HeteroData()
    data['a'].x, data['b'].x = X1, X2[:3]
    data['a', 'to', 'b'].edge_index = EDGE_INDEX
    data['b', 'to', 'a'].edge_index = EDGE_INDEX[:, 3:].flip(0)
    data['a', 'of', 'a'].edge_index = EDGE_INDEX
    outs = []
    for kind in (TransformerConv, GraphTransformerConv):
        torch.manual_seed(0)
        conv = HeteroConv({('a', 'to', 'b'): kind((-1, -1), 4, 2), ('b', 'to', 'a'): kind(
            (-1, -1), 4, 2, concat=True), ('a', 'of', 'a'): SAGEConv((-1, -1), 8)})
        conv(data.x_dict, data.edge_index_dict)  # which derives the sizes
        torch.manual_seed(1)
        conv.reset_parameters()
        outs.append(conv(data.x_dict, data.edge_index_dict))
    torch.testing.assert_close(*outs)


# PyG's tests of GPSConv ##############################################################


BATCH = torch.tensor([0, 0, 1, 1])
EDGES_OF_TWO = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
NORMS = [None, 'batch_norm', 'layer_norm', 'graph_norm']


def layers(norm: str | None = 'batch_norm', conv: bool = True, **options):
    made = []
    for kind in (GPSConv, GraphGPSConv):
        made.append(kind(CHANNELS, SAGEConv(CHANNELS, CHANNELS) if conv else None, heads=4,
                         norm=norm, **options))
    made[1].load_state_dict(made[0].state_dict())
    return made


@pytest.mark.parametrize('conv', [True, False])
@pytest.mark.parametrize('norm', NORMS)
def test_gps_conv_with_every_norm_with_and_without_a_batch(norm, conv):
    theirs, ours = layers(norm, conv, attn_kwargs={'bias': False})
    for batch in (BATCH, None):
        torch.testing.assert_close(ours(X1, EDGES_OF_TWO, batch), theirs(X1, EDGES_OF_TWO, batch))
    for module in (theirs.eval(), ours.eval()):
        module.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X1, EDGES_OF_TWO, BATCH), theirs(X1, EDGES_OF_TWO, BATCH))


@pytest.mark.parametrize('options', [dict(act='leaky_relu', act_kwargs={'negative_slope': .3}),
                                     dict(norm='layer_norm', norm_kwargs={'mode': 'node'}),
                                     dict(dropout=.5), dict(attn_kwargs={'dropout': .5})], ids=str)
def test_gps_conv_of_every_option(options):
    theirs, ours = (module.eval() for module in layers(**options))
    torch.testing.assert_close(ours(X1, EDGES_OF_TWO, BATCH), theirs(X1, EDGES_OF_TWO, BATCH))
    out = ours.train()(X1, EDGES_OF_TWO, BATCH)
    is_changed = 'dropout' in str(options)
    assert torch.allclose(out, theirs.train()(X1, EDGES_OF_TWO, BATCH), atol=1e-5) != is_changed


def test_gps_conv_trains_as_the_original():
    theirs, ours = layers()
    grads = []
    for module in (theirs, ours):
        x = X1.clone().requires_grad_()
        module(x, EDGES_OF_TWO, BATCH).sin().sum().backward()
        grads.append([x.grad, module.mlp[0].weight.grad, module.conv.lin_l.weight.grad])
    torch.testing.assert_close(grads[1], grads[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('wanted', [True, False])
def test_gps_conv_returns_the_weights_of_its_attention(wanted):
    theirs, ours = layers(norm=None)
    out, graph, (edge_index, alpha) = ours(X1, EDGES_OF_TWO, BATCH, return_graph=True,
                                           return_attention_weights=wanted)
    torch.testing.assert_close(out, ours(X1, EDGES_OF_TWO, BATCH))
    out, pair = ours(X1, EDGES_OF_TWO, BATCH, return_attention_weights=True)
    torch.testing.assert_close(pair, (edge_index, alpha))
    dense, mask = to_dense_batch(X1, BATCH)
    _, expected = theirs.attn(dense, dense, dense, key_padding_mask=~mask,
                              average_attn_weights=False)
    key, query = edge_index
    torch.testing.assert_close(alpha, expected[BATCH[query], :, query % 2, key % 2])
    assert edge_index.size(1) == graph.num_edges
    with pytest.raises(ValueError, match="'return_attention_weights' must be omitted"):
        GraphGPSConv(CHANNELS, SAGEConv(CHANNELS, CHANNELS), attn_type=None)(
            X1, EDGES_OF_TWO, return_attention_weights=True)


@contract
def test_a_drop_in_is_copied_and_pickled(name):
    ours, _ = both(name)
    assert repr(pickle.loads(pickle.dumps(ours))) == repr(copy.deepcopy(ours)) == repr(ours)


def test_the_encoding_is_added_where_the_original_adds_it():
    data = Data(x=X1, edge_index=torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]))
    for attr_name in ('pe', None):
        theirs, ours = (kind(2, attr_name=attr_name, is_undirected=True)(data)
                        for kind in (pyg.AddLaplacianEigenvectorPE, LaplacianPE))
        assert set(ours.keys()) == set(theirs.keys())
        key = attr_name or 'x'
        assert isinstance(ours[key], Tensor) and ours[key].shape == theirs[key].shape
