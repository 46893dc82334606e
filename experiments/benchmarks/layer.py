"""An attention layer whose heads sample their graphs, compared with a window and full attention.

The results are time, and peak memory compared with a lower bound. The bound is the bytes of query,
key, value, output and their gradients, of the keys of all edges, and of the edge probabilities
p_ij. Freed memory is kept, as in training (:func:`graphattn.freed_memory.keeping_freed_memory`);
``--keep_freed_memory false`` shows the effect.

The layers of a row are timed alternately in one process. The dense algorithm that SBM-Transformer's
authors released is timed in another process, because it takes 2 GiB. After it, the arrays of a
sampled layer use new pages of memory, with which a step took 435 ms instead of 250.

    python -m experiments.benchmarks.layer
    python -m experiments.benchmarks.layer --quick
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jsonargparse.typing import PositiveInt
from matplotlib.ticker import NullLocator
from torch import Tensor, nn

from experiments.benchmarks import measure as bench
from experiments.runs.figures import report_figure
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.freed_memory import keeping_freed_memory
from graphattn.layers import GraphAttention
from graphattn.patterns import Full, Pattern, SlidingWindow
from graphattn.sources import BlockModelSource, PatternSource

CASES = ('sampled', 'window', 'full attention', 'released algorithm')
MAX_DENSE_LENGTH = 8192  # the released algorithm allocates several arrays of 4 * heads * n^2 bytes


@bench.benchmark(nodes=(1024,), densities=(0.02,), rounds=2)
def main(
    nodes: list[PositiveInt] = (1024, 4096, 16384),
    densities: list[bench.Density | Literal['initial']] = (0.02, 0.1, 0.25, 0.4, 'initial'),
    heads: PositiveInt = 4,
    channels: PositiveInt = 32,
    clusters: PositiveInt = 128,
    rounds: PositiveInt = 7,
    keep_freed_memory: bool = True,
    device: str = 'cpu',
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time a training step and inference of each layer alternately, and measure the peak memory of
    each in a separate process.

    Args:
        nodes: Sequence lengths; lengths above 8,192 tokens are measured at the first density only.
        densities: Densities of the sampled graphs, or 'initial' for the density before training.
        heads: Number of heads.
        clusters: Number of clusters of the block models.
        keep_freed_memory: Whether the process keeps freed memory, as in training.
    """
    settings = [Setting(n, density, heads, channels, clusters)
                for n, density in product(nodes, densities)
                if n <= MAX_DENSE_LENGTH or density == densities[0]]
    rows = [row for setting in bench.progress(settings, 'layer')
            for row in measure(setting, rounds, keep_freed_memory)]
    report(rows, 'layer', out)
    draw(rows, out)


