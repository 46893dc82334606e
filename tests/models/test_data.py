"""Every model reads its sequences from PyG's data."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

from graphattn import BipartiteGraph, models
from graphattn.sources import BlockModelSource

LENGTHS = (3, 1, 4, 2)
IDS = torch.arange(10) % 7


def encoder(**options) -> models.Encoder:
    return models.Encoder('SlidingWindow(1)', num_tokens=7, max_length=9, channels=8, heads=2,
                          num_layers=2, **options)


MODELS: dict[str, Callable[[], nn.Module]] = {
    'Encoder': encoder,
    'SequenceClassifier': lambda: models.SequenceClassifier(encoder(), 3, pooling='pooler'),
    'PairClassifier': lambda: models.PairClassifier(encoder(), 3),
    'TokenClassifier': lambda: models.TokenClassifier(encoder(), 3),
    'MaskedLanguageModel': lambda: models.MaskedLanguageModel(encoder()),
    'SpanModel': lambda: models.SpanModel(encoder()),
    'MultipleChoiceModel': lambda: models.MultipleChoiceModel(encoder()),
    'CausalLanguageModel': lambda: models.CausalLanguageModel(encoder(causal=True)),
}


def sequences(tokens: Tensor = IDS) -> list[Data]:
    return [Data(x=x) for x in tokens.split(LENGTHS)]


def test_no_model_is_left_out():
    kinds = [kind for kind in vars(models).values() if isinstance(kind, type)]
    assert set(MODELS) == {kind.__name__ for kind in kinds
                           if 'tokens' in inspect.signature(kind.forward).parameters}


@pytest.mark.parametrize('name', MODELS)
def test_the_graphs_of_a_batch_are_sequences(name):
    model, batch = MODELS[name](), Batch.from_data_list(sequences())
    expected = model(IDS, torch.tensor([0, 3, 4, 8, 10]), return_graphs=True)
    for data in (batch, next(iter(DataLoader(sequences(), 4)))):
        torch.testing.assert_close(model(data, return_graphs=True)[:-1], expected[:-1])
    assert model(batch, return_graphs=True)[-1] == expected[-1]
    with pytest.raises(TypeError, match="'ptr' must be given to .*; pass batch.ptr"):
        model(IDS)


@pytest.mark.slow
def test_compiled_models_accept_data():
    torch._dynamo.reset()
    model, batch = encoder(), Batch.from_data_list(sequences())
    torch.testing.assert_close(torch.compile(model, backend='eager')(batch), model(batch))


def test_the_edges_of_each_head_come_back():
    model = models.Encoder(BlockModelSource(2, 4, 3), num_tokens=7, max_length=9, channels=8,
                           heads=2, num_layers=1)
    batch = Batch.from_data_list(sequences())
    _, (graph,) = model(batch, return_graphs=True)
    heads = [BipartiteGraph.batch([graph.segment(sequence, head, heads=2)
                                   for sequence in range(4)]) for head in range(2)]
    assert BipartiteGraph.batch(heads) == graph == BipartiteGraph.from_data(graph.to_data())
    assert torch.equal(heads[0].query_ptr, batch.ptr)


@pytest.mark.parametrize('arguments, error, match', [
    ((Data(x=IDS), torch.tensor([0, 9])), ValueError, "'ptr' must be omitted if 'tokens'"),
    ((Data(num_nodes=3),), ValueError, "'tokens' must.*attribute 'x'.*ids"),
    ((HeteroData(),), TypeError, ".got HeteroData.; pass the 'x' and 'ptr'"),
    ((Data(x=IDS, batch=IDS),), ValueError, "'batch' must ascend"),
    ((Data(x=IDS, batch=IDS[:3]),), ValueError, "'batch' must.*10"),
    ((Data(x=IDS, ptr=torch.tensor([0, 9])),), ValueError, "'ptr' must rise from 0 to 10"),
    ((Data(x=IDS.unsqueeze(1)),), ValueError, r"'tokens' must.*batch.*\(10, 1\)"),
])
def test_other_data_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        encoder()(*arguments)
