"""Edges of patterns in PyG's data: what was there stays, what is added is told apart."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import Compose, ToSparseTensor, ToUndirected, VirtualNode

from graphattn import patterns
from graphattn.transforms import AddAttentionEdges
from tests.graphs import GRAPHS

PATTERNS = ['SlidingWindow(2) | GlobalTokens(1)', 'RandomRegular(3)', 'exphormer',
            'Full() - SlidingWindow(0)', patterns.Star()]


def data_of(edges: list[tuple[int, int]], num_nodes: int) -> Data:
    return Data(edge_index=torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t(),
                num_nodes=num_nodes)


DATA: dict[str, Callable[[], Data]] = {
    **{name: lambda make=make: make().to_data() for name, make in GRAPHS.items()
       if make().is_square and make().num_segments},
    'in no order': lambda: data_of([(3, 0), (0, 1), (2, 0)], 5),
    'undirected': lambda: ToUndirected()(data_of([(3, 0), (0, 1), (2, 0)], 5)),
    'self-loops and repeated edges': lambda: data_of([(1, 1), (0, 1), (1, 1), (0, 1)], 3),
}


def pairs(edge_index: Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, edge_index.t().tolist()))


def edges_of(pattern: patterns.Pattern | str, data: Data) -> set[tuple[int, int]]:
    pattern = patterns.parse(pattern) if isinstance(pattern, str) else pattern
    found, ptr = set(), data.get('ptr', torch.tensor([0, data.num_nodes])).tolist()
    for start, end in zip(ptr, ptr[1:]):
        edges = pattern.build(end - start, seed=0, crop=True).edge_index.as_tensor()
        found |= pairs(edges + start)
    return found


@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize('name', DATA)
def test_edges_are_an_attribute_or_join_the_edges_of_the_data(name, pattern):
    data = DATA[name]()
    original = copy.deepcopy(data)
    apart = AddAttentionEdges(pattern)(data)
    expected = edges_of(pattern, data)
    assert pairs(apart.attention_edge_index) == expected
    assert apart.attention_edge_index.size(1) == len(expected)
    assert torch.equal(apart.edge_index, original.edge_index) and 'edge_type' not in apart

    num_own = data.num_edges
    data.edge_attr, data.weight = torch.rand(num_own, 2), torch.arange(num_own)
    joined = AddAttentionEdges(pattern, None, fill={'edge_attr': -1., 'weight': 7})(data)
    order = joined.edge_type.argsort(stable=True)  # in each graph, the added edges come last
    types, edge_index = joined.edge_type[order], joined.edge_index[:, order]
    assert types.tolist() == [0] * num_own + [1] * (joined.num_edges - num_own)
    assert torch.equal(edge_index[:, :num_own], original.edge_index)
    added = edge_index[:, num_own:]
    assert pairs(added) == expected - pairs(original.edge_index)
    assert added.size(1) == len(pairs(added))
    assert torch.equal(joined.edge_attr[order][:num_own], data.edge_attr)
    assert bool((joined.edge_attr[order][num_own:] == -1).all())
    assert joined.weight[order].tolist() == [*range(num_own), *[7] * added.size(1)]
    assert joined.validate() and 'edge_type' not in data and data.num_edges == num_own


def test_a_row_of_values_may_be_given_and_types_of_the_data_stay():
    data = DATA['in no order']()
    data.edge_attr, row = torch.rand(3, 2), torch.tensor([5., 6.])
    both = Compose([AddAttentionEdges('RandomRegular(2)', None, fill={'edge_attr': row}),
                    AddAttentionEdges('Star()', None, edge_type=2, fill={'edge_attr': 0.})])(data)
    assert torch.equal(both.edge_attr[both.edge_type == 1].unique(dim=0), row.unsqueeze(0))
    assert both.edge_type.unique().tolist() == [0, 1, 2]
    assert VirtualNode()(both).edge_type.unique().tolist() == [0, 1, 2, 3, 4]


WITH_ATTR = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, edge_attr=torch.rand(1, 2))
JOIN = AddAttentionEdges('Star()', None)


def data(**attributes: object) -> Data:
    return Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, **attributes)


@pytest.mark.parametrize('call, match', [
    (lambda: AddAttentionEdges(3), "'pattern' must be a Pattern .got int"),
    (lambda: AddAttentionEdges('Stars()'), "did you mean 'Star'"),
    (lambda: AddAttentionEdges('Star()', 'edges'), "end with 'edge_index'"),
    (lambda: AddAttentionEdges('Star()', 'batch_edge_index'), "not contain 'batch'"),
    (lambda: AddAttentionEdges('Star()', fill={'edge_attr': 0.}), "'fill' must be"),
    (lambda: AddAttentionEdges('Star()', edge_type=-1), "'edge_type' must not be"),
    (lambda: AddAttentionEdges('Star()', seed='0'), "'seed' must be an int"),
    (lambda: JOIN(HeteroData()), "Batch of Data .got Hetero"),
    (lambda: JOIN(Data(num_nodes=3)), "an 'edge_index'"),
    (lambda: JOIN(ToSparseTensor(layout=torch.sparse_csr)(DATA['square']())), "an 'edge_index'"),
    (lambda: JOIN(WITH_ATTR), r"'fill' must.*'edge_attr'.*got \[\]"),
    (lambda: JOIN(data(edge_attr=torch.rand(2, 2))), r"'fill' must.*got \[\]"),
    (lambda: AddAttentionEdges('Star()', None, fill={'edge_attr': 0.})(
        data(edge_attr=torch.rand(2, 2))), r"'edge_attr'.*1.*.got.*2\)"),
    (lambda: AddAttentionEdges('Star()', None, fill={'edge_attr': 0., 'kind': 0})(WITH_ATTR),
     "'kind' of 'data' must have 1 .*got shape None"),
    (lambda: AddAttentionEdges('Star()', None, fill={'edge_weight': .5})(
        data(edge_weight=torch.tensor([1]))), "'fill' must.*'edge_weight'.*got torch.float32"),
    (lambda: JOIN(data(edge_type=torch.tensor([1]))), "'edge_type' must.*.got 1.;.*2"),
    (lambda: JOIN(Data(edge_index=torch.tensor([[0], [3]]), num_nodes=3)), "got 3 to 3"),
])
def test_what_is_refused(call, match):
    with pytest.raises((TypeError, ValueError), match=match):
        call()
