"""Training steps of long encoders, compared with Hugging Face's Longformer of the same size.

The results are tokens per second, forward and backward, measured alternately, and the peak memory
above that of the process with its model.

    python -m experiments.benchmarks.hugging_face long_encoder
    python -m experiments.benchmarks.hugging_face long_encoder --quick
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from matplotlib.figure import Figure

from experiments.benchmarks.hugging_face import RADIUS, Setting
from experiments.benchmarks.measure import (
    benchmark,
    elsewhere,
    interleave,
    peak_bytes,
    progress,
)
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn.models import Encoder
from graphattn.patterns import get

THEIRS = "Hugging Face's Longformer"
# Edges of Longformer and Diffuser (Table S.10), each with its number of hops.
OURS = {'longformer': (get('longformer', radius=RADIUS, num_global=1), 1),
        'diffuser, 1 hop': (get('diffuser', cls_global=True), 1),
        'diffuser, 5 hops': (get('diffuser', cls_global=True), 5)}
BERT = dict(num_tokens=30_522, num_segments=2, norm_first=False)
CASES = (*(f'graphattn, {name}' for name in OURS), THEIRS)


@benchmark(tokens=1024, batch=1, layers=1, heads=2, rounds=2)
def main(
    tokens: PositiveInt = 4096,
    batch: PositiveInt = 1,
    layers: PositiveInt = 2,
    heads: PositiveInt = 12,
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time training steps of encoders as wide as BERT-base, and measure their peak memory.

    Args:
        tokens: Length of each sequence, a multiple of 512.
        batch: Number of sequences.
        layers: Number of layers.
        heads: Number of heads of 64 channels; BERT-base has 12.
        rounds: Number of measurements of each model; the median is reported.
    """
    setting = Setting(tokens, batch, layers, heads)
    steps = {case: step(setting, case) for case in progress(CASES, 'building')}
    times = interleave(steps, rounds, seconds=120.)
    del steps
    peaks = elsewhere(peaks_of_training, setting)
    rows = [{'case': case, 'train s': seconds, 'tokens per s': tokens * batch / seconds,
             "times Hugging Face's": times[THEIRS] / seconds, 'peak MiB': peaks[case] / 2**20}
            for case, seconds in times.items()]
    report(rows, 'long_encoder', out)
    draw(rows, setting, out)


def step(setting: Setting, case: str) -> Callable[[], None]:
    """Return a function that runs a training step of an encoder without dropout, given its kind of
    attention."""
    if case == THEIRS:
        return setting.step(case)
    pattern, hops = OURS[case.removeprefix('graphattn, ')]
    torch.manual_seed(0)
    model = Encoder(pattern, max_length=setting.tokens, num_layers=setting.layers, hops=hops,
                    teleport=.1 if hops > 1 else 0., share_source=True,
                    channels=64 * setting.heads, heads=setting.heads, **BERT)
    tokens = torch.randint(5, 30_000, (setting.batch * setting.tokens,))
    ptr = setting.tokens * torch.arange(setting.batch + 1)

    def train() -> None:
        model.zero_grad()
        model(tokens, ptr).square().mean().backward()
    return train


def peaks_of_training(setting: Setting) -> dict[str, int]:
    """Return the peak memory of the second training step of each encoder, in bytes above the memory
    of a process with the encoder."""
    return {case: peak_bytes(step(setting, case), warm_up=1) for case in progress(CASES, 'memory')}


def draw(rows: list[dict], setting: Setting, out: Path) -> None:
    """Draw bars of the throughput and peak memory of each model into ``out/long_encoder.png``."""
    figure = Figure(figsize=(9, 2.8), layout='constrained')
    names = [row['case'] for row in rows]
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ('tokens per s', 'peak MiB')):
        bars = axes.barh(names, [row[name] for row in rows],
                         color=['C7' if case == THEIRS else 'C0' for case in names])
        axes.bar_label(bars, fmt='%.4g', padding=3, fontsize='small')
        axes.margins(x=0.18)
        axes.set_xlabel(name)
    axes.invert_yaxis()
    figure.suptitle(f'Forward and backward, {setting.layers} layers of {setting.heads} heads as '
                    f'wide as those of BERT, {setting.batch} x {setting.tokens} tokens')
    report_figure(figure, 'long_encoder', out)
