"""Attention gives the same numbers wherever the keys and values of its edges come from."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from graphattn.decoding import KeyValueCache
from graphattn.distributed import sequence_parallel
from graphattn.functional import edge_feature_attention
from graphattn.functional.drive import drive
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import MaskedPairs
from graphattn.hugging_face import attach
from graphattn.layers import GraphAttention, MultiheadAttention
from graphattn.ops import LogitTerms, ProjectedFeatures
from graphattn.patterns import Causal, GlobalTokens, RandomKeys, SlidingWindow
from graphattn.placement import Cache, Exchange, Padded, Placement
from graphattn.placement.cache import Kept
from graphattn.placement.exchange import Halo
from graphattn.placement.padded import PaddedTokens
from graphattn.sources import BlockModelSource, GraphSource, LearnedMaskSource, PatternSource
from tests.clusters import cluster_source
from tests.pairwise import pairwise

SEED, CHANNELS, HEADS, LENGTH = 3, 8, 2, 7
LENGTHS = [7, 4]
PTR, SLOT = torch.tensor([0, 7, 11]), torch.arange(LENGTH)
WINDOW = SlidingWindow(1) | GlobalTokens(1)


def mask(**options) -> LearnedMaskSource:
    return LearnedMaskSource(HEADS, LENGTH, init_std=2., **options)


def frozen_mask() -> LearnedMaskSource:
    source = mask()
    source.freeze()
    return source


SOURCES: dict[str, Callable[[], GraphSource]] = {
    'pattern': lambda: PatternSource(WINDOW),
    'causal pattern': lambda: PatternSource(WINDOW & Causal()),
    'pattern of each head': lambda: PatternSource([WINDOW, RandomKeys(2)]),
    'causal pattern of each head': lambda: PatternSource([WINDOW & Causal(), Causal()]),
    'block model': lambda: BlockModelSource(HEADS, CHANNELS // HEADS, 3),
    'clusters': lambda: cluster_source(HEADS, CHANNELS // HEADS),
    'frozen mask': frozen_mask,
    'hard mask': mask,
    'soft mask': lambda: mask(mode='soft'),
}
DIFFUSIONS = {
    'attention': {},
    'one hop with a teleport': dict(teleport=.2),
    'no hop': dict(hops=0),
    'three hops': dict(hops=3),
    'three hops with a teleport': dict(hops=3, teleport=.2),
    'a teleport of each hop': dict(hops=3, teleport=(.1, .5, .9)),
    'a learned teleport': dict(hops=3, teleport=.2, learn_teleport=True),
    'the limit': dict(hops=math.inf, teleport=.2),
    'the limit of a learned teleport': dict(hops=math.inf, teleport=.2, learn_teleport=True),
}


def new_layer(source: str, diffusion: str, dropout: float = 0., **options) -> GraphAttention:
    layer = GraphAttention(CHANNELS, HEADS, SOURCES[source](), **DIFFUSIONS[diffusion],
                           dropout=dropout, **options).double()
    layer.lin_out = nn.Linear(CHANNELS, CHANNELS).double()
    if layer.teleport_logit is not None:
        layer.teleport_logit.data += torch.tensor([0., 1.])
    layer.train(dropout > 0 or source in ('block model', 'hard mask'))
    layer.source.train(source in ('block model', 'hard mask'))
    return layer


# Placements: (layer, x) to what the layer gives for the tokens of both sequences, along the graphs
# of one seed. Parameters are those of the layer, so that their gradients reach it.


def local(layer: GraphAttention, x: Tensor) -> Tensor:
    torch.manual_seed(SEED)
    return layer(x, PTR)


def local_with_a_generator(layer: GraphAttention, x: Tensor) -> Tensor:
    """Sources draw from a generator, dropout from that of torch."""
    torch.manual_seed(SEED)
    return layer(x, PTR, generator=torch.Generator().manual_seed(SEED))


def padded(layer: GraphAttention, x: Tensor) -> Tensor:
    module = MultiheadAttention(CHANNELS, HEADS, batch_first=True, source=layer.source,
                                dropout=layer.attention.dropout, **diffusion_of(layer)).double()
    set_mode(module, module.source, layer)
    projections = layer.lin_query, layer.lin_key, layer.lin_value
    parameters = {'in_proj_weight': torch.cat([linear.weight for linear in projections]),
                  'in_proj_bias': torch.cat([linear.bias for linear in projections]),
                  'out_proj.weight': layer.lin_out.weight, 'out_proj.bias': layer.lin_out.bias,
                  **teleport_of(layer, 'teleport_logit'), **of_source(layer, 'source')}
    is_token = SLOT < torch.tensor(LENGTHS).unsqueeze(1)
    tokens = in_slots(x, is_token)
    torch.manual_seed(SEED)
    out, _ = functional_call(module, parameters, (tokens,) * 3, dict(
        key_padding_mask=~is_token, need_weights=False))
    return out[is_token]


def attached(layer: GraphAttention, x: Tensor) -> Tensor:
    module = new_bert(layer).encoder.layer[0].attention.self
    set_mode(module, module.graph_source, layer)
    parameters = {f'{name}.{kind}': getattr(getattr(layer, f'lin_{name}'), kind)
                  for name in ('query', 'key', 'value') for kind in ('weight', 'bias')}
    parameters |= {**teleport_of(layer, 'graph_teleport_logit'), **of_source(layer, 'graph_source')}
    is_token = SLOT >= LENGTH - torch.tensor(LENGTHS).unsqueeze(1)
    tokens = in_slots(x, is_token)
    torch.manual_seed(SEED)
    out, *_ = functional_call(module, parameters, (tokens, is_token[:, None, None]))
    return layer.lin_out(out[is_token])


def new_bert(layer: GraphAttention) -> nn.Module:
    transformers = pytest.importorskip('transformers')
    config = transformers.BertConfig(
        vocab_size=2, hidden_size=CHANNELS, num_hidden_layers=1, num_attention_heads=HEADS,
        intermediate_size=1, max_position_embeddings=1,
        attention_probs_dropout_prob=layer.attention.dropout)
    return attach(transformers.BertModel(config).double(), layer.source, **diffusion_of(layer))


@torch.no_grad()
def decoded(layer: GraphAttention, x: Tensor) -> Tensor:
    cache, (first, second) = KeyValueCache(LENGTH, 2), x.split(LENGTHS)
    outs = [], []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        parts = first[begin:end], second[begin:end]
        ptr = torch.tensor([0, len(parts[0]), len(parts[0]) + len(parts[1])])
        out = layer(torch.cat(parts), ptr, placement=cache.step(ptr)).tensor_split([len(parts[0])])
        for own, new in zip(outs, out):
            own.append(new)
    return torch.cat([*outs[0], *outs[1]])


def parallel(layer: GraphAttention, x: Tensor) -> Tensor:
    module = sequence_parallel(layer, dist.group.WORLD)
    torch.manual_seed(SEED)
    return module(x, PTR, generator=torch.Generator().manual_seed(SEED))


def decoded_in_parallel(layer: GraphAttention, x: Tensor) -> Tensor:
    return decoded(sequence_parallel(layer, dist.group.WORLD), x)


PLACEMENTS = dict(padded=padded, attached=attached, decoded=decoded, parallel=parallel,
                  decoded_in_parallel=decoded_in_parallel)
REFERENCES = {'parallel': local_with_a_generator}  # for all others ``local``


def refusal(placement: str, source: str, diffusion: str) -> str | None:
    """Return the refusal of a placement that cannot give the values."""
    if placement == 'decoded_in_parallel' and 'limit' in diffusion:
        return "'module' must not have infinitely"
    if placement.startswith('decoded'):
        if source in ('block model', 'clusters', 'hard mask', 'soft mask'):
            return "'source' must"
        if 'limit' in diffusion:
            return "'hops' must be finite"
        return None if 'causal' in source else "'source' must be causal"
    if placement == 'parallel':
        if 'limit' in diffusion:
            return "'module' must not have infinitely"
        return "'source' must be a frozen mask" if source in ('soft mask', 'hard mask') else None
    return None


def diffusion_of(layer: GraphAttention) -> dict:
    return dict(hops=layer.attention.hops, teleport=layer.attention.teleport,
                learn_teleport=layer.teleport_logit is not None)


def teleport_of(layer: GraphAttention, name: str) -> dict[str, Tensor]:
    return {} if layer.teleport_logit is None else {name: layer.teleport_logit}


def of_source(layer: GraphAttention, name: str) -> dict[str, Tensor]:
    return {f'{name}.{own}': tensor for own, tensor in [*layer.source.named_parameters(),
                                                       *layer.source.named_buffers()]}


def set_mode(module: nn.Module, source: GraphSource, layer: GraphAttention) -> None:
    is_drawn = layer.source.training  # which may be the source of both
    module.train(layer.training)
    source.train(is_drawn)


def in_slots(x: Tensor, is_token: Tensor) -> Tensor:
    """Tokens in their slots, and elsewhere what must reach nothing."""
    slots = x.new_full((*is_token.shape, CHANNELS), 9.)
    return slots.index_put(is_token.nonzero().unbind(1), x)


@pytest.fixture(scope='module', autouse=True)
def one_process(tmp_path_factory):
    num_threads = torch.get_num_threads()
    store = dist.FileStore(str(tmp_path_factory.mktemp('group') / 'store'), 1)
    dist.init_process_group('gloo', store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(num_threads)


def numbers(place: Callable, layer: GraphAttention, x: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of tokens and parameters where there are any."""
    x = x.clone().requires_grad_()
    out = place(layer, x)
    found = {'output': out.detach()}
    if out.requires_grad:
        inputs = {'x': x, **dict(layer.named_parameters())}
        grads = torch.autograd.grad((out * out.detach().cos()).sum(), list(inputs.values()),
                                    materialize_grads=True)
        found |= dict(zip(inputs, grads))
    return found


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    expected = {name: expected[name] for name in found}
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize('placement, source, diffusion', [
    *pairwise(PLACEMENTS, SOURCES, DIFFUSIONS, among=lambda *case: refusal(*case) is None),
    *pairwise(PLACEMENTS, SOURCES, DIFFUSIONS, among=lambda *case: refusal(*case) is not None)])
