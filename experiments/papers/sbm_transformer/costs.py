"""Time and memory of each kind of attention at the lengths of Long Range Arena (SBM, Table 3)."""

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from experiments.baselines import Baseline, Linear, Linformer, Nystromformer, Performer, Reformer
from experiments.benchmarks.layer import bring_to_density, infer, train
from experiments.benchmarks.measure import elsewhere, free_at_once, interleave, peak_bytes
from experiments.papers.figures import curves
from experiments.papers.sbm_transformer.long_range import FULL, patterns_at
from experiments.papers.study import TELEPORT, Study, Table
from experiments.runs.tables import report
from graphattn import BipartiteGraph
from graphattn.graphs import GRAPHS
from graphattn.layers import GraphAttention
from graphattn.sources import BlockModelSource, PatternSource

# Sizes are those of SBM-Transformer's models (Table 7). It measures whole models with their trained
# graphs on GPUs; here, one layer has graphs of the same densities.
CHANNELS, HEADS, CLUSTERS = 64, 2, 128
WIDTH = CHANNELS // HEADS
LENGTHS = {'ListOps': 2048, 'Text': 3072, 'Retrieval': 4096, 'Image': 1024, 'Pathfinder': 1024}
# Further lengths: those of the data, where models are longer, and those of the benchmark, where the
# paper's differ.
OTHER_LENGTHS = [('ListOps', 2000), ('Text', 4000), ('Text', 4096), ('Retrieval', 4000)]
TASKS = {'smoke': [(task, n // 16) for task, n in LENGTHS.items()],
         'small': list(LENGTHS.items()), 'paper': [*LENGTHS.items(), *OTHER_LENGTHS]}
ROUNDS = {'smoke': 1, 'small': 3, 'paper': 7}
DENSITIES = {'smoke': (0.1,), 'small': (0.02, 0.1, 0.25, 0.5), 'paper': (0.02, 0.1, 0.25, 0.5)}
# Densities (Table 9) of the models in Table 3, which were trained with lambda = 0.1.
TRAINED = {'ListOps': 0.0115, 'Text': 0.1062, 'Retrieval': 0.0249, 'Image': 0.0133,
           'Pathfinder': 0.0261}


class Eager(Baseline):
    """Full attention that stores its weights, the baseline of the papers."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        return (query / math.sqrt(WIDTH) @ key.mT).softmax(dim=-1) @ value


class Fused(Baseline):
    """Torch's full attention, which stores no weights."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


FORMED, FUSED, SAMPLED, EDGES = 'full, weights formed', 'full, SDPA', 'SBM', 'SBM, edges alone'
POISSON = 'SBM, Algorithm 1'
MODULES: dict[str, Callable[..., Baseline]] = {
    FORMED: Eager, FUSED: Fused,
    'linear': Linear, 'linear, released': partial(Linear, form='released'),
    'Reformer': Reformer, 'Performer': Performer,
    'Performer, ReLU': partial(Performer, kernel='relu'),
    'Linformer': Linformer, 'Nystromformer': Nystromformer}
RADIUS = 64  # radius of windows, at all lengths
PATTERNS = [name for name in patterns_at(2048, RADIUS) if name != FULL]
ALL = (*MODULES, *PATTERNS)
CHOSEN = {'smoke': (FORMED, FUSED, 'Performer', 'BigBird'), 'small': ALL, 'paper': ALL}
PAPER_MEMORY = {  # values of Table 3, relative to full attention
    FORMED: dict.fromkeys(LENGTHS, 1.),
    'linear, released': dict(zip(LENGTHS, (0.18, 0.16, 0.12, 0.42, 0.42))),
    'Reformer': dict(zip(LENGTHS, (0.39, 0.31, 0.18, 0.72, 0.72))),
    'Performer, ReLU': dict(zip(LENGTHS, (0.76, 0.70, 0.60, 0.96, 0.96))),
    'Linformer': dict(zip(LENGTHS, (0.26, 0.22, 0.14, 0.34, 0.34))),
    'Nystromformer': dict(zip(LENGTHS, (0.34, 0.27, 0.16, 0.70, 0.70))),
    SAMPLED: dict(zip(LENGTHS, (0.19, 1.01, 0.19, 0.39, 0.48)))}
COSTS = {'infer ms': 'time of inference', 'train ms': 'time of a training step',
         'infer MiB': 'memory of inference', 'train MiB': 'memory of a training step'}


class Case(NamedTuple):
    """A kind of attention on n tokens, for block models with graphs of a density."""

    name: str
    n: int
    density: float | None = None

    def layer(self) -> nn.Module:
        torch.manual_seed(0)
        if self.name == 'Linformer':
            return Linformer(CHANNELS, HEADS, self.n)
        if self.name in MODULES:
            return MODULES[self.name](CHANNELS, HEADS)
        if self.name in PATTERNS:
            pattern, hops = patterns_at(self.n, RADIUS)[self.name]
            return GraphAttention(CHANNELS, HEADS, PatternSource(pattern), hops=hops,
                                  teleport=TELEPORT if hops > 1 else 0.)
        is_poisson = self.name == POISSON  # where an edge has probability 1 - exp(-p)
        source = BlockModelSource(HEADS, WIDTH, CLUSTERS, exploration=0.,
                                  distribution='poisson' if is_poisson else 'bernoulli')
        bring_to_density(source, -math.log1p(-self.density) if is_poisson else self.density)
        return GraphAttention(CHANNELS, HEADS, source)

    def attend(self) -> tuple[nn.Module, Callable[[], Tensor]]:
        layer, (x, ptr) = self.layer(), self._tokens()
        if self.name == EDGES:
            graph = cache(self.graph)
            return layer, lambda: layer(x, ptr, graph=graph())
        return layer, lambda: layer(x, ptr)

    def graph(self) -> BipartiteGraph | None:
        """Return the graph along which this case attends, if there is one."""
        with torch.no_grad():
            return self.layer().eval()(*self._tokens(), return_graph=True)[1]

    def _tokens(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(self.n, CHANNELS), torch.tensor([0, self.n])


def main(study: Study) -> Table:
    scale = study.scale
    measured = {n: measure(cases_at(scale, n), ROUNDS[scale])
                for n in sorted({n for _, n in TASKS[scale]})}
    report([row for rows in measured.values() for row in crossings(rows)], 'crossings',
           study.folder)
    return Table([row for task, n in TASKS[scale] for row in compare(task, measured[n])],
                 draw(measured))


def cases_at(scale: str, n: int) -> list[Case]:
    trained = {TRAINED[task] for task, length in TASKS[scale] if length == n}
    densities = sorted({*DENSITIES[scale], *trained})
    return [Case(name, n) for name in CHOSEN[scale]] + [
        Case(name, n, density) for name in (SAMPLED, POISSON, EDGES) for density in densities]


def measure(cases: list[Case], rounds: int) -> list[dict]:
    """Return medians of times, of interleaved rounds, and peaks of memory, of a process each."""
    layers = {case: case.attend() for case in cases}
    seconds = {run.__name__: interleave({case: lambda own=own, run=run: run(*own)
                                         for case, own in layers.items()}, rounds)
               for run in (infer, train)}
    rows = []
    for case in tqdm(cases, desc=f'costs at {cases[0].n} tokens', disable=None):
        graph, (inference, training) = case.graph(), elsewhere(peaks, case)
        rows.append({
            'attention': case.name, 'tokens': case.n, 'asked density': case.density,
            'density': 1. if graph is None else graph.density(),
            'infer ms': 1e3 * seconds['infer'][case], 'train ms': 1e3 * seconds['train'][case],
            'infer MiB': inference / 2**20, 'train MiB': training / 2**20})
    return rows


def peaks(case: Case) -> tuple[int, int]:
    free_at_once()
    for step in (infer, train):
        step(*case.attend())  # loops are compiled now
    found = []
    for step in (infer, train):
        GRAPHS.clear()
        own = case.attend()
        found.append(peak_bytes(lambda step=step, own=own: step(*own), warm_up=1))
        del own
    return found[0], found[1]


def compare(task: str, measured: list[dict]) -> list[dict]:
    """Return the measurements for a task, beside full attention and the values of the paper."""
    formed, fused = (next(row for row in measured if row['attention'] == name)
                     for name in (FORMED, FUSED))
    of_other_tasks = {*TRAINED.values()} - {TRAINED[task]}
    return [{
        'task': task, 'tokens': row['tokens'], 'attention': row['attention'],
        'density, %': 100 * row['density'], 'drawing, % of time': time_to_draw(row, measured),
        **{f'{step} ms': row[f'{step} ms'] for step in ('infer', 'train')},
        **{f'{step} / SDPA': row[f'{step} ms'] / fused[f'{step} ms']
           for step in ('infer', 'train')},
        **{f'{step} MiB': row[f'{step} MiB'] for step in ('infer', 'train')},
        # The memory of a short sequence may be too small to measure beside the process's own.
        'memory / formed': row['infer MiB'] / formed['infer MiB'] if formed['infer MiB'] else None,
        'paper, memory': printed(task, row),
    } for row in measured if row['asked density'] not in of_other_tasks]


def printed(task: str, row: dict) -> float | None:
    """Return a value of Table 3, which has block models at the density of a trained one."""
    if row['asked density'] not in (None, TRAINED[task]) or row['tokens'] > 2 * LENGTHS[task]:
        return None
    return PAPER_MEMORY.get(row['attention'], {}).get(task)


def time_to_draw(row: dict, measured: list[dict]) -> float | None:
    """Return how much of its time a block model spends on sampling its graph, in per cent."""
    if row['attention'] not in (SAMPLED, POISSON):
        return None
    edges = next(other for other in measured if other['attention'] == EDGES
                 and other['asked density'] == row['asked density'])
    return 100 * (1 - edges['infer ms'] / row['infer ms'])


def crossings(measured: list[dict]) -> list[dict]:
    """Return the densities at which block models and full attention cost the same."""
    rows = []
    for name, full in product((EDGES, POISSON, SAMPLED), (FUSED, FORMED)):
        own = sorted((row for row in measured if row['attention'] == name),
                     key=lambda row: row['density'])
        cost = next(row for row in measured if row['attention'] == full)
        rows.append({'attention': name, 'tokens': cost['tokens'], 'compared with': full,
                     **{title: crossing(own, column, cost[column])
                        for column, title in COSTS.items()}})
    return rows


def crossing(rows: list[dict], column: str, full: float) -> str:
    """Return where a column of rows, by ascending density, comes to a value."""
    if rows[0][column] >= full:
        return f'below {rows[0]["density"]:.1%}'
    for low, high in zip(rows, rows[1:]):
        if high[column] >= full:
            share = (full - low[column]) / (high[column] - low[column])
            return f'{low["density"] + share * (high["density"] - low["density"]):.0%}'
    return f'above {rows[-1]["density"]:.0%}'


def draw(measured: dict[int, list[dict]]) -> Figure:
    """Draw costs over SDPA's by density, with and without the sampling, at two lengths."""
    drawn = []
    for n in dict.fromkeys([sorted(measured)[len(measured) // 2 - 1], max(measured)]):
        fused = next(row for row in measured[n] if row['attention'] == FUSED)
        drawn += [{'length': f'{n:,} tokens: a block model over full SDPA',
                   'density, %': 100 * row['density'], 'cost': title + which,
                   'value': row[column] / fused[column]}
                  for name, which in ((EDGES, ''), (SAMPLED, ', drawing included'))
                  for row in sorted(measured[n], key=lambda row: row['density'])
                  if row['attention'] == name
                  for column, title in COSTS.items() if fused[column]]
    levels = dict.fromkeys((row['length'] for row in drawn), {'full SDPA': 1.})
    return curves(drawn, 'density, %', ['value'],
                  f'One layer of {HEADS} heads, {CHANNELS} channels, on one sequence',
                  panel='length', series='cost', ylabel='', levels=levels, log='xy')
