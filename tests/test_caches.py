"""A change of any input alone changes an answer that is cached."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.graphs.cache import GRAPHS
from graphattn.graphs.from_pyg import sort_edges
from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import GraphAttention, GraphTransformerConv
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.samplers import FactorModel
from graphattn.sources import LearnedMaskSource, PatternSource
from graphattn.sources.pattern_source import pattern_graph
from tests.modules import CASES, INPUTS, Penalised

# Each input alone ####################################################################


class Answer(NamedTuple):
    """A question to a cache, its inputs, and what may be done to each."""

    inputs: Callable[[], dict[str, Any]]
    ask: Callable[..., Any]
    changes: dict[str, Callable[[dict], Any]]


def set_to(name: str, value: Any) -> Callable[[dict], None]:
    return lambda inputs: inputs.update({name: value})


def rows(graph: BipartiteGraph) -> tuple[list, ...]:
    return tuple(part.tolist() for part in (*graph.csr, *graph.segments.ptrs))


def patterns() -> dict[str, Any]:
    return dict(patterns=[RandomKeys(2), SlidingWindow(1)], seed=3, lengths=[5, 7],
                device=torch.device('cpu'), spans=[(0, 5), (2, 7)])


def edges() -> dict[str, Any]:
    return dict(edges=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), num_queries=4, num_keys=4)


def ask_edges(edges: Tensor, num_queries: int, num_keys: int) -> tuple:
    graph, perm = sort_edges(edges, num_queries, num_keys)
    return *rows(graph), None if perm is None else perm.tolist()


def structure() -> dict[str, Any]:
    return dict(edges=torch.tensor([[0, 1, 4], [1, 0, 3]]), pattern=SlidingWindow(0),
                ptr=torch.tensor([0, 3, 6]))


def ask_structure(edges: Tensor, pattern, ptr: Tensor) -> tuple:
    return rows((PatternSource(pattern) | edges)(*torch.zeros(2, 6, 1, 1), ptr))


def factors() -> dict[str, Any]:
    torch.manual_seed(0)
    leaves = [torch.rand(6, 2), torch.rand(2, 2) / 4, torch.rand(6, 2)]
    return dict(model=FactorModel(*(leaf.requires_grad_() for leaf in leaves)))


def pair_mask() -> dict[str, Any]:
    values = torch.arange(16.).div(16).expand(2, 16)
    return dict(mask=PairMask(values, FreeLayout(4)), length=4)


def learned_mask() -> dict[str, Any]:
    torch.manual_seed(0)
    return dict(source=LearnedMaskSource(2, 6, init_std=1.).eval(), length=6)


def ask_learned_mask(source: LearnedMaskSource, length: int) -> tuple:
    return rows(source(*torch.zeros(2, length, 2, 1), torch.tensor([0, length])))


def in_place(name: str, index: Any, value: Any) -> Callable[[dict], None]:
    def change(inputs: dict) -> None:
        inputs[name][index] = value
    return change


def by_data(tensor: Callable[[dict], Tensor], edit: Callable[[Tensor], Any]) -> Callable:
    return lambda inputs: edit(tensor(inputs).data)


EDGE_EDITS = {
    'in place': in_place('edges', (0, 1), 3),
    'in place, twice': lambda inputs: inputs['edges'].sub_(1).add_(1)[0].__setitem__(1, 3),
    'through .data': by_data(lambda inputs: inputs['edges'], lambda x: x.copy_(x.flip(0) ^ 2)),
    'the order of columns, through .data': by_data(lambda inputs: inputs['edges'],
                                                   lambda x: x.copy_(x[:, [1, 0, 2, 3]])),
    'through numpy': lambda inputs: inputs['edges'].numpy().__setitem__((0, 1), 3),
    'other storage': lambda inputs: setattr(inputs['edges'], 'data', inputs['edges'] ^ 2),
}
ANSWERS = {
    'patterns': Answer(patterns, lambda **inputs: rows(pattern_graph(**inputs)), {
        'a pattern': set_to('patterns', [RandomKeys(2), SlidingWindow(2)]),
        'their order': set_to('patterns', [SlidingWindow(1), RandomKeys(2)]),
        'seed': set_to('seed', 4), 'lengths': set_to('lengths', [5, 8]),
        'order of lengths': lambda inputs: inputs.update(lengths=[7, 5], spans=[(2, 7), (0, 5)]),
        'spans': set_to('spans', [(0, 5), (1, 6)])}),
    'edges': Answer(edges, ask_edges, EDGE_EDITS | {
        'num_queries': set_to('num_queries', 5), 'num_keys': set_to('num_keys', 6)}),
    'structure': Answer(structure, ask_structure, {
        'in place': in_place('edges', (0, 0), 2),
        'through .data': by_data(lambda inputs: inputs['edges'], lambda x: x[0, 0].fill_(2)),
        'pattern': set_to('pattern', SlidingWindow(1)),
        'ptr': set_to('ptr', torch.tensor([0, 6]))}),
    'factors': Answer(factors, lambda model: model.mixed_query().tolist(), {
        f'{part}, {way}': change for part in ('query_factor', 'mixing') for way, change in {
            'in place': lambda inputs, part=part: torch.no_grad()(
                lambda: getattr(inputs['model'], part).mul_(.5))(),
            'through .data': by_data(lambda inputs, part=part: getattr(inputs['model'], part),
                                     lambda x: x.mul_(.5)),
            'two rows change places': by_data(
                lambda inputs, part=part: getattr(inputs['model'], part),
                lambda x: x.copy_(x.flip(0))),
            'other storage': lambda inputs, part=part: setattr(
                getattr(inputs['model'], part), 'data', getattr(inputs['model'], part).data / 2),
        }.items()}),
    'pair mask': Answer(pair_mask, lambda mask, length: mask.dense(length).tolist(), {
        'length': set_to('length', 3),
        'layout': lambda inputs: (
            setattr(inputs['mask'], 'layout', DiagonalLayout(4, False)),
            setattr(inputs['mask'], 'values', inputs['mask'].values[:, :4])),
        'values': lambda inputs: setattr(inputs['mask'], 'values', inputs['mask'].values / 2)}),
    'learned mask': Answer(learned_mask, ask_learned_mask, {
        'length': set_to('length', 5),
        'logits, in place': lambda inputs: torch.no_grad()(inputs['source'].logit.neg_)(),
        'logits, through .data': by_data(lambda inputs: inputs['source'].logit, Tensor.neg_)}),
}


@pytest.mark.parametrize('name, change', [(name, change) for name, answer in ANSWERS.items()
                                          for change in answer.changes])
def test_each_input_alone_changes_the_answer(name, change):
    answer = ANSWERS[name]
    inputs = answer.inputs()
    before = answer.ask(**inputs)
    assert answer.ask(**inputs) == before
    answer.changes[change](inputs)
    after = answer.ask(**inputs)
    GRAPHS.clear()
    assert after == answer.ask(**anew(inputs)) != before


def anew(inputs: dict) -> dict:
    """Return copies, for which nothing has been kept yet."""
    return copy.deepcopy(inputs)


# Parameters ##########################################################################


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_every_parameter_may_be_edited_through_data(name):
    """Hand-written steps, clamping and moving averages edit so, in training and evaluation."""
    torch.manual_seed(0)
    module = CASES[name].make()
    for is_training in (True,) if isinstance(module, Penalised) else (True, False):
        module.train(is_training)
        outputs(module, name)
        for parameter in module.parameters():
            parameter.data.mul_(-1.5).add_(.1)
        torch.testing.assert_close(outputs(module, name), outputs(anew({'m': module})['m'], name))


def outputs(module: torch.nn.Module, name: str) -> list[Tensor]:
    case = CASES[name]
    torch.manual_seed(1)
    out = module(*(INPUTS[part].clone() for part in case.inputs), **case.options)
    return [x.detach() for x in torch.utils._pytree.tree_leaves(out)
            if isinstance(x, Tensor)]


# Graphs, which are values ############################################################


@pytest.mark.parametrize('part', ['indptr', 'key', 'query_ptr', 'edge_prob'])
def test_a_graph_that_was_changed_in_place_is_refused(part):
    graph = SlidingWindow(1).build(4).with_edge_prob(torch.full((10,), .5))
    x = torch.randn(4, 1, 2)
    edge_attention(x, x, x, graph)
    tensor = {'indptr': graph.csr[0], 'key': graph.csr[1], 'query_ptr': graph.segments.query_ptr,
              'edge_prob': graph.edge_prob}[part]
    tensor.copy_(tensor.clone())
    with pytest.raises(ValueError, match="'graph' must not be modified"):
        edge_attention(x, x, x, graph)


def test_layers_that_share_edges_see_them_change():
    first, second = GraphTransformerConv(4, 2, 2), GraphTransformerConv(4, 2, 2)
    second.load_state_dict(first.state_dict())
    x, own = torch.randn(4, 4), edges()['edges']
    assert torch.equal(first(x, own), second(x, own))
    own.data.copy_(own.flip(0) ^ 2)
    assert torch.equal(first(x, own), second(x, own.clone()))


def test_copies_of_layers_keep_nothing_of_the_first():
    layer = GraphAttention(4, 2, LearnedMaskSource(2, 6, init_std=1.)).eval()
    x, ptr = torch.randn(6, 4), torch.tensor([0, 6])
    layer(x, ptr)
    other = copy.deepcopy(layer)
    other.source.logit.data.neg_()
    fresh = GraphAttention(4, 2, LearnedMaskSource(2, 6)).eval()
    fresh.load_state_dict(other.state_dict())
    assert torch.equal(other(x, ptr), fresh(x, ptr))