def test_a_placement_gives_what_one_ragged_batch_gives(placement, source, diffusion):
    layer, x = new_layer(source, diffusion), torch.randn(11, CHANNELS, dtype=torch.double)
    place, message = PLACEMENTS[placement], refusal(placement, source, diffusion)
    if message is not None:
        with pytest.raises((ValueError, NotImplementedError), match=message):
            numbers(place, layer, x)
        return
    expected = numbers(local, layer, x)
    assert expected['x'].abs().sum() > 0
    assert_same(numbers(place, layer, x), expected)


@pytest.mark.parametrize('placement, source, diffusion', pairwise(
    ['decoded', 'parallel', 'decoded_in_parallel'], SOURCES,
    ['attention', 'three hops', 'the limit'], among=lambda *case: refusal(*case) is None))
def test_a_placement_has_the_softcap_and_the_sinks_of_the_layer(placement, source, diffusion):
    x = torch.randn(11, CHANNELS, dtype=torch.double)
    layer = new_layer(source, diffusion, softcap=0.2, sinks=True)
    layer.sink.data += torch.tensor([1., -1.])
    expected = numbers(local, layer, x)
    assert expected['sink'].all()
    assert_same(numbers(PLACEMENTS[placement], layer, x), expected)


@pytest.mark.parametrize('placement, source, diffusion', pairwise(
    ['padded', 'attached', 'parallel'], SOURCES,
    ['attention', 'three hops', 'a learned teleport'],
    among=lambda *case: refusal(*case) is None))
