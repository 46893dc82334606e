"""Milliseconds per decoded token, over the number of tokens so far.

    python -m experiments.benchmarks.distributed decoding
    python -m experiments.benchmarks.distributed decoding --quick

Along a window, the time of a token is proportional to the edges of the new query. With all keys,
the time is proportional to the number of tokens so far. The cases are this project's layer with a
:class:`graphattn.decoding.KeyValueCache`, and transformers' Llama with its static cache, attached
to the window or unchanged. SDPA reads the whole static cache, so the cache of each length is as
small as possible.

A second table has the time of a token after the longest prompt if several processes share the
cache, and the memory of the cache in each process. Every process has one thread.
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from jsonargparse.typing import PositiveInt
from torch import Tensor

from experiments.benchmarks.distributed import measure_elsewhere
from experiments.benchmarks.measure import benchmark, progress, stopwatch
from experiments.runs.tables import report
from graphattn.decoding import KeyValueCache
from graphattn.distributed import sequence_parallel
from graphattn.hugging_face import attach
from graphattn.layers import GraphAttention
from graphattn.patterns import Causal, Full, Pattern, SlidingWindow

HEADS, NUM_KV_HEADS, HEAD_CHANNELS = 12, 4, 64
WINDOW, ALL = SlidingWindow(64) & Causal(), Causal() & Full()
PATTERNS = {'window': WINDOW, 'all keys': ALL}
Decoder = Callable[[int, int], Callable[[], object]]


@benchmark(lengths=(64, 256), tokens=10, layers=1, processes=(2,))
def main(
    lengths: list[PositiveInt] = (512, 1024, 2048, 4096, 8192),
    tokens: PositiveInt = 50,
    layers: PositiveInt = 2,
    processes: list[PositiveInt] = (1, 2),
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Decode a few tokens after prompts of several lengths, and report the median time per token.

    Args:
        lengths: Numbers of tokens of the prompts.
        tokens: Number of tokens to decode.
        layers: Number of layers of the Llama.
        processes: Numbers of processes that share a cache, on CPUs.
    """
    cases: dict[str, Decoder] = {
        'our layer, window': partial(layer, WINDOW),
        'our layer, all keys': partial(layer, ALL),
        'Llama along the window': partial(llama, WINDOW, layers),
        'Llama, all keys by SDPA': partial(llama, None, layers)}
    rows = [{'tokens so far': length,
             **{f'{name}, ms': 1e3 * seconds_of_token(begin(length, length + tokens + 1), tokens)
                for name, begin in cases.items()}} for length in progress(lengths, 'decoding')]
    report(rows, 'decoding', out)
    if device == 'cpu':
        report(shared_rows(processes, max(lengths), tokens), 'decoding_shared', out)


@torch.no_grad()
def seconds_of_token(decode: Callable[[], object], tokens: int) -> float:
    """Decode ``tokens`` tokens one by one, and return the median seconds per token."""
    timed = stopwatch()
    return statistics.median([timed(decode) for _ in range(tokens + 1)][1:])


def new_layer(pattern: Pattern) -> GraphAttention:
    return GraphAttention(HEADS * HEAD_CHANNELS, HEADS, pattern, num_kv_heads=NUM_KV_HEADS).eval()


@torch.no_grad()
def layer(pattern: Pattern, length: int, room: int) -> Callable[[], object]:
    return after_prompt(new_layer(pattern), KeyValueCache(room), length, lambda _: slice(None))


def after_prompt(attention: Callable, cache: KeyValueCache, length: int,
                 share: Callable[[Tensor], slice]) -> Callable[[], object]:
    """Return a function that decodes one token after a prompt, of which this process has a
    ``share``."""
    x, one = torch.randn(length, HEADS * HEAD_CHANNELS), torch.tensor([0, 1])
    for part in x.split(512):
        ptr = torch.tensor([0, len(part)])
        attention(part[share(ptr)], ptr, placement=cache.step(ptr))
    return lambda: attention(x[:1], one, placement=cache.step(one))


def shared_rows(processes: list[int], length: int, tokens: int) -> list[dict[str, object]]:
    """Return a row for each case and number of processes that share a cache, with the median time
    per token of the slowest process and the largest memory of the cache in a process."""
    rows = []
    for world in progress(processes, 'shared caches'):
        sizes = dict.fromkeys(PATTERNS, length)
        for case, parts in zip(sizes, measure_elsewhere(world, partial(shared, tokens=tokens),
                                                        sizes, window=0)):
            rows.append({'case': case, 'processes': world, 'tokens so far': length,
                         **{name: max(part[name] for part in parts) for name in parts[0]}})
    return rows


@torch.no_grad()
def shared(case: str, length: int, window: int, *, tokens: int) -> dict[str, float]:
    """Decode tokens after a prompt that the processes divide."""
    torch.manual_seed(0)
    attention = sequence_parallel(new_layer(PATTERNS[case]), dist.group.WORLD)
    cache = KeyValueCache(length + tokens + 1)
    decode = after_prompt(attention, cache, length, attention.share)
    seconds = seconds_of_token(decode, tokens)
    own = int((cache.homes.owner == dist.get_rank()).sum())
    return {'ms': 1e3 * seconds,
            'keys and values, MiB': own * 2 * NUM_KV_HEADS * HEAD_CHANNELS * 4 / 2**20}


@torch.no_grad()
def llama(pattern: Pattern | None, layers: int, length: int, room: int) -> Callable[[], object]:
    from transformers import LlamaConfig, LlamaModel, StaticCache
    config = LlamaConfig(
        vocab_size=1000, hidden_size=HEADS * HEAD_CHANNELS, intermediate_size=2048,
        num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=room)
    model = LlamaModel(config).eval()
    if pattern is not None:
        attach(model, pattern)
    cache = StaticCache(config=config, max_cache_len=room)
    seen = torch.zeros(1, length, dtype=torch.long)
    for part in seen.split(512, dim=1):
        model(part, past_key_values=cache)
    return lambda: model(seen[:, :1], past_key_values=cache)
