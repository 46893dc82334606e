"""Calls that cannot work end in errors that name the argument, or what to call instead."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphattn import BipartiteGraph, layers, models, patterns, sources, transforms
from graphattn._explained import parameters_of
from graphattn.graphs.pair_layout import LAYOUTS
from graphattn.layers import GraphAttention, GraphTransformerConv, MultiheadAttention
from graphattn.patterns import Pattern, parse
from graphattn.samplers import FactorModel
from graphattn.sources import GraphSource
from tests.modules import CASES, INPUTS

BUILT = {name: getattr(module, name) for module in (patterns, sources, layers, models, transforms)
         for name in module.__all__ if inspect.isclass(getattr(module, name))}
OTHERS = {'ClusterKeys', 'HeadClusters'}  # which sources make of graphs
BUILT = {name: kind for name, kind in {**BUILT, **LAYOUTS, 'FactorModel': FactorModel}.items()
         if name not in OTHERS and not inspect.isabstract(kind)}
MODULES = {name: kind for name, kind in BUILT.items() if issubclass(kind, nn.Module)}


@pytest.mark.parametrize('name', BUILT)
def test_an_argument_that_is_unknown_is_named_beside_those_that_exist(name):
    names = parameters_of(BUILT[name])
    with pytest.raises(TypeError, match="^'nosuch' is not an argument of") as refused:
        BUILT[name](nosuch=1)
    assert all(f"'{key}'" in str(refused.value) for key in names)
    for key in names:
        with pytest.raises(TypeError, match=f"did you mean.*'{key}'"):
            BUILT[name](**{f'{key}s': 1})
    assert [*inspect.signature(BUILT[name]).parameters] == [
        *inspect.signature(BUILT[name].__init__).parameters][1:]


@pytest.mark.parametrize('name', MODULES)
def test_an_argument_of_a_call_that_is_unknown_or_missing_is_named(name):
    forward = inspect.signature(MODULES[name].forward)
    module = MODULES[name].__new__(MODULES[name])
    nn.Module.__init__(module)
    module.recompute = False
    first, *others = [parameter for parameter in forward.parameters.values()][1:]
    required = [each.name for each in (first, *others) if each.default is each.empty
                and each.kind is each.POSITIONAL_OR_KEYWORD]
    if not any(each.kind is each.VAR_KEYWORD for each in others):
        with pytest.raises(TypeError, match=f"^'{first.name}s' is not.*did you mean.*{first.name}"):
            module.forward(**{f'{first.name}s': 1})
    for key in required:
        with pytest.raises(TypeError, match=f"^'{key}' must be given to"):
            module.forward(**{other: None for other in required if other != key})


DATA = Batch.from_data_list([Data(x=torch.randn(3, 8), edge_index=torch.tensor([[0], [1]]))] * 2)


@pytest.mark.parametrize('call, match', [
    (lambda: GraphAttention(8, 2, 'Full()')(DATA), r"'ptr' must.*DataBatch.*data.x, data.ptr"),
    (lambda: GraphAttention(8, 2, 'Full()')(DATA.x), "'ptr' must.*batch.ptr.*tensor"),
    (lambda: GraphAttention(8, 2, 'Full()')(DATA, DATA.ptr), "'x' must.*DataBatch.*data.x"),
    (lambda: GraphAttention(8, 2, sources.BlockModelSource),
     r"the class BlockModelSource\); pass BlockModelSource\(\.\.\.\)"),
    (lambda: GraphTransformerConv(8, 4)(DATA), "'edge_index' must.*data.x, data.edge_index"),
    (lambda: GraphTransformerConv(8, 4, agr='sum'), "'agr' is not.*'heads'.*did you mean 'aggr'"),
    (lambda: parse('SlidingWindow(radus=3)'), "'radus' is not.*did you mean 'radius'"),
    (lambda: patterns.get('bigbird', blok=3), "'blok' is not.*did you mean 'block'")])
def test_what_to_do_is_said(call, match):
    with pytest.raises(TypeError, match=match):
        call()


def test_built_values_are_copied_and_pickled():
    pattern = patterns.SlidingWindow(radius=3) | patterns.GlobalTokens(tokens=1)
    assert pickle.loads(pickle.dumps(pattern)) == copy.deepcopy(pattern) == pattern


class Own(Pattern):
    def __init__(self, **options):
        self.options = options

    def edges(self, num_queries, num_keys, generator):
        raise NotImplementedError


class Single(Pattern):
    def edges(self, num_queries, num_keys, generator):
        return None


class OwnLayer(GraphAttention):
    def __init__(self, *args, **kwargs):
        self.mine = kwargs.pop('mine')
        super().__init__(*args, **kwargs)

    def forward(self, x, *args, **kwargs):
        return super().forward(x * self.mine, *args, **kwargs)


def test_classes_of_users_keep_their_arguments():
    assert Own(any_name=3).options == {'any_name': 3}
    layer = OwnLayer(8, 2, source='Full()', mine=2.)
    assert layer(DATA.x, DATA.ptr).shape == (6, 8)
    with pytest.raises(TypeError, match="'pt' is not an argument"):
        layer(DATA.x, DATA.ptr, pt=3)


@pytest.mark.parametrize('base, method, wanted', [
    (Pattern, lambda self, n: n, 'edges(self, num_queries, num_keys, generator)'),
    (GraphSource, lambda self, query, key, ptr: ptr,
     'forward(self, query, key, ptr, generator=None)')])
def test_a_method_of_users_has_the_arguments_that_it_is_called_with(base, method, wanted):
    name = wanted.partition('(')[0]
    with pytest.raises(TypeError) as refused:
        type('Mine', (base,), {name: method})
    given = ', '.join(inspect.signature(method).parameters)
    assert str(refused.value) == f"'Mine.{name}' must be {wanted} (got {name}({given}))"


class Nothing(GraphSource):
    def forward(self, query, key, ptr, generator=None):
        return None


class OneGraph(GraphSource):
    """Joins all sequences, which are not divided by ``ptr``."""

    def forward(self, query, key, ptr, *, key_ptr=None, generator=None):
        return patterns.SlidingWindow(2).build(query.size(0))


class OneForEachHead(GraphSource):
    """The same for each head; of two sequences, two heads have as many segments."""

    def forward(self, query, key, ptr, *, key_ptr=None, generator=None):
        return BipartiteGraph.batch([patterns.SlidingWindow(head).build(query.size(0))
                                     for head in range(query.size(1))])


@pytest.mark.parametrize('source', [OneGraph(), OneForEachHead()])
@pytest.mark.parametrize('call', [
    lambda source: GraphAttention(8, 2, source)(torch.ones(10, 8), torch.tensor([0, 4, 10])),
    lambda source: MultiheadAttention(8, 2, source=source)(*[torch.ones(5, 2, 8)] * 3)])
def test_graphs_of_a_source_have_the_sequences_as_segments(source, call):
    with pytest.raises(ValueError, match="segments are the 2 sequences of 'ptr'.*query_ptr=ptr"):
        call(source)


class Misspelt(sources.PatternSource):
    def logit_terms(self, graph):
        return {'edge_biases': torch.ones(graph.num_edges)}


def test_terms_of_a_source_have_known_names():
    with pytest.raises(ValueError, match="'edge_bias'.*got 'edge_biases' from Misspelt"):
        GraphAttention(8, 2, Misspelt('Full()'))(DATA.x, DATA.ptr)


@pytest.mark.parametrize('call, match', [
    (lambda: repr(Own()), "'Own' must be a dataclass.*class Own"),
    (lambda: Single().build(3), r"'Single.edges\(\)' must be an int64 Tensor \(got NoneType"),
    (lambda: GraphAttention(8, 2, Nothing())(DATA.x[:3], DATA.ptr[:2]), 'NoneType from Nothing')])
def test_what_a_class_of_users_lacks_is_said(call, match):
    with pytest.raises(TypeError, match=match):
        call()


def test_errors_within_a_call_stay_as_they_are():
    class Broken(GraphSource):
        def forward(self, query, key, ptr, *, key_ptr=None, generator=None):
            return len(3)

    with pytest.raises(TypeError, match='has no len'):
        GraphAttention(8, 2, Broken())(DATA.x, DATA.ptr)


# Layers with a way of their own to run, and a model of such layers.
ALONE = 'pattern', 'edge_index', 'transformer conv', 'gps', 'padded', 'encoder'


@pytest.mark.parametrize('way', ['script', 'trace'])
@pytest.mark.parametrize('name', ALONE)
def test_torch_jit_is_refused_with_what_to_use(name, way):
    module, inputs = CASES[name].make(), tuple(INPUTS[each] for each in CASES[name].inputs)
    with pytest.raises(NotImplementedError, match=r'torch.jit.*torch\.compile.*torch\.export'):
        torch.jit.trace(module, inputs) if way == 'trace' else torch.jit.script(module)
