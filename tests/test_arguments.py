"""Wrong arguments of everything public: a TypeError or a ValueError that names the parameter.
Parameters are read from signatures, so that what is exported is covered."""

import importlib
import inspect
import math
import re
from types import SimpleNamespace

import networkx as nx
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import graphattn
from graphattn import BipartiteGraph
from graphattn._explained import parameters_of
from graphattn.distributed import sequence_parallel
from graphattn.graphs.pair_layout import FreeLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import GraphAttention, GraphTransformerConv
from graphattn.models import Encoder, MaskedLanguageModel
from graphattn.patterns import Full, Mask, save_masks
from graphattn.patterns.presets import PRESETS
from graphattn.samplers import FactorModel
from graphattn.sources import ClusterKeys, GraphSource, PatternSource
from graphattn.sources.mask_graph import MaskGraph

PACKAGES = ['graphattn', *(f'graphattn.{name}' for name in (
    'functional', 'layers', 'models', 'patterns', 'samplers', 'sources'))]
# Public too, though no page lists them.
OTHERS = {'PairMask': PairMask, 'MaskGraph': MaskGraph, 'sequence_parallel': sequence_parallel,
          **{layout.__name__: layout for layout in graphattn.graphs.pair_layout.LAYOUTS.values()}}
# For those who write patterns, sources or hooks, who are given what was checked.
GIVEN_CHECKED = {'edges', 'rows', 'key_ranges', 'contains', 'from_pairs', 'collect', 'edge_collect',
                 'edge_update', 'edge_updater', 'message', 'message_and_aggregate', 'propagate',
                 'value_of', 'norm', 'logit_terms', 'check_probability', 'shard_graph',
                 'span_graph', 'causal', 'arguments', 'traced_graph'}


# What is meant ########################################################################

PTR = torch.tensor([0, 2, 5])
EDGES = torch.tensor([[0, 1, 0, 1, 2, 3, 4], [0, 0, 1, 1, 2, 3, 4]])
NUM_EDGES = EDGES.size(1)
MASK = torch.eye(5, dtype=torch.bool)
SIZES = dict(num_tokens=20, max_length=5, channels=8, heads=2, num_layers=1)


def graph() -> BipartiteGraph:
    return BipartiteGraph(EDGES, 5, query_ptr=PTR, edge_prob=torch.full((NUM_EDGES,), .5))


def encoder() -> Encoder:
    return Encoder(PatternSource(Full()), **SIZES)


def factor_model() -> FactorModel:
    return FactorModel(torch.rand(5, 3), torch.rand(3, 3) / 9, torch.rand(5, 3), query_ptr=PTR)