def test_a_placement_drops_the_weights_that_one_ragged_batch_drops(placement, source, diffusion):
    layer = new_layer(source, diffusion, dropout=.4)
    x = torch.randn(11, CHANNELS, dtype=torch.double)
    expected = numbers(REFERENCES.get(placement, local), layer, x)
    assert_same(numbers(PLACEMENTS[placement], layer, x), expected)
    layer.attention.dropout = 0.
    assert not torch.allclose(expected['output'], local(layer, x))


@pytest.mark.parametrize('placement, source, diffusion, value', pairwise(
    PLACEMENTS, ['pattern', 'causal pattern of each head', 'frozen mask'],
    ['attention', 'three hops', 'a learned teleport'], [math.nan, math.inf],
    among=lambda *case: refusal(*case[:3]) is None))
def test_what_is_not_finite_reaches_whom_it_reaches_in_one_ragged_batch(placement, source,
                                                                       diffusion, value):
    layer, x = new_layer(source, diffusion), torch.randn(11, CHANNELS, dtype=torch.double)
    x[5, 2] = value
    expected = local(layer, x)
    assert 0 < (~expected.isfinite()).sum() < expected.numel()
    torch.testing.assert_close(PLACEMENTS[placement](layer, x), expected, equal_nan=True)


@pytest.mark.parametrize('diffusion', ['attention', 'three hops', 'a learned teleport'])
@pytest.mark.parametrize('placement', ['local', 'decoded', 'parallel', 'decoded_in_parallel'])
def test_hooks_of_the_operator_fire_in_every_placement(placement, diffusion):
    layer, x = new_layer('causal pattern', diffusion), torch.randn(11, CHANNELS).double()
    place, calls, hops = {'local': local, **PLACEMENTS}[placement], [], layer.attention.hops
    layer.attention.register_forward_hook(lambda *_: calls.append('operator'))
    expected = place(layer, x)
    times = 3 if placement.startswith('decoded') else 1  # three steps
    assert calls == times * ['operator']
    layer.attention.register_message_forward_hook(lambda *_: calls.append('message'))
    torch.testing.assert_close(place(layer, x), expected)
    assert calls.count('message') == times * hops


