import copy
import math
import pickle

import pytest
import torch
from torch.nn import LayerNorm

from graphattn import BipartiteGraph
from graphattn.decoding import KeyValueCache
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers import GraphAttention
from graphattn.models import (
    CausalLanguageModel,
    Encoder,
    MaskedLanguageModel,
    MultipleChoiceModel,
    PairClassifier,
    Pooler,
    SequenceClassifier,
)
from graphattn.patterns import Full, RandomKeys, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource
from graphattn.sources.mask_graph import MaskGraph
from tests.counted_source import CountedSource
from tests.ops.numbers import saved_tensors
from tests.pairwise import pairwise

PTR = torch.tensor([0, 4, 5, 12])
TOKENS = torch.randint(20, (12,), generator=torch.Generator().manual_seed(0))
SIZES = dict(num_tokens=20, max_length=8, channels=16, heads=2, num_layers=2)


def encoder(source=None, **options):
    return Encoder(source or PatternSource(SlidingWindow(1)), **{**SIZES, **options})


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_ragged_batch_equals_each_sequence_alone(norm_first):
    model = encoder(norm_first=norm_first).double().eval()
    alone = [model(part, torch.tensor([0, len(part)]))
             for part in TOKENS.split(PTR.diff().tolist())]
    torch.testing.assert_close(model(TOKENS, PTR), torch.cat(alone))


def test_positions_start_over_in_every_sequence():
    model = encoder(PatternSource(SlidingWindow(0)))
    out = model(torch.tensor([3, 3, 3, 3]), torch.tensor([0, 2, 4]))
    assert torch.equal(out[:2], out[2:]) and not torch.equal(out[0], out[1])


def test_a_shared_source_is_called_once_for_all_layers():
    source = CountedSource(2, 8, 4)
    centroid = source.centroid.clone()
    model = encoder(source, share_source=True, num_layers=3)
    assert model.source is source and torch.equal(source.centroid, centroid)
    x, graphs = model(TOKENS, PTR, return_graphs=True)
    assert len(graphs) == 3 and all(graph is graphs[0] for graph in graphs)
    assert (source.num_graphs, source.num_terms) == (1, 3)
    x.sin().sum().backward()
    assert source.centroid.grad.any()
    assert model(TOKENS, PTR, return_graphs=True)[1][0] != graphs[0]  # the next pass draws anew


def test_all_layers_train_a_shared_mask():
    shared, alone = (encoder(LearnedMaskSource(2, 8, mode='soft'), share_source=share_source)
                     .double().eval() for share_source in (True, False))
    alone.load_state_dict(shared.state_dict(), strict=False)
    logits = [layer.attention.source.logit for layer in alone.layers]
    for logit in logits:
        logit.data.copy_(shared.source.logit)
    gradient, = torch.autograd.grad(shared(TOKENS, PTR).sin().sum(), shared.source.logit)
    of_layer = torch.autograd.grad(alone(TOKENS, PTR).sin().sum(), logits)
    assert all(part.any() for part in of_layer)
    torch.testing.assert_close(gradient, sum(of_layer))


DILATED = ['Offsets((-1, 0, 1))', 'Offsets((-2, 0, 2))']


def test_each_layer_has_its_own_source():
    model = encoder(DILATED).eval()
    x, graphs = model(TOKENS, PTR, return_graphs=True)
    assert graphs == [PatternSource(pattern).graph(PTR) for pattern in DILATED]
    of_each = [encoder(pattern).eval() for pattern in DILATED]
    for other, layer in zip(of_each, range(2)):
        other.load_state_dict(model.state_dict())
        assert other(TOKENS, PTR, return_graphs=True)[1][layer] == graphs[layer]
    copied = copy.deepcopy(model)
    assert torch.equal(copied(TOKENS, PTR), x)
    assert torch.equal(pickle.loads(pickle.dumps(model))(TOKENS, PTR), x)


def test_layers_may_have_sources_of_different_kinds_and_patterns_of_each_head():
    block_model = BlockModelSource(heads=2, head_channels=8, clusters=4)
    model = encoder([block_model, block_model, PatternSource(DILATED)], num_layers=3)
    _, graphs = model(TOKENS, PTR, return_graphs=True)
    assert [graph.num_segments for graph in graphs] == [6, 6, 6]
    first, second = (model.layers[layer].attention.source.centroid for layer in (0, 1))
    assert not torch.equal(first, second)  # copies with their own parameters
    causal = encoder(DILATED, causal=True)
    assert all((graph.key <= graph.query).all()
               for graph in causal(TOKENS, PTR, return_graphs=True)[1])