class Setting(NamedTuple):
    n: int
    density: float | str
    heads: int
    channels: int
    clusters: int

    def tokens(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(self.n, self.heads * self.channels), torch.tensor([0, self.n])

    def sampled(self) -> GraphAttention:
        source = BlockModelSource(self.heads, self.channels, self.clusters, exploration=0.)
        layer = GraphAttention(self.heads * self.channels, self.heads, source)
        if self.density != 'initial':
            bring_to_density(source, self.density)
        return layer

    def along(self, pattern: Pattern) -> GraphAttention:
        return GraphAttention(self.heads * self.channels, self.heads, PatternSource(pattern))

    def window(self) -> SlidingWindow:
        density = 0.25 if self.density == 'initial' else self.density
        return SlidingWindow(round(self.n * (1 - math.sqrt(1 - density))))

    def layer(self, case: str) -> tuple[GraphAttention, Callable[[], Tensor]]:
        """Return a layer, and a function without arguments that applies it to random tokens."""
        x, ptr = self.tokens()
        if case == 'window':
            layer = self.along(self.window())
            return layer, lambda: layer(x, ptr)
        if case == 'full attention':
            layer = self.along(Full())
            return layer, lambda: full_attention(layer, x)
        layer = self.sampled()
        if case == 'sampled':
            return layer, lambda: layer(x, ptr)
        return layer, lambda: released_algorithm(layer, x, ptr)


def measure(setting: Setting, rounds: int, keep_freed_memory: bool) -> list[dict]:
    cases = CASES if setting.n <= MAX_DENSE_LENGTH else CASES[:-1]
    times = [bench.elsewhere(times_of, setting, part, rounds, keep_freed_memory, start='spawn')
             for part in (cases[:3], cases[3:]) if part]
    seconds = {run: {case: part[run][case] for part in times for case in part[run]}
               for run in ('train', 'infer')}
    graphs = {case: setting.layer(case)[0](*setting.tokens(), return_graph=True)[1]
              for case in ('sampled', 'window')}
    peak = {case: bench.elsewhere(peak_of_training, setting, case) for case in cases}
    return [{'n': setting.n, 'density': setting.density,
             'density reached': graphs[case].density() if case in graphs else 1., 'case': case,
             'train ms': 1e3 * seconds['train'][case], 'inference ms': 1e3 * seconds['infer'][case],
             'train / full': seconds['train'][case] / seconds['train']['full attention'],
             'inference / full': seconds['infer'][case] / seconds['infer']['full attention'],
             'peak MiB': peak[case] / 2**20,
             'floor MiB': floor_bytes(setting, graphs.get(case)) / 2**20}
            for case in cases]


def times_of(setting: Setting, cases: tuple[str, ...], rounds: int,
             keep_freed_memory: bool) -> dict[str, dict[str, float]]:
    """Return the median seconds of a training step and of inference of each layer, as ``{'train':
    {case: seconds}, 'infer': {case: seconds}}``."""
    layers = {case: setting.layer(case) for case in cases}
    with keeping_freed_memory() if keep_freed_memory else nullcontext():
        return {run.__name__: bench.interleave({case: partial(run, *own)
                                                for case, own in layers.items()}, rounds)
                for run in (train, infer)}


def train(layer: nn.Module, forward: Callable[[], Tensor]) -> None:
    torch.autograd.grad(forward().sum(), list(layer.parameters()), allow_unused=True)


def infer(layer: nn.Module, forward: Callable[[], Tensor]) -> None:
    layer.eval()
    with torch.no_grad():
        forward()
    layer.train()


def peak_of_training(setting: Setting, case: str) -> int:
    """Return the peak memory of a training step of a layer with its graph, in bytes."""
    compiled = setting._replace(n=64, density=0.5).layer(case)
    train(*compiled)
    own = setting.layer(case)
    return bench.peak_bytes(lambda: train(*own), warm_up=1)


def floor_bytes(setting: Setting, graph: BipartiteGraph | None) -> int:
    """Return a lower bound for the memory of a training step of a layer, in bytes."""
    # Query, key, value and output with their gradients, edges and their probabilities; neither
    # projections nor memberships.
    nodes = 8 * 4 * setting.n * setting.heads * setting.channels
    if graph is None:
        return nodes
    edges = [*graph.csr, *([] if graph.edge_prob is None else [graph.edge_prob])]
    return nodes + sum(tensor.nbytes for tensor in edges)


def draw(rows: list[dict], out: Path) -> None:
    """Draw the time and memory of each layer over the requested densities, at the largest measured
    length."""
    rows = [row for row in rows if row['density'] != 'initial']
    if not rows:
        print("no figure, because it requires a density other than 'initial'")
        return
    nodes = [row['n'] for row in rows]
    n = max(nodes, key=lambda n: (nodes.count(n), n))
    rows = [row for row in rows if row['n'] == n]
    densities = sorted({row['density'] for row in rows})
    figure = bench.drawn_over(rows, 'density', {'train ms': 'ms per training step',
                                                'peak MiB': 'peak memory, MiB'}, CASES)
    for axes in figure.axes:
        axes.set_xlabel('density')
        axes.set_xticks(densities, [f'{density:.0%}' for density in densities])
        axes.xaxis.set_minor_locator(NullLocator())
    floor = {row['density']: row['floor MiB'] for row in rows if row['case'] == 'sampled'}
    axes.plot(densities, [floor[density] for density in densities], color='grey', linestyle='--',
              marker='.', label='floor of sampled')
    figure.suptitle(f'A layer at {n:,} tokens, {bench.machine()}')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside right center')
    report_figure(figure, 'layer', out)


def bring_to_density(source: BlockModelSource, density: float) -> None:
    """Change the parameters of a block model so that the probability of each edge is
    ``density``."""
    # All memberships become sqrt(density), which suffices because the mixing matrix sums to 1.
    with torch.no_grad():
        source.centroid.fill_(1.)
        source.weight2.zero_()
        logit = torch.logit(torch.tensor(density).sqrt())
        source.bias2.fill_(float(logit) / source.head_channels)


def projected(layer: GraphAttention, x: Tensor) -> list[Tensor]:
    """Return the queries, keys and values of tokens, ``[num_tokens, heads, channels]``."""
    return [linear(x).unflatten(-1, (layer.heads, -1))
            for linear in (layer.lin_query, layer.lin_key, layer.lin_value)]


def full_attention(layer: GraphAttention, x: Tensor) -> Tensor:
    """Return the output of an attention layer if its attention is replaced by torch's dense
    attention."""
    return layer.lin_out(bench.sdpa(*projected(layer, x)).flatten(1))


def released_algorithm(layer: GraphAttention, x: Tensor, ptr: Tensor) -> Tensor:
    """Return the output of a block-model layer as the code of SBM-Transformer's authors computes
    it, for all pairs of tokens."""
    query, key, value = projected(layer, x)
    model = layer.source.block_model(query, key, ptr)
    mixed = model.mixed_query().unflatten(0, (layer.heads, -1))
    prob = mixed @ model.key_factor.unflatten(0, (layer.heads, -1)).mT
    mask = DenseBernoulli.apply(prob)
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weight = (query @ key.mT / layer.head_channels**0.5).softmax(dim=-1) * mask
    out = F.normalize(weight, p=1, dim=-1) @ value
    return layer.lin_out(out.transpose(0, 1).flatten(1))


class DenseBernoulli(torch.autograd.Function):
    """A Bernoulli draw of each pair."""

    @staticmethod
    def forward(ctx, prob: Tensor) -> Tensor:
        mask = torch.bernoulli((prob + 0.01).clamp(0, 1))
        ctx.save_for_backward(mask)
        return mask

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # the released estimator: drawn pairs receive the clipped gradient
        return F.hardtanh(ctx.saved_tensors[0] * grad)


if __name__ == '__main__':
    bench.run_benchmark(main, modes=('length',))