@pytest.mark.parametrize('placement', ['decoded', 'parallel'])
def test_a_soft_mask_in_the_place_of_rows_is_refused(placement):
    layer, x = new_layer('causal pattern', 'attention'), torch.randn(11, CHANNELS).double()
    soft_mask = mask(mode='soft')(*torch.randn(2, 11, HEADS, 4), PTR)
    options = dict(graph=soft_mask)
    with torch.no_grad(), pytest.raises(TypeError, match='must be a BipartiteGraph.* freeze'):
        if placement == 'decoded':
            layer(x, PTR, placement=KeyValueCache(LENGTH, 2).step(PTR), **options)
        else:
            sequence_parallel(layer, dist.group.WORLD)(x, PTR, **options)


@pytest.mark.parametrize('terms, options', [
    (dict(bias=torch.zeros(65)), {}), (dict(gate=torch.ones(65)), {}),
    (dict(features=ProjectedFeatures(torch.ones(65, 1), torch.ones(HEADS, 4, 1))), {}),
    ({}, dict(needs_weights=True))], ids=['bias', 'gate', 'features', 'weights'])
def test_a_soft_mask_takes_nothing_that_is_of_edges(terms, options):
    nodes = torch.randn(3, 11, HEADS, 4).double()
    pairs = MaskedPairs(mask(mode='soft')(*nodes[:2], PTR), PTR)
    assert drive(*nodes, pairs, LogitTerms(scale=None), 1, 0.)[0].shape == nodes[0].shape
    with pytest.raises(ValueError, match="'graph' must be a BipartiteGraph .* freeze"):
        drive(*nodes, pairs, LogitTerms(scale=None, **terms), 1, 0., **options)


# Features of edges. No layer takes them in every placement, so placements are driven here.


def drive_local(query, key, value, graph, terms, owners, **options) -> Tensor:
    return drive(query, key, value, graph, terms, placement=Placement(owners), **options)[0]


def drive_padded(query, key, value, graph, terms, owners, **options) -> Tensor:
    is_token = SLOT < torch.tensor(LENGTHS).unsqueeze(1)
    tokens = PaddedTokens(2, LENGTH, LENGTH, query.device, is_token)
    placement = Padded(tokens, graph, owners, hops_end=True)
    key, value = (x.new_full((2, LENGTH, *x.shape[1:]), 9.).index_put(is_token.nonzero().unbind(1),
                                                                      x) for x in (key, value))
    out, _ = drive(query, key, value, placement.graph, terms, placement=placement, **options)
    return out[is_token]


@torch.no_grad()
def drive_decoded(query, key, value, graph, terms, owners, **options) -> Tensor:
    kept, outs, num_tokens = Kept([0]), [], len(query)
    for rows in torch.arange(num_tokens).split([3, 1, num_tokens - 4]):
        nodes = (rows + num_tokens * torch.arange(owners or 1).unsqueeze(1)).flatten()
        own = terms
        if terms.features is not None:
            attr, projection = terms.features
            attr = attr[torch.isin(graph.query, nodes)]
            own = terms._replace(features=ProjectedFeatures(attr, projection))
        of_step = BipartiteGraph.from_mask(graph.to_mask()[nodes])
        outs.append(drive(*(x[rows] for x in (query, key, value)), of_step, own,
                          placement=Cache(owners, kept, nodes, of_step), **options)[0])
    return torch.cat(outs)


