"""Time and memory of one encoder layer of RoBERTa-base over the sequence length.

    python -m experiments.benchmarks.layer length
    python -m experiments.benchmarks.layer length --quick

The benchmark repeats Diffuser's Fig. S.4 for one sequence and a training step of one layer. Full
attention has two cases: torch's SDPA, which stores no weights, and eager attention, which stores
the weights and is the papers' baseline. The peaks of graph attention include the graph. Five hops
also have two cases: the backward pass uses saved tensors, or recomputes these tensors from the
tokens.

Performer is there because Diffuser's paper reports 1.67 times less memory than Performer takes.
Peaks are peaks of the memory in use. The process occupies more memory, because its allocator keeps
freed blocks.
"""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from matplotlib.ticker import FixedLocator
from torch import Tensor

from experiments.baselines import Performer
from experiments.benchmarks import measure as bench
from experiments.benchmarks.layer import projected
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn.layers import EncoderLayer, GraphAttention
from graphattn.patterns import SlidingWindow, get
from graphattn.sources import PatternSource

CHANNELS, HEADS = 768, 12  # Diffuser, Table S.10
DIFFUSER = get('diffuser', cls_global=True)
SPARSE = {
    'Longformer': (get('longformer', radius=256, num_global=1), {}),
    'BigBird': (get('bigbird', block=64), {}),
    'Diffuser, 1 hop': (DIFFUSER, {}),
    'Diffuser, 5 hops': (DIFFUSER, {'hops': 5, 'teleport': 0.1}),
    'Diffuser, 5 hops, recomputed': (DIFFUSER, {'hops': 5, 'teleport': 0.1, 'recompute': True}),
}