@pytest.mark.parametrize('source, options, message', [
    (DILATED[:1], {}, r"'source' must be one source, or a list of 2 sources.*\(got 1 sources\)"),
    ([], {}, 'got 0 sources'), (DILATED, {'share_source': True}, "'share_source' must be False"),
    ([DILATED[0], None], {}, "'source' must not contain None"),
    ([None, None], {}, "'source' must not contain None"),
    (DILATED, {'attention': GraphAttention(16, 2, 'Full()')}, "'source' must be omitted"),
    (DILATED[0], {'attention': GraphAttention(16, 2, 'Full()')}, "'source' must be omitted"),
    ([DILATED[0], LearnedMaskSource(3, 8)], {}, '2 heads'),
    ([DILATED[0], LearnedMaskSource(2, 4, mode='dam_unstructured')], {},
     "'max_length' must be at most 4")])
def test_errors_of_sources_of_layers(source, options, message):
    with pytest.raises(ValueError, match=message):
        Encoder(source, **{**SIZES, **options})


SOURCES = {
    'fixed': lambda: PatternSource(SlidingWindow(1)),
    'drawn': lambda: PatternSource(RandomKeys(1) | SlidingWindow(0), seed=None),
    'block model': lambda: BlockModelSource(heads=2, head_channels=8, clusters=4),
    'soft mask': lambda: LearnedMaskSource(heads=2, size=8, mode='soft'),
    'drawn mask': lambda: LearnedMaskSource(heads=2, size=8),
}


@pytest.mark.slow
@pytest.mark.parametrize('source, seed, share_source', pairwise(SOURCES, [None, 5], [True, False]))
def test_checkpointed_layers_have_the_same_gradients_bit_for_bit(source, seed, share_source):
    model = encoder(SOURCES[source](), share_source=share_source, num_layers=3, dropout=0.2,
                    attention_dropout=0.2)
    kept = training_step(model, seed)
    model.checkpoint_layers = True
    assert_same_step(training_step(model, seed), kept)
    assert_same_step(training_step(model, seed, num_backwards=2), kept)
    other = training_step(model, 6 if seed else None, default_seed=1)
    assert not torch.equal(other['x'], kept['x'])


def training_step(model, seed, default_seed=0, num_backwards=1):
    """All that a step leaves behind, the state of the generators included."""
    model.zero_grad()
    torch.manual_seed(default_seed)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    x, graphs = model(TOKENS, PTR, generator=generator, return_graphs=True)
    penalties = [graph.norm() if isinstance(graph, PairMask | MaskGraph)
                 else graph.edge_prob
                 for graph in graphs]
    loss = x.sin().sum() + sum(part.sum() for part in penalties if part is not None)
    torch.rand(3)  # between the passes others draw
    for i in range(num_backwards):
        model.zero_grad()
        loss.backward(retain_graph=i + 1 < num_backwards)
    return {'x': x.detach(), 'default': torch.get_rng_state(),
            'own': torch.tensor(0) if seed is None else generator.get_state(),
            **{name: parameter.grad for name, parameter in model.named_parameters()}}