POINTS = torch.rand(5, 3)
# By the name of the parameter, or of the function and the parameter.
MEANT = {
    # graphs
    'edge_index': EDGES, 'num_queries': 5, 'num_keys': 5, 'indptr': torch.tensor([0, 1, 2]),
    'from_csr.key': torch.tensor([0, 1]), 'from_csr.num_keys': 2,
    'from_csr.query_ptr': torch.tensor([0, 1, 2]), 'from_csr.key_ptr': torch.tensor([0, 1, 2]),
    'from_csr.edge_prob': torch.rand(2),
    'query_ptr': PTR, 'key_ptr': PTR, 'edge_prob': torch.rand(NUM_EDGES), 'from_mask.mask': MASK,
    'matrix': sp.csr_array(MASK.numpy()), 'from_networkx.graph': nx.path_graph(3),
    'data': BipartiteGraph(EDGES, 5).to_data(bipartite=True), 'edge_type': ('key', 'to', 'query'),
    'graphs': [graph()], 'other': BipartiteGraph(EDGES, 5), 'device': 'cpu',
    'edge_weight': torch.rand(NUM_EDGES), 'known': torch.rand(NUM_EDGES),
    'indices': torch.tensor([[0, 1], [2, 2], [3, -1], [4, 0], [1, 2]]),
    'from_nearest.query': POINTS, 'from_nearest.key': POINTS, 'k': 2,
    'from_radius.radius': .5, 'from_radius.query': POINTS, 'from_radius.key': POINTS,
    'keep': torch.rand(NUM_EDGES) < .5, 'MaskGraph.select_edges.keep': torch.rand(26) < .5,
    'query_order': torch.tensor([1, 0, 4, 2, 3]), 'key_order': torch.tensor([0, 1, 3, 2, 4]),
    # attention
    'query': torch.randn(5, 2, 4), 'key': torch.randn(5, 2, 4), 'value': torch.randn(5, 2, 4),
    'ptr': PTR, 'graph': graph(), 'alpha': torch.rand(NUM_EDGES, 2), 'hops': 2, 'teleport': .1,
    'EdgeAttention.forward.teleport': torch.rand(2),
    'edge_bias': torch.rand(NUM_EDGES), 'edge_gate': torch.rand(NUM_EDGES), 'time': 1.,
    'softcap': 50., 'sink': torch.rand(2),
    'mask': PairMask(torch.rand(2, 25), FreeLayout(5)), 'backend': 'auto',
    # layers and models
    **SIZES, 'head_channels': 4, 'hidden_channels': 8, 'source': PatternSource(Full()),
    'x': torch.randn(5, 8), 'fold_heads.x': torch.randn(5, 2, 4),
    'unfold_heads.x': torch.randn(10, 1, 4), 'tokens': torch.arange(5),
    'num_embeddings': 5, 'position': torch.arange(5), 'rotation': torch.rand(5, 2, 2),
    'segments': torch.zeros(5, dtype=torch.long), 'selected': torch.tensor([0, 3]),
    'logits': torch.randn(5, 2), 'can_answer': torch.ones(5, dtype=torch.bool),
    'attention': GraphAttention(8, 2), 'encoder': encoder(), 'num_classes': 3,
    'CausalLanguageModel.encoder': Encoder(PatternSource(Full()), causal=True, **SIZES),
    'GlobalTokens.tokens': 2, 'module': GraphAttention(8, 2),
    'state_dict': {}, 'config': {},
    'edge_attr': torch.randn(NUM_EDGES, 3), 'projection': torch.randn(2, 4, 3),
    'memory': torch.randn(5, 8), 'memory_ptr': PTR, 'in_channels': 8, 'out_channels': 4,
    'conv': GraphTransformerConv(8, 4, 2), 'batch': torch.tensor([0, 0, 1, 1, 1]),
    'encoder_of.config': {'vocab_size': 20, 'hidden_size': 8, 'num_attention_heads': 2,
                          'num_hidden_layers': 1, 'intermediate_size': 8},
    **{f'{name}.model': MaskedLanguageModel(Encoder(Full(), **SIZES, num_segments=2,
                                                    norm_first=False), activation='gelu')
       for name in ('load_bert', 'load_roberta', 'to_hugging_face')},
    'from_torch.module': nn.MultiheadAttention(8, 2), 'embed_dim': 8, 'num_heads': 2, 'kdim': 8,
    'vdim': 8, 'dtype': torch.float, 'MultiheadAttention.forward.query': torch.randn(5, 8),
    'MultiheadAttention.forward.key': torch.randn(5, 8),
    'MultiheadAttention.forward.value': torch.randn(5, 8), 'attn_mask': ~MASK,
    'key_padding_mask': torch.zeros(5, dtype=torch.bool),
    # patterns, samplers, sources
    'register.name': 'mine', 'build': Full,
    'StructureSource.source': PatternSource(Full()), 'edges': EDGES, 'sequence': 0,
    'ContentClusterSource.pattern': ['2 keys of 3 clusters', 'Full'],
    'keys': 2, 'clusters': 3, 'beside': Full(), 'HeadClusters.name': ClusterKeys(2, 3),
    'HeadClusters.query': torch.rand(3, 4), 'HeadClusters.key': torch.rand(3, 4),
    'HeadClusters.is_edge': torch.rand(3, 3) < .5, 'first': torch.tensor([0, 1]),
    'pattern': Full(), 'left': Full(), 'right': Full(), 'layout': FreeLayout(5), 'size': 5,
    'EdgeList.tokens': 5, 'pairs': EDGES, 'offsets': (-1, 0, 2),
    'values': '1' * 25, 'PairMask.values': torch.rand(2, 25),
    'MaskGraph.reorder.query_order': torch.arange(10),
    'MaskGraph.reorder.key_order': torch.arange(10),
    'MaskGraph.values': torch.ones(2, 25), 'MaskGraph.with_edge_prob.edge_prob': torch.rand(26),
    'MaskGraph.isin.other': MaskGraph(torch.ones(2, 25), FreeLayout(5), PTR), 'length': 5,
    'block': 2, 'count': 1, 'width': 2, 'degree': 1, 'radius': 1, 'stride': 2, 'name': 'star',
    'window': 2, 'inner': (2,), 'features': 8, 'FeatureEncoder.forward.x': torch.randn(5, 8),
    'GraphTransformer.forward.data': Data(x=torch.randn(5, 8), edge_index=EDGES),
    'GraphTransformer.channels': 8,
    'masks': [Mask(FreeLayout(1), '1')], 'expression': 'star', 'sparsity': .5, 'seed': 0,
    'probability': torch.rand(2, 3, 3), 'model': factor_model(),
    'query_factor': torch.rand(5, 3), 'mixing': torch.rand(3, 3), 'key_factor': torch.rand(5, 3),
}