@bench.benchmark()
def main(
    nodes: list[PositiveInt] = (512, 1024, 2048, 4096, 8192),
    rounds: PositiveInt = 5,
    device: str = 'cpu',
    quick: bool = False,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step of each layer alternately, and measure the peak memory of each in a
    separate process.

    Args:
        nodes: Sequence lengths, at least 512. Eager attention takes about ``150 * n ** 2`` bytes:
            10 GB at 8,192.
        rounds: Number of measurements of each case, reduced to two for long steps. The median is
            reported.
        quick: Whether to measure the shortest length only, which ends within a minute.
    """
    nodes, rounds = (sorted(nodes)[:1], 2) if quick else (sorted(nodes), rounds)
    rows = [row for n in bench.progress(nodes, 'length') for row in measure(n, rounds)]
    report(rows, 'length', out)
    draw(rows, out)


def measure(n: int, rounds: int) -> list[dict]:
    """Time a training step at ``n`` tokens with each kind of attention, and measure its peak
    memory."""
    torch.manual_seed(0)
    x, ptr = torch.randn(n, CHANNELS, requires_grad=True), torch.tensor([0, n])
    heads = [torch.randn(n, HEADS, CHANNELS // HEADS, requires_grad=True) for _ in range(3)]
    layers = {case: encoder_layer(case) for case in CASES}
    graphs = {case: layers[case].attention.source(*heads[:2], ptr) for case in SPARSE}

    def attend(case: str) -> Tensor:
        if case in NO_EDGES:
            return NO_EDGES[case](*heads)
        return layers[case].attention.attention(*heads, graphs[case])

    seconds = bench.interleave({case: lambda case=case: train_step(layers[case], x, ptr)
                                for case in CASES}, rounds)
    alone = bench.interleave({case: lambda case=case: backpropagate(attend(case), heads)
                              for case in CASES}, rounds)
    peak = {case: bench.elsewhere(peak_of_training, case, n) for case in CASES}
    density = dict.fromkeys(FULL, 1.) | {case: graphs[case].density() for case in SPARSE}
    return [{'n': n, 'case': case, 'density': density.get(case),
             's per step': seconds[case], 'attention s': alone[case],
             'saved MiB': bench.saved_bytes(lambda layer=layer: layer(x, ptr)) / 2**20,
             'peak MiB': peak[case] / 2**20,
             **{f'{what} / {full}': values[case] / values[full]
                for what, values in (('s', seconds), ('peak', peak)) for full in NO_EDGES}}
            for case, layer in layers.items()]


def encoder_layer(case: str) -> EncoderLayer:
    """Return an encoder layer with post-norm and without dropout, with a kind of attention of
    ``CASES``."""
    if case in NO_EDGES:
        layer = EncoderLayer(CHANNELS, HEADS, norm_first=False)
        layer.attention = AttentionWithoutEdges(NO_EDGES[case])
        return layer
    pattern, diffusion = SPARSE[case]
    return EncoderLayer(CHANNELS, HEADS, PatternSource(pattern), norm_first=False, **diffusion)


class AttentionWithoutEdges(GraphAttention):
    """Attention layer of ``NO_EDGES``, which has the same projections as graph attention."""

    # Full() computes the same product, but lists its edges, which take 16 bytes per pair.
    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__(CHANNELS, HEADS)
        self.attend = attend

    def forward(self, x: Tensor, ptr: Tensor, **unused: object) -> tuple[Tensor, None]:
        return self.lin_out(self.attend(*projected(self, x)).flatten(1)), None


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weight = (query / math.sqrt(query.size(-1)) @ key.mT).softmax(dim=-1)
    return (weight @ value).transpose(0, 1)


def performer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch = (x.transpose(0, 1)[None] for x in (query, key, value))
    return _performer().attend(*batch, seed=0)[0].transpose(0, 1)


@cache
def _performer() -> Performer:
    return Performer(CHANNELS, HEADS)


FULL = {'full SDPA': bench.sdpa, 'full eager': eager}
NO_EDGES = {**FULL, 'Performer': performer}
CASES = (*NO_EDGES, *SPARSE)


def train_step(layer: EncoderLayer, x: Tensor, ptr: Tensor) -> None:
    """Run a forward and a backward pass of a layer, with gradients of the tokens, as for a layer
    inside a model."""
    backpropagate(layer(x, ptr), [x, *layer.parameters()])


def backpropagate(out: Tensor, inputs: list[Tensor]) -> None:
    # The gradient of the sum would vanish in a layer norm, up to rounding.
    torch.autograd.grad(out, inputs, torch.randn_like(out))


def peak_of_training(case: str, n: int) -> int:
    """Return the peak memory of a training step with its graph, in bytes above the memory
    before."""
    layer = encoder_layer(case)
    x = torch.randn(n, CHANNELS, requires_grad=True)
    compile_kernels(layer)
    return bench.peak_bytes(lambda: train_step(layer, x, torch.tensor([0, n])))


def compile_kernels(layer: EncoderLayer) -> None:
    """Run a small step, which compiles the kernels and leaves little freed memory to the next
    step."""
    x = torch.randn(64, CHANNELS, requires_grad=True)
    out = layer(x, torch.tensor([0, 64]), graph=SlidingWindow(1).build(64))
    backpropagate(out, [x, *layer.parameters()])


def draw(rows: list[dict], out: Path) -> None:
    """Draw the time and memory of each layer over the length of the sequence."""
    figure = bench.drawn_over(rows, 'n', {'s per step': 'seconds per step',
                                          'peak MiB': 'peak memory, MiB'}, CASES, NO_EDGES)
    for axes in figure.axes:
        axes.xaxis.set_major_locator(FixedLocator(sorted({row['n'] for row in rows})))
        axes.xaxis.set_major_formatter(axes.yaxis.get_major_formatter())
        axes.set_xlabel('tokens')
    figure.suptitle(f'Forward and backward of one layer: {HEADS} heads of {CHANNELS // HEADS}, '
                    f'batch 1, {bench.machine()}')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside right center')
    report_figure(figure, 'length', out)