def assert_same_step(step, expected):
    assert step.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(step[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize('source', SOURCES)
def test_a_checkpointed_layer_only_keeps_its_input(source):
    def num_bytes(num_layers, checkpoint_layers):
        model = encoder(SOURCES[source](), num_layers=num_layers, dropout=0.2,
                        checkpoint_layers=checkpoint_layers)
        kept = {value.data_ptr() for value in [*model.parameters(), TOKENS, PTR]}
        return sum(x.nbytes for x in saved_tensors(lambda: model(TOKENS, PTR))
                   if x.data_ptr() not in kept)

    of_input = 12 * 16 * 4
    assert num_bytes(5, True) - num_bytes(2, True) == 3 * of_input
    assert num_bytes(5, False) - num_bytes(2, False) > 3 * 10 * of_input


def test_bad_segments():
    for segments in (torch.zeros(11).long(), torch.full((12,), 2), torch.full((12,), -1)):
        with pytest.raises(ValueError, match="'segments' must"):
            encoder(num_segments=2)(TOKENS, PTR, segments=segments)
        with pytest.raises(ValueError, match="'segments' must be None"):
            encoder()(TOKENS, PTR, segments=segments)


def test_post_norm_follows_the_embeddings_and_pre_norm_the_last_layer():
    post, pre = (encoder(norm_first=norm_first, norm_eps=1e-9) for norm_first in (False, True))
    for model, place in ((post, post.dropout), (pre, pre)):
        outputs = []
        place.register_forward_hook(lambda _, __, out, outputs=outputs: outputs.append(out))
        model(TOKENS, PTR)
        torch.testing.assert_close(outputs[0].var(dim=1, correction=0), torch.ones(12))
    assert {module.eps for module in post.modules() if isinstance(module, LayerNorm)} == {1e-9}


@pytest.mark.parametrize('pooling', ['mean', 'padded_mean', 'first', 'pooler'])
def test_sequence_classifier_pools_each_sequence(pooling):
    model = SequenceClassifier(encoder(), 3, pooling=pooling, hidden_channels=5).eval()
    features = model.encoder(TOKENS, PTR)
    parts = features.split(PTR.diff().tolist())
    pooled = [{'mean': part.mean(0), 'first': part[0],
               'padded_mean': part.sum(0) / SIZES['max_length'],  # of the longest there is
               'pooler': model.pooler and model.pooler.linear(part[0]).tanh()}[pooling]
              for part in parts]
    torch.testing.assert_close(model(TOKENS, PTR), model.head(torch.stack(pooled)))


@pytest.mark.slow
@pytest.mark.parametrize('pattern', [
    'Full', 'SlidingWindow(2) | GlobalTokens(1)', 'bigbird(block=2, num_global=1, num_random=1)',
    'diffuser(window=4, num_global=2, num_random=2)', 'LogSparse', 'block model'])
@pytest.mark.parametrize('hops, teleport, num_layers', [(1, 0., 3), (5, .1, 2)])
def test_no_token_depends_on_a_later_token_with_any_number_of_layers_and_hops(
        pattern, hops, teleport, num_layers):
    """Global tokens that see all would let the future in at the second hop."""
    torch.manual_seed(0)
    source = (BlockModelSource(heads=2, head_channels=8, clusters=4) if pattern == 'block model'
              else PatternSource(pattern))
    model = CausalLanguageModel(encoder(source, causal=True, hops=hops, teleport=teleport,
                                        num_layers=num_layers, max_length=12)).double().eval()

    def logits(tokens):
        return model(tokens, torch.tensor([0, 12]), generator=torch.Generator().manual_seed(0))
    before = logits(TOKENS)
    for place in range(1, 12):
        later = torch.cat([TOKENS[:place], (TOKENS[place:] + 7) % 20])
        after = logits(later)
        torch.testing.assert_close(after[:place], before[:place], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(after[place], before[place])


def test_positions_of_a_grid_are_sums_over_its_sides():
    model = encoder(positions=[2, 3, 3], max_length=18, channels=64)
    along = model.position_embedding.along
    embedded = model.position_embedding(torch.tensor([0, 4, 17]))
    for number, (row, column, colour) in enumerate([(0, 0, 0), (0, 1, 1), (1, 2, 2)]):
        assert torch.equal(embedded[number], along[0].weight[row] + along[1].weight[column]
                           + along[2].weight[colour])
    assert model.position_embedding.num_embeddings == 18 and .01 < along[0].weight.std() < .04


def test_a_language_model_that_sees_the_next_token_is_refused():
    with pytest.raises(ValueError, match="'encoder' must.*causal=True"):
        CausalLanguageModel(encoder())


@pytest.mark.parametrize('pooling', ['mean', 'first', 'pooler'])
def test_an_empty_sequence_has_no_class(pooling):
    with pytest.raises(ValueError, match='empty sequence'):
        SequenceClassifier(encoder(), 3, pooling=pooling)(TOKENS, torch.tensor([0, 4, 4, 12]))
    with pytest.raises(ValueError, match='empty sequence'):
        Pooler(4)(torch.randn(3, 4), torch.tensor([0, 3, 3]))
    assert encoder(PatternSource(Full()))(TOKENS, torch.tensor([0, 4, 4, 12])).shape == (12, 16)


@pytest.mark.parametrize('model', [
    lambda encoder: SequenceClassifier(encoder, 3), MultipleChoiceModel, MaskedLanguageModel])
@torch.no_grad()
def test_tokens_of_sequences_that_are_not_whole_are_not_pooled(model):
    cache, ptr = KeyValueCache(8), torch.tensor([0, 3])
    with pytest.raises((TypeError, ValueError), match="'placement'"):
        model(encoder(causal=True).eval())(TOKENS[:3], ptr, placement=cache.step(ptr))
    assert cache.seen == [0]


@pytest.mark.parametrize('options, name', [
    (dict(pooling='max'), 'pooling'), (dict(pooling='first', pooler_dropout=0.1), 'pooler_dropout'),
    *((dict(hidden_channels=hidden), 'hidden_channels') for hidden in (0, [8, 0], [8, -1]))])
def test_bad_options_of_a_classifier(options, name):
    with pytest.raises(ValueError, match=f"'{name}' must"):
        SequenceClassifier(encoder(), 3, **options)


def test_hops_and_teleport_reach_every_layer():
    model = encoder(hops=3, teleport=0.25, learn_teleport=True)
    for layer in model.layers:
        assert (layer.attention.attention.hops, layer.attention.attention.teleport) == (3, 0.25)
        torch.testing.assert_close(layer.attention.teleport(), torch.full((2,), 0.25))
    model(TOKENS, PTR).sin().sum().backward()
    assert all(layer.attention.teleport_logit.grad.all() for layer in model.layers)


PAIR_PTR = torch.tensor([0, 4, 5, 12, 15])
PAIR_TOKENS = torch.randint(20, (15,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('pooling', ['mean', 'padded_mean', 'first', 'pooler'])
@pytest.mark.parametrize('hidden_channels', [None, 8, [8, 4]])
def test_a_pair_is_classified_by_its_pooled_sequences(pooling, hidden_channels):
    torch.manual_seed(0)
    model = PairClassifier(encoder(), 3, pooling=pooling, hidden_channels=hidden_channels).eval()
    alone = [model._pool(model.encoder(part, ptr), ptr)[0]
             for part in PAIR_TOKENS.split(PAIR_PTR.diff().tolist())
             for ptr in [torch.tensor([0, len(part)])]]
    expected = torch.stack([torch.cat([x, y, x * y, x - y])
                            for x, y in (alone[:2], alone[2:])])
    logits, graphs = model(PAIR_TOKENS, PAIR_PTR, return_graphs=True)
    torch.testing.assert_close(logits, model.head(expected))
    assert len(graphs) == 2 and graphs[0].segments.query_ptr.tolist() == PAIR_PTR.tolist()
    logits.sum().backward()
    assert model.encoder.token_embedding.weight.grad.any()


def test_a_sequence_without_a_partner_is_refused():
    with pytest.raises(ValueError, match="'ptr' must mark an even number of sequences, .*got 3"):
        PairClassifier(encoder(), 3)(TOKENS, PTR)


def test_sinusoidal_positions_are_the_formula_and_are_not_learned():
    model = encoder(positions='sinusoidal')
    table = model.position_embedding(torch.arange(8))
    assert table[0].tolist() == 8 * [0., 1.]
    angle = 5 / 10_000 ** (6 / 16)
    assert table[5, 6:8].tolist() == pytest.approx([math.sin(angle), math.cos(angle)])
    assert not any('position' in name for name in model.state_dict())
    assert model(TOKENS, PTR).shape == (12, 16)


@pytest.mark.parametrize('kind', [CausalLanguageModel, MaskedLanguageModel])
def test_the_embedding_of_a_language_model_may_have_an_adapter(kind):
    adapted = encoder(causal=True)
    num_tokens = adapted.token_embedding.num_embeddings
    adapted.token_embedding = torch.nn.Sequential(adapted.token_embedding, torch.nn.Linear(16, 16))
    assert kind(adapted)(TOKENS, PTR)[0].size(-1) == num_tokens
    adapted.token_embedding = torch.nn.Identity()
    with pytest.raises(TypeError, match="'encoder' must.*nn.Embedding.*Identity"):
        kind(adapted)


@pytest.mark.parametrize('source', SOURCES)
def test_padding_tokens_are_removed(source):
    model = encoder(SOURCES[source](), padding_token=3)
    tokens, ptr = torch.tensor([3, 5, 3, 3, 7, 3, 3]), torch.tensor([0, 5, 7])
    x, graphs = model(tokens, ptr, return_graphs=True)
    is_token = tokens != 3
    assert not x[~is_token].any() and x[is_token].any(dim=1).all()
    if isinstance(graphs[0], BipartiteGraph):
        assert graphs[0].num_queries in (2, 4)  # of each head where heads have their own
    x.sum().backward()
    assert not model.token_embedding.weight.grad[3].any()


@pytest.mark.parametrize('checkpoint_layers', [False, True])
@pytest.mark.parametrize('source', SOURCES)
def test_rotary_positions_are_relative(source, checkpoint_layers):
    model = encoder(SOURCES[source](), positions='rotary', padding_token=3,
                    checkpoint_layers=checkpoint_layers).double()
    early, late = torch.tensor([5, 7, 9, 5, 3, 3, 3]), torch.tensor([3, 3, 3, 5, 7, 9, 5])
    outs = []
    for tokens in (early, late):
        torch.manual_seed(0)
        outs.append(model(tokens, torch.tensor([0, 7]))[tokens != 3])
    torch.testing.assert_close(*outs)
    assert not any('position' in name for name in model.state_dict())


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
def test_features_replace_embeddings(positions):
    model = encoder(positions=positions, num_segments=2).double()
    features = model.token_embedding.weight[TOKENS].detach().requires_grad_()
    out = model(features, PTR)
    torch.testing.assert_close(out, model(TOKENS, PTR))
    assert torch.autograd.grad(out.sum(), features)[0].any()
    without = encoder(positions=positions, num_segments=2, num_tokens=0).double()
    without.load_state_dict({name: value for name, value in model.state_dict().items()
                             if not name.startswith('token_embedding')})
    assert torch.equal(without(features, PTR), out)
    assert SequenceClassifier(without, 3).double()(features, PTR).shape == (3, 3)


def test_features_that_do_not_fit_are_refused():
    without = encoder(num_tokens=0)
    with pytest.raises(TypeError, match="'tokens' must.*features.*without"):
        without(TOKENS, PTR)
    with pytest.raises(ValueError, match=r"'tokens' must have shape \[num_tokens, 16\]"):
        without(torch.randn(12, 8), PTR)
    with pytest.raises(TypeError, match="'tokens' must be int64 ids .*'padding_token'"):
        encoder(padding_token=0)(torch.randn(12, 16), PTR)
    with pytest.raises(ValueError, match="'encoder' must have a vocabulary to predict tokens"):
        CausalLanguageModel(encoder(num_tokens=0, causal=True))


@pytest.mark.parametrize('options, name', [
    (dict(num_kv_heads=3), 'num_kv_heads'), (dict(positions='rotatory'), 'positions'),
    (dict(positions='rotary', head_channels=3), 'channels'),
    (dict(positions=[2, 2, 1]), 'max_length'), (dict(positions=[]), 'positions'),
    (dict(positions=[0]), 'positions'), (dict(positions=[2.5]), 'positions'),
    (dict(padding_token=20), 'padding_token')])
def test_bad_options_of_an_encoder(options, name):
    with pytest.raises((TypeError, ValueError), match=f"'{name}' must"):
        encoder(**options)


@pytest.mark.parametrize('source', [None, 'SlidingWindow(1)'])
def test_all_layers_attend_along_a_given_graph(source):
    torch.manual_seed(0)
    model = Encoder(source, **SIZES)
    tokens, ptr = torch.randint(20, (9,)), torch.tensor([0, 4, 9])
    graph = PatternSource(SlidingWindow(2)).graph(ptr)
    out, graphs = model(tokens, ptr, graph=graph, return_graphs=True)
    assert len(graphs) == 2 and all(along is graph for along in graphs)
    torch.manual_seed(0)
    torch.testing.assert_close(Encoder(SlidingWindow(2), **SIZES)(tokens, ptr), out)
    if source is None:
        with pytest.raises(ValueError, match="'graph'.*given"):
            model(tokens, ptr)


def test_a_graph_is_refused_with_a_padding_token():
    model = Encoder(Full(), **SIZES, padding_token=0)
    with pytest.raises(ValueError, match="'graph' must be None for a model with 'padding_token'"):
        model(torch.ones(4, dtype=torch.long), torch.tensor([0, 4]), graph=Full().build(4))
