"""Cases of decoding: several processes share a cache, and compute what one computes from whole
sequences."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphattn.decoding import KeyValueCache
from graphattn.distributed import SequenceParallel, sequence_parallel
from graphattn.layers import GraphAttention
from graphattn.models import Encoder
from graphattn.patterns import Causal, GlobalTokens, RandomKeys, SlidingWindow
from graphattn.placement import Exchange
from graphattn.sources import GraphSource, PatternSource

LENGTH, CHANNELS, HEADS = 40, 8, 2
WINDOW = SlidingWindow(3) | GlobalTokens(1)
SOURCES = {'a window': lambda: PatternSource(WINDOW & Causal()),
           'all earlier tokens': lambda: PatternSource(Causal()),
           'a graph of each head': lambda: PatternSource([WINDOW & Causal(),
                                                          RandomKeys(3) & Causal()])}
OPTIONS = {'': {}, 'three hops': dict(hops=3, teleport=.2),
           'a learned teleport': dict(hops=2, teleport=.2, learn_teleport=True),
           'keys that heads share': dict(num_kv_heads=1), 'softcap and sinks': dict(
               softcap=2., sinks=True), 'a backend without parts': dict(backend='gather')}
# Numbers of new tokens of both sequences, and whether the processes divide them.
PROMPT = [([20, 9], True), *[([1, 1], False)] * 3, ([0, 1], False), ([5, 11], True),
          ([3, 2], False)]
NO_PROMPT = [([1, 0], False), ([6, 4], False), ([10, 14], True)]


def decode(parallel: SequenceParallel, x: Tensor, plan: list[tuple[list[int], bool]],
           cache: KeyValueCache) -> list[Tensor]:
    """Return the outputs of each sequence, as this process sees them; those of other processes are
    NaN."""
    outs = [[], []]
    for counts, is_divided in plan:
        tokens = torch.cat([x[b, seen:seen + count]
                            for b, (seen, count) in enumerate(zip(cache.seen, counts))])
        ptr = torch.tensor([0, counts[0], sum(counts)])
        own = parallel.share(ptr) if is_divided else slice(len(tokens))
        part = parallel(tokens[own], ptr, placement=cache.step(ptr))
        out = part.new_full((len(tokens), part.size(1)), torch.nan)
        out[own] = part
        for of_sequence, rows in zip(outs, out.split(counts)):
            of_sequence.append(rows)
    return [torch.cat(of_sequence) for of_sequence in outs]


@torch.no_grad()
def compare(module: nn.Module, x: Tensor, plan: list[tuple[list[int], bool]]) -> dict[str, float]:
    module = module.double().eval()
    cache = KeyValueCache(LENGTH, 2)
    outs = decode(sequence_parallel(copy.deepcopy(module), dist.group.WORLD), x, plan, cache)
    differences = {}
    for number, (tokens, out) in enumerate(zip(x, outs)):
        whole = tokens[:cache.seen[number]]
        # Patterns know the final length.
        expected = module(tokens, torch.tensor([0, LENGTH]))[:len(whole)]
        own = ~out.isnan().any(1)
        differences[f'sequence {number}'] = float((out - expected)[own].abs().max())
    sizes = torch.tensor([sum(cache.seen), int((cache.homes.owner == dist.get_rank()).sum())])
    most = sum(cache.seen) / dist.get_world_size() + 8
    differences['tokens of this process'] = float(sizes[1] > most)
    return differences


def layer(source: str, options: str, plan: list[tuple[list[int], bool]]) -> dict[str, float]:
    torch.manual_seed(0)
    module = GraphAttention(CHANNELS, HEADS, SOURCES[source](), **OPTIONS[options])
    with torch.no_grad():
        for parameter in (module.sink, module.teleport_logit):
            if parameter is not None:
                parameter += torch.randn(HEADS)
    return compare(module, torch.randn(2, LENGTH, CHANNELS, dtype=torch.double), plan)


def encoder() -> dict[str, float]:
    """Compare an encoder in which one layer runs twice in each pass."""
    torch.manual_seed(0)
    module = Encoder(SOURCES['a window'](), num_tokens=11, max_length=LENGTH, channels=CHANNELS,
                     heads=HEADS, num_layers=3)
    module.layers[2] = module.layers[0]
    return compare(module, torch.randint(11, (2, LENGTH)), PROMPT)


def attached(**options) -> dict[str, float]:
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import TokenModel, attach
    torch.manual_seed(0)
    model = transformers.GPT2Model(transformers.GPT2Config(
        vocab_size=50, n_embd=CHANNELS, n_layer=2, n_head=HEADS, n_positions=LENGTH))
    return compare(TokenModel(attach(model, WINDOW, **options)), torch.randint(50, (2, LENGTH)),
                   PROMPT)


def repeated_after_a_failure() -> dict[str, float]:
    """A step that fails in a layer before any token is cached can be repeated, divided or not."""
    torch.manual_seed(0)
    module = GraphAttention(CHANNELS, HEADS, SOURCES['a window']()).double().eval()
    parallel, cache = sequence_parallel(copy.deepcopy(module), dist.group.WORLD), KeyValueCache(9)
    x, ptr = torch.randn(9, CHANNELS, dtype=torch.double), torch.tensor([0, 9])

    def fail(*args) -> None:
        raise RuntimeError('out of memory')

    with torch.no_grad():
        expected = module(x, ptr)
        handle = parallel.module.attention.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match='out of memory'):
            parallel(x, ptr, placement=cache.step(ptr))
        handle.remove()
        own = parallel.share(ptr)
        out = parallel(x[own], ptr, placement=cache.step(ptr))
    return {'output': float((out - expected[own]).abs().max())}


def in_other_modes(*modes: Callable) -> dict[str, float]:
    torch.manual_seed(0)
    module = GraphAttention(CHANNELS, HEADS, SOURCES['a window'](), hops=2).double().eval()
    parallel, cache = sequence_parallel(copy.deepcopy(module), dist.group.WORLD), KeyValueCache(12)
    x, ptr, found = torch.randn(12, CHANNELS, dtype=torch.double), torch.tensor([0, 6]), []
    own = parallel.share(ptr)
    for mode, part in zip(modes, x.split(6)):
        with mode():
            found.append(parallel(part[own], ptr, placement=cache.step(ptr)))
    expected = [part[own] for part in module(x, torch.tensor([0, 12])).split(6)]
    return {'output': float((torch.cat(found) - torch.cat(expected)).detach().abs().max())}


@torch.no_grad()
def bytes_of_a_token() -> dict[str, float]:
    """A new token costs the same messages after few keys and after many."""
    sent, exchange = [], Exchange._exchanged
    gather = dist.all_to_all_single

    def counting(arrived, rows, *given) -> None:
        sent.append(rows.numel())
        gather(arrived, rows, *given)

    module = GraphAttention(CHANNELS, HEADS, PatternSource(Causal())).double().eval()
    parallel, cache = sequence_parallel(module, dist.group.WORLD), KeyValueCache(LENGTH)
    x, totals = torch.randn(LENGTH, CHANNELS, dtype=torch.double), []
    dist.all_to_all_single, Exchange._exchanged = counting, None
    try:
        for token in x.split(1):
            sent.clear()
            parallel(token, torch.tensor([0, 1]), placement=cache.step(torch.tensor([0, 1])))
            totals.append(sum(sent))
    finally:
        dist.all_to_all_single, Exchange._exchanged = gather, exchange
    return {'messages': float(len({*totals[1:]}) > 1)}


# Each source with each kind of prompt, and each option along one source or two.
LAYERS = [
    *((source, '', plan) for source in SOURCES for plan in ('a prompt', 'no prompt')),
    ('a window', 'three hops', 'a prompt'), ('a graph of each head', 'three hops', 'no prompt'),
    ('all earlier tokens', 'a learned teleport', 'a prompt'),
    ('a graph of each head', 'a learned teleport', 'a prompt'),
    ('a window', 'keys that heads share', 'no prompt'),
    ('all earlier tokens', 'softcap and sinks', 'no prompt'),
    ('a graph of each head', 'softcap and sinks', 'a prompt'),
    ('a window', 'a backend without parts', 'a prompt'),
    ('a graph of each head', 'a backend without parts', 'no prompt')]
CASES = {
    **{f'decoded along {source}{options and ", " + options}, {plan}':
       partial(layer, source, options, PROMPT if plan == 'a prompt' else NO_PROMPT)
       for source, options, plan in LAYERS},
    'decoded by an encoder': encoder,
    'decoded by an attached GPT-2': attached,
    'decoded by an attached GPT-2, two hops': lambda: attached(hops=2, teleport=.2),
    'decoded after a failure': repeated_after_a_failure,
    'decoded in inference mode first': partial(in_other_modes, torch.inference_mode, torch.no_grad),
    'decoded in inference mode last': partial(in_other_modes, torch.no_grad, torch.inference_mode),
    'decoded, bytes of a token': bytes_of_a_token,
}

OF_FOUR = {name for name in CASES if name.endswith((' a prompt', 'encoder', 'token'))}


# What must be refused ################################################################


@torch.no_grad()
def decoded(source: GraphSource | None = None, counts: int = 9, own: slice | None = None,
            cache: KeyValueCache | None = None, is_training: bool = False) -> None:
    torch.manual_seed(0)
    module = GraphAttention(CHANNELS, HEADS, source or PatternSource(WINDOW & Causal()),
                            dropout=.1).double().train(is_training)
    parallel = sequence_parallel(module, dist.group.WORLD)
    ptr, cache = torch.tensor([0, counts]), cache or KeyValueCache(LENGTH)
    own = parallel.share(ptr) if own is None else own
    x = torch.randn(counts, CHANNELS, dtype=torch.double)
    parallel(x[own], ptr, placement=cache.step(ptr), own=own)


def later_rows() -> None:
    """Only the queries of the last process have later keys."""
    class LastAhead(PatternSource):
        def shard_graph(self, shard, generator=None):
            is_last = dist.get_rank() == dist.get_world_size() - 1
            source = PatternSource(SlidingWindow(1)) if is_last else PatternSource(
                SlidingWindow(1) & Causal())
            return source.shard_graph(shard, generator)

    decoded(LastAhead(SlidingWindow(1)))


def filled_by_one() -> KeyValueCache:
    cache, ptr = KeyValueCache(LENGTH), torch.tensor([0, 3])
    with torch.no_grad():
        GraphAttention(CHANNELS, HEADS, PatternSource(Causal()))(
            torch.randn(3, CHANNELS), ptr, placement=cache.step(ptr))
    return cache


def read_by_one() -> None:
    torch.manual_seed(0)
    cache, one = KeyValueCache(LENGTH), torch.tensor([0, 1])
    module = GraphAttention(CHANNELS, HEADS, PatternSource(Causal())).double().eval()
    with torch.no_grad():
        for along in (sequence_parallel(module, dist.group.WORLD), module):
            along(torch.randn(1, CHANNELS, dtype=torch.double), one, placement=cache.step(one))


REFUSED = {
    'later keys for one process': (later_rows, r"ValueError: 'source' must be causal"),
    'later keys for all': (partial(decoded, PatternSource(SlidingWindow(1)), own=slice(9)),
                           r"ValueError: 'source' must be causal"),
    'a token for several processes': (
        partial(decoded, counts=1),
        r"ValueError: 'ptr' must cover at least one token .* pass all new tokens in every process"),
    'dropout in decoding': (
        partial(decoded, is_training=True), r"ValueError: 'dropout' must be off"),
    'a cache of one process': (
        lambda: decoded(cache=filled_by_one()),
        r"ValueError: 'ptr' must belong to an empty cache, .*filled alone"),
    'a shared cache for one process': (
        read_by_one,
        r"ValueError: 'placement' must not belong to a cache that several processes share"),
}