def public() -> dict[str, SimpleNamespace]:
    """All that is called: functions, classes, and methods of classes, by their names."""
    found = dict(OTHERS)
    for package in map(importlib.import_module, PACKAGES):
        found |= {name: getattr(package, name) for name in package.__all__}
    del found['attach']  # tests/test_hugging_face.py has models to attach
    called = {}
    for name, thing in found.items():
        called[name] = thing
        if inspect.isclass(thing):
            methods = inspect.getmembers(thing, lambda m: inspect.isroutine(m) and str(getattr(
                m, '__module__', None)).startswith('graphattn'))
            called |= {f'{name}.{method}': value for method, value in methods
                       if not method.startswith('_') and method not in GIVEN_CHECKED}
    return {name: call for name, call in called.items() if not inspect.isabstract(call)
            and call is not GraphSource and not name.startswith(('Pattern.', 'GraphSource.'))}


PUBLIC = public()


def parameters(name: str) -> dict[str, inspect.Parameter]:
    called = PUBLIC[name]
    found = (parameters_of(called) if getattr(called, '_options_of', ())
             else inspect.signature(called).parameters)
    return {key: parameter for key, parameter in found.items()
            if key != 'self' and parameter.kind is not parameter.VAR_KEYWORD}


def meant(name: str, parameter: str):
    for key in (f'{name}.{parameter}', f'{name.split(".")[-1]}.{parameter}', parameter):
        if key in MEANT:
            return MEANT[key]
    raise KeyError(f'say in MEANT what {name} is called with as {parameter!r}')


def required(name: str) -> dict:
    return {key: meant(name, key) for key, parameter in parameters(name).items()
            if parameter.default is parameter.empty or key in ('source', 'edges')}


def call(name: str, **arguments):
    owner, _, method = name.rpartition('.')
    function = PUBLIC[name]
    if owner and not inspect.ismethod(function):  # no class method
        function = getattr(PUBLIC[owner](**required(owner)), method)
    return function(**{**required(name), **arguments})


@pytest.fixture(autouse=True)
def masks_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setitem(MEANT, 'path', tmp_path / 'masks.npz')
    monkeypatch.setitem(MEANT, 'folder', tmp_path / 'folder')
    monkeypatch.setitem(PRESETS, 'mine', Full)  # which is let go at the end
    del PRESETS['mine']
    save_masks(MEANT['path'], MEANT['masks'])


# What is not #########################################################################

# Nothing, or no step, is a size there is.
MAY_BE_ZERO = {'num_queries', 'num_keys', 'num_segments', 'num_tokens', 'padding_token', 'hops',
               'radius', 'count', 'tokens', 'first', 'summary', 'degree', 'length', 'offset',
               'sequence', 'head', 'shift', 'virtual_nodes'}
MAY_BE_HUGE = {'num_queries', 'num_keys', 'size', 'radius', 'count', 'tokens', 'first', 'block',
               'summary', 'degree', 'dilation', 'width', 'stride', 'length',
               'window'}
MINUS_1_IS_UNKNOWN = {'in_channels'}
MAY_BE_NEGATIVE = {'scale'}
# Values that are only moved about, and what broadcasts.
ANY_DTYPE = {'BipartiteGraph.to_scipy.edge_weight', 'BipartiteGraph.to_sparse_tensor.edge_weight',
             'fold_heads.x', 'unfold_heads.x'}
ANY_SHAPE = {'BipartiteGraph.from_topk.indices', 'MaskGraph.from_topk.indices',
             'FactorModel.mixing', 'EdgeAttention.forward.teleport'}
NEGATIVE_IS_NONE = {'BipartiteGraph.from_topk.indices', 'MaskGraph.from_topk.indices'}
# A mask that forbids, or one that is added to logits.
ADDED = {'MultiheadAttention.forward.attn_mask', 'MultiheadAttention.forward.key_padding_mask'}
POSITIVE = {'norm_eps', 'temperature', 'embedding_std', 'logit_drop', 'time', 'init_std',
            'exploration', 'radius', 'softcap'}


