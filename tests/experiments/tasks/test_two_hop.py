"""The task whose answer stands two edges away."""

import networkx as nx
import pytest
import torch
import torch.nn.functional as F

from experiments.data.batch import NO_LABEL
from experiments.tasks import TwoHop
from graphattn.models import Encoder, TokenClassifier
from graphattn.patterns import parse
from graphattn.sources import PatternSource

PATTERNS = ['SlidingWindow(2)', 'SlidingWindow(1, dilation=3) - SlidingWindow(0)', 'Star()',
            'LogSparse(causal=True)', 'SlidingWindow(1) | GlobalTokens(2)']
NUM_SYMBOLS, LENGTH, BATCH = 4, 16, 32


def batches(pattern, number=1, **sizes):
    task = TwoHop(pattern, NUM_SYMBOLS, length=LENGTH, batch_size=BATCH, eval_batches=number,
                  **sizes)
    return list(task.val_dataloader())


def classifier(pattern, num_layers=1, hops=1):
    torch.manual_seed(0)
    encoder = Encoder(PatternSource(pattern), num_tokens=2 * NUM_SYMBOLS, max_length=LENGTH,
                      channels=16, heads=2, num_layers=num_layers, hops=hops, teleport=0.1)
    return TokenClassifier(encoder, NUM_SYMBOLS)


def distance(pattern):
    """Edges from each query (row) to each key, by networkx."""
    graph = parse(pattern).build(LENGTH).to_networkx().reverse()
    edges = dict(nx.all_pairs_shortest_path_length(graph))
    return [[edges[i].get(p, LENGTH) for p in range(LENGTH)] for i in range(LENGTH)]


@pytest.mark.parametrize('pattern', PATTERNS)
def test_who_is_two_edges_away_names_the_answer(pattern):
    batch, = batches(pattern)
    edges = distance(pattern)
    for tokens, label in zip(batch.tokens.view(BATCH, LENGTH).tolist(),
                             batch.label.view(BATCH, LENGTH).tolist()):
        place, = (p for p in range(LENGTH) if tokens[p] < NUM_SYMBOLS)
        assert label == [tokens[place] if edges[i][place] == 2 else NO_LABEL
                         for i in range(LENGTH)]
        assert set(label) > {NO_LABEL}


def test_every_draw_comes_once_with_each_answer():
    batch, = batches('SlidingWindow(2)')
    tokens = batch.tokens.view(-1, NUM_SYMBOLS, LENGTH)
    is_answer = tokens < NUM_SYMBOLS
    assert (is_answer == is_answer[:, :1]).all() and (is_answer.sum(dim=2) == 1).all()
    assert (tokens[is_answer].view(-1, NUM_SYMBOLS) == torch.arange(NUM_SYMBOLS)).all()
    fillers = tokens.masked_fill(is_answer, -1)
    assert (fillers == fillers[:, :1]).all()
    assert len(fillers[:, 0].unique(dim=0)) == BATCH // NUM_SYMBOLS


def answer_gradient(model, batch):
    """Return the gradient of a batch's loss to the embedding of each answer."""
    F.cross_entropy(model(batch.tokens, batch.ptr), batch.label).backward()
    return model.encoder.token_embedding.weight.grad[:NUM_SYMBOLS]


def answers_told_apart(model, batch):
    """Return whether logits change with the answer, at each label of a draw."""
    with torch.no_grad():
        logits = model(batch.tokens, batch.ptr).view(-1, NUM_SYMBOLS, LENGTH, NUM_SYMBOLS)
    has_label = (batch.label != NO_LABEL).view(-1, NUM_SYMBOLS, LENGTH)[:, 0]
    return (logits != logits[:, :1]).any(dim=3).any(dim=1)[has_label]


@pytest.mark.parametrize('pattern', PATTERNS)
def test_one_hop_of_one_layer_does_not_see_the_answer(pattern):
    batch, = batches(pattern)
    model = classifier(pattern)
    assert not answer_gradient(model, batch).any()
    assert not answers_told_apart(model, batch).any()


@pytest.mark.slow
@pytest.mark.parametrize('num_layers, hops', [(1, 2), (2, 1)])
@pytest.mark.parametrize('pattern', PATTERNS[1:4])
def test_two_hops_or_layers_see_the_answer(pattern, num_layers, hops):
    batch, = batches(pattern)
    model = classifier(pattern, num_layers, hops)
    assert answer_gradient(model, batch).any(dim=1).all()
    assert answers_told_apart(model, batch).all()


@pytest.mark.parametrize('options, match', [
    (dict(pattern='Full()'), 'two edges away'),
    (dict(pattern='SlidingWindow(0)'), "'pattern' must"),
    (dict(pattern='RandomKeys(2)'), "'pattern' must not be random"),
    (dict(pattern='Window(2)'), 'Window'), (dict(pattern=2), "'expression' must be a str"),
    (dict(num_symbols=1), "'num_symbols' .*got 1"), (dict(batch_size=30), "'batch_size' must"),
    (dict(length=0), "'length' must")])
def test_bad_input(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        TwoHop(**{'pattern': 'SlidingWindow(2)', 'length': 16, 'batch_size': 32, **options})
