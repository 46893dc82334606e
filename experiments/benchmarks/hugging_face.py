"""BERT attached to graphs, compared with masked SDPA and Hugging Face's BigBird and Longformer.

The results are the time of a training step, the part of this time that attention takes, and the
peak memory above that of the process with its model. The part of attention is the difference from a
model without attention.

    python -m experiments.benchmarks.hugging_face
    python -m experiments.benchmarks.hugging_face --quick
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor, nn

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn.hugging_face import attach
from graphattn.patterns import get

MIN_LENGTH = 1024  # the minimum of Hugging Face's BigBird
# defaults of BigBird and Longformer; both give a query 512 keys
BLOCK, NUM_RANDOM, RADIUS = 64, 3, 256
CASES = {
    'graphattn, bigbird': 'BertModel', 'SDPA under its mask': 'BertModel',
    "Hugging Face's BigBird": 'BigBirdModel', 'graphattn, longformer': 'BertModel',
    "Hugging Face's Longformer": 'LongformerModel', 'SDPA, all keys': 'BertModel',
    'no attention': 'BertModel',
}


@bench.benchmark(tokens=MIN_LENGTH, batch=1, layers=1, heads=2)
def main(
    tokens: PositiveInt = 4096,
    batch: PositiveInt = 2,
    layers: PositiveInt = 2,
    heads: PositiveInt = 12,
    rounds: PositiveInt = 2,
    device: str = 'cpu',
    dtype: Literal['float32', 'bfloat16'] = 'float32',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step of each encoder alternately, and measure the peak memory of each in a
    separate process.

    Args:
        tokens: Length of each sequence, a multiple of 512.
        batch: Number of sequences.
        layers: Number of layers.
        heads: Number of heads of 64 channels; BERT-base has 12.
        rounds: Number of measurements of each model; the median is reported.
        dtype: Dtype of the models.
    """
    setting = Setting(tokens, batch, layers, heads, getattr(torch, dtype))
    steps = {case: setting.step(case) for case in bench.progress(CASES, 'building')}
    times = bench.interleave(steps, rounds, seconds=120.)
    del steps
    peaks = bench.elsewhere(peaks_of_training, setting, start='spawn')  # with all threads
    ours, apart = 'graphattn, bigbird', times['no attention']
    rows = [{'case': case, 'train s': seconds, 'train / bigbird': seconds / times[ours],
             'attention s': seconds - apart,
             'attention / bigbird': (seconds - apart) / (times[ours] - apart),
             'peak MiB': peaks[case] / 2**20} for case, seconds in times.items()]
    report(rows, 'hugging_face', out)


class Setting(NamedTuple):
    tokens: int
    batch: int
    layers: int
    heads: int
    dtype: torch.dtype

    def model(self, case: str) -> nn.Module:
        """Build an encoder without dropout, because dropout would differ between the encoders."""
        import transformers
        torch.manual_seed(0)
        kind = getattr(transformers, CASES[case])
        width = 64 * self.heads
        options = dict(num_hidden_layers=self.layers, num_attention_heads=self.heads,
                       hidden_size=width, intermediate_size=4 * width,
                       max_position_embeddings=self.tokens + 2,
                       hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
        if kind is transformers.BigBirdModel:
            options |= dict(block_size=BLOCK, num_random_blocks=NUM_RANDOM)
        if kind is transformers.LongformerModel:
            options |= dict(attention_window=2 * RADIUS)
        model = kind(kind.config_class(**options))
        if case.startswith('graphattn'):
            attach(model, self.pattern(case))
        if case == 'no attention':
            for layer in model.encoder.layer:
                layer.attention.self.forward = only_values.__get__(layer.attention.self)
        return model.to(self.dtype).train()

    def pattern(self, case: str):
        if 'longformer' in case:
            return get('longformer', radius=RADIUS, num_global=1)
        return get('bigbird', block=BLOCK, num_random=NUM_RANDOM)

    def step(self, case: str) -> Callable[[], None]:
        """Return a function that runs a training step of the encoder with a kind of attention."""
        model = self.model(case)
        tokens = torch.randint(5, 30_000, (self.batch, self.tokens))
        given = {}
        if case == 'SDPA under its mask':
            mask = self.pattern(case).build(self.tokens, seed=0).to_mask()
            given['attention_mask'] = mask.expand(self.batch, 1, -1, -1)
        if 'ongformer' in CASES[case]:
            given['global_attention_mask'] = torch.zeros_like(tokens)
            given['global_attention_mask'][:, 0] = 1

        def train() -> None:
            model.zero_grad()
            model(tokens, **given).last_hidden_state.float().square().mean().backward()
        return train


def only_values(self: nn.Module, hidden_states: Tensor, *args: object,
                **kwargs: object) -> tuple[Tensor, None]:
    query, key, value = (linear(hidden_states) for linear in (self.query, self.key, self.value))
    return value + 0 * (query + key), None


def peaks_of_training(setting: Setting) -> dict[str, int]:
    """Return the peak memory of a training step for each kind of attention, in bytes above the
    memory before."""
    peaks = {}
    for case in bench.progress(CASES, 'memory'):
        setting._replace(tokens=MIN_LENGTH, batch=1, layers=1).step(case)()  # compiles
        peaks[case] = bench.peak_bytes(setting.step(case))
    return peaks


if __name__ == '__main__':
    bench.run_benchmark(main)