def drive_parallel(query, key, value, graph, terms, owners, **options) -> Tensor:
    nodes = torch.arange(graph.num_keys)
    halo = Halo(graph, nodes, [len(nodes)], [len(nodes)], None)
    return drive(query, key, value, graph, terms,
                 placement=Exchange(owners, halo, dist.group.WORLD), **options)[0]


DRIVES = dict(local=drive_local, padded=drive_padded, decoded=drive_decoded,
              parallel=drive_parallel)


def features_of_edges(owners: int | None) -> tuple[list[Tensor], BipartiteGraph, LogitTerms]:
    """Tokens of all heads, a causal graph, and the features of its edges."""
    patterns = [WINDOW & Causal(), Causal()][:owners or 1]
    graph = BipartiteGraph.batch([pattern.build(length) for pattern in patterns
                                  for length in LENGTHS])
    generator = torch.Generator().manual_seed(SEED)
    *nodes, attr, projection = (
        torch.randn(shape, generator=generator, dtype=torch.double).requires_grad_()
        for shape in (*[(11, HEADS, 4)] * 3, (graph.num_edges, 3), (HEADS, 4, 3)))
    return nodes, graph, LogitTerms(scale=None, features=ProjectedFeatures(attr, projection))


@pytest.mark.parametrize('owners', [None, HEADS])
@pytest.mark.parametrize('placement', DRIVES)
def test_every_placement_takes_features_of_edges(placement, owners):
    nodes, graph, terms = features_of_edges(owners)
    attr, projection = terms.features
    head, parts = graph.query // 11, []
    for own in range(owners or 1):
        heads = slice(own, own + 1) if owners else slice(None)
        part = BipartiteGraph.from_mask(graph.to_mask()[11 * own:, 11 * own:][:11, :11])
        parts.append(edge_feature_attention(*(x[:, heads] for x in nodes), part, attr[head == own],
                                            projection[heads]))
    expected = torch.cat(parts, dim=1)
    for backend in ('auto', 'gather'):
        out = DRIVES[placement](*nodes, graph, terms, owners, hops=1, teleport=0., backend=backend)
        torch.testing.assert_close(out, expected if out.requires_grad else expected.detach())
        if out.requires_grad:
            inputs = [*nodes, attr, projection]
            torch.testing.assert_close(
                torch.autograd.grad(out.sin().sum(), inputs),
                torch.autograd.grad(expected.sin().sum(), inputs, retain_graph=True))


@pytest.mark.parametrize('diffusion', [dict(hops=2, teleport=0.), dict(hops=1, teleport=.2),
                                       dict(hops=math.inf, teleport=.2)], ids=str)
@pytest.mark.parametrize('placement', DRIVES)
def test_features_of_edges_that_would_travel_are_refused(placement, diffusion):
    nodes, graph, terms = features_of_edges(None)
    with pytest.raises(ValueError, match="'hops' must be 1, .* 'edge_bias'"):
        DRIVES[placement](*nodes, graph, terms, None, **diffusion)


@pytest.mark.parametrize('placement', DRIVES)
def test_infinitely_many_hops_are_right_or_refused(placement):
    nodes, graph, _ = features_of_edges(None)
    given, forever = (*nodes, graph, LogitTerms(scale=None)), dict(hops=math.inf, teleport=.2)
    if placement in ('decoded', 'parallel'):  # each hop fetches values
        with pytest.raises(ValueError, match="'hops' must be finite .*got inf"):
            DRIVES[placement](*given, None, **forever)
    else:
        torch.testing.assert_close(DRIVES[placement](*given, None, **forever),
                                   drive(*given, **forever)[0])


@pytest.mark.parametrize('needs_weights', [False, True])
@pytest.mark.parametrize('backend', ['gather', 'numba'])
def test_features_and_bias_and_gate_go_together(backend, needs_weights):
    nodes, graph, terms = features_of_edges(None)
    bias, gate = torch.randn(2, graph.num_edges).double()
    terms = terms._replace(bias=bias, gate=gate)
    torch.manual_seed(SEED)
    out, weight = drive(*nodes, graph, terms._replace(dropout_p=.3), 1, 0., backend=backend,
                        needs_weights=needs_weights)
    torch.manual_seed(SEED)
    expected, _ = drive(*nodes, graph, terms._replace(dropout_p=.3), 1, 0., backend='reference')
    torch.testing.assert_close(out, expected)
    assert (weight is not None) == needs_weights