def bad_numbers(name: str) -> list:
    bad = ['0.5', math.nan, True, 1j, torch.tensor(.5)]
    if name not in MAY_BE_NEGATIVE:
        bad += [-.1, math.inf]
    return bad if name in POSITIVE | MAY_BE_NEGATIVE else [*bad, 1.1]


def bad_integers(name: str) -> list:
    bad = [2.5, True, '3', math.nan, torch.tensor(3)]
    if name == 'seed':
        return [*bad, 2**64]
    bad += [-2 if name in MINUS_1_IS_UNKNOWN else -1]
    bad += [] if name in MAY_BE_ZERO else [0]
    return bad if name in MAY_BE_HUGE else [*bad, 10**12]


def bad_tensors(name: str, tensor: Tensor) -> list:
    bad = [tensor.tolist(), 'tensor', tensor.to_sparse(), torch.nested.nested_tensor([tensor])]
    if name not in ANY_SHAPE:
        bad += [tensor.unsqueeze(0), tensor[0]]
    if name in ANY_DTYPE:
        return bad
    bad += [tensor.to(torch.complex64)]
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        bad += [tensor.long(), tensor.to(torch.float8_e5m2)]
    if tensor.is_floating_point():
        return bad
    if tensor.dtype == torch.bool:
        return bad if name in ADDED else [*bad, tensor.float()]
    bad += [] if name in NEGATIVE_IS_NONE else [tensor - 1]
    return [*bad, tensor.float(), tensor + 2**40]


def misfits(tensor: Tensor) -> list:
    """Return tensors that are right in themselves, but may not go with the other arguments."""
    return [tensor.to('meta'), tensor[..., :0], tensor.flip(-1), torch.cat([tensor, tensor], -1),
            tensor.double() if tensor.is_floating_point() else tensor.int()]


BAD = {
    'bool': [1, 'yes', torch.tensor(True)],
    'str': [3, 'nosuch', b'auto'],
    'device': ['nosuch', 3.5, [1]],
    'teleport': ['0.1', -.1, 1.1, math.nan, True, [.1, 1.1], [.1, .2, .3], torch.tensor(2)],
}


def kinds_of(parameter: inspect.Parameter) -> list[str]:
    annotation = parameter.annotation
    return (annotation if isinstance(annotation, str) else annotation.__name__).split(' | ')


def bad_values(name: str, key: str, parameter: inspect.Parameter) -> list:
    kinds = kinds_of(parameter)
    may_be_none = 'None' in kinds
    kinds = [kind for kind in kinds if kind != 'None']
    if key in ('teleport', 'device') and kinds != ['Tensor']:
        bad = BAD[key]
    elif kinds == ['Tensor']:
        bad = bad_tensors(f'{name}.{key}', meant(name, key))
    elif kinds[0] == 'int':
        bad = bad_integers(key)
    elif kinds == ['float']:
        bad = bad_numbers(key)
    elif kinds == ['bool']:
        bad = BAD['bool']
    elif kinds == ['str'] or kinds[0].startswith('Literal'):
        bad = BAD['str']
    else:
        bad = [3, object(), *([] if 'str' in kinds or 'PathLike' in kinds else ['nosuch'])]
    return bad if may_be_none else [None, *bad]


CASES = [(name, key) for name in PUBLIC for key in parameters(name)]
OF_TENSORS = [(name, key) for name, key in CASES
              if kinds_of(parameters(name)[key])[:1] == ['Tensor']]
NEED_WEIGHTS = {'load_bert', 'load_roberta'}  # which their own tests give them


@pytest.mark.parametrize('name', sorted(PUBLIC.keys() - NEED_WEIGHTS))
def test_what_is_meant_is_accepted(name):
    if name.endswith('to_sparse_tensor'):
        pytest.importorskip('torch_sparse')
    call(name)


@pytest.mark.filterwarnings('ignore:The PyTorch API of nested tensors')
@pytest.mark.parametrize('name, key', CASES)
def test_what_is_wrong_in_itself_is_refused_by_its_name(name, key):
    for value in bad_values(name, key, parameters(name)[key]):
        with pytest.raises((TypeError, ValueError), match=f"'{key}"):
            call(name, **{key: value})
            print(f'{value!r} was accepted')


@pytest.mark.parametrize('name, key', OF_TENSORS)
def test_what_does_not_fit_is_refused_by_the_name_of_an_argument(name, key):
    names = '|'.join(parameters(name))
    if name.endswith('to_sparse_tensor'):
        pytest.importorskip('torch_sparse')
    for value in misfits(meant(name, key)):
        try:
            call(name, **{key: value})
        except (TypeError, ValueError) as error:
            assert re.search(f"'({names})", str(error)), error
