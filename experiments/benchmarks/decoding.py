"""Milliseconds per decoded token, over the number of tokens so far.

    python -m experiments.benchmarks.decoding
    python -m experiments.benchmarks.decoding --quick

Along a window, the time of a token is proportional to the edges of the new query. With all keys,
the time is proportional to the number of tokens so far. The cases are this project's layer with a
:class:`graphattn.decoding.KeyValueCache`, and transformers' Llama with its static cache, attached
to the window or unchanged. SDPA reads the whole static cache, so the cache of each length is as
small as possible.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks.measure import benchmark, log_log, progress, run_benchmark, stopwatch
from experiments.runs.tables import report
from graphattn.decoding import KeyValueCache
from graphattn.hugging_face import attach
from graphattn.layers import GraphAttention
from graphattn.patterns import Causal, Full, Pattern, SlidingWindow

HEADS, NUM_KV_HEADS, HEAD_CHANNELS = 12, 4, 64
WINDOW = SlidingWindow(64) & Causal()
Decoder = Callable[[int, int], Callable[[], object]]


@benchmark(lengths=(64, 256), tokens=10, layers=1)
def main(
    lengths: list[PositiveInt] = (512, 1024, 2048, 4096, 8192),
    tokens: PositiveInt = 50,
    layers: PositiveInt = 2,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Decode a few tokens after prompts of several lengths, and report the median time per token.

    Args:
        lengths: Numbers of tokens of the prompts.
        tokens: Number of tokens to decode.
        layers: Number of layers of the Llama.
    """
    cases: dict[str, Decoder] = {
        'our layer, window': partial(layer, WINDOW),
        'our layer, all keys': partial(layer, Causal() & Full()),
        'Llama along the window': partial(llama, WINDOW, layers),
        'Llama, all keys by SDPA': partial(llama, None, layers)}
    rows = [{'tokens so far': length,
             **{f'{name}, ms': 1e3 * seconds_of_token(begin(length, length + tokens + 1), tokens)
                for name, begin in cases.items()}} for length in progress(lengths, 'decoding')]
    report(rows, 'decoding', out)
    log_log({name: (list(lengths), [row[f'{name}, ms'] for row in rows]) for name in cases},
            'decoding', out, x='tokens so far', y='ms for one more',
            title=f'{HEADS} heads of {HEAD_CHANNELS} channels, {NUM_KV_HEADS} of keys')


@torch.no_grad()
def seconds_of_token(decode: Callable[[], object], tokens: int) -> float:
    """Return the median seconds per token, after a warm-up token."""
    timed = stopwatch()
    return statistics.median([timed(decode) for _ in range(tokens + 1)][1:])


@torch.no_grad()
def layer(pattern: Pattern, length: int, room: int) -> Callable[[], object]:
    """Return a function that decodes one token by an attention layer.

    The cache contains ``length`` tokens and has room for ``room`` tokens.
    """
    attention = GraphAttention(HEADS * HEAD_CHANNELS, HEADS, pattern,
                               num_kv_heads=NUM_KV_HEADS).eval()
    cache, x = KeyValueCache(room), torch.randn(length, HEADS * HEAD_CHANNELS)
    for part in x.split(512):
        attention(part, cache.step(torch.tensor([0, len(part)])))
    one = torch.tensor([0, 1])
    return lambda: attention(x[:1], cache.step(one))


@torch.no_grad()
def llama(pattern: Pattern | None, layers: int, length: int, room: int) -> Callable[[], object]:
    """Return a function that decodes one token by a Llama.

    The cache contains ``length`` tokens and has room for ``room`` tokens.
    """
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


if __name__ == '__main__':
    run_benchmark(main)
