"""Costs of each kind of attention at the lengths of Long Range Arena (SBM, Tables 3 and 5)."""

from itertools import product

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.benchmarks import flops
from experiments.benchmarks.layer import infer, train
from experiments.benchmarks.measure import elsewhere, interleave
from experiments.papers.figures import curves
from experiments.papers.sbm_transformer.cost_cases import (
    CHANNELS,
    EDGES,
    FORMED,
    FUSED,
    HEADS,
    MODULES,
    PATTERNS,
    POISSON,
    SAMPLED,
    STEPS,
    Case,
    peaks,
)
from experiments.papers.study import Study, Table
from experiments.runs.tables import report

LENGTHS = {'ListOps': 2048, 'Text': 3072, 'Retrieval': 4096, 'Image': 1024, 'Pathfinder': 1024}
# Further lengths: those of the data, where models are longer, and those of the benchmark, where the
# paper's differ.
OTHER_LENGTHS = [('ListOps', 2000), ('Text', 4000), ('Text', 4096), ('Retrieval', 4000)]
TASKS = {'smoke': [(task, n // 16) for task, n in LENGTHS.items()],
         'small': list(LENGTHS.items()), 'paper': [*LENGTHS.items(), *OTHER_LENGTHS]}
ROUNDS = {'smoke': 1, 'small': 3, 'paper': 7}
ALL = (*MODULES, *PATTERNS)
CHOSEN = {'smoke': (FORMED, FUSED, 'Performer', 'BigBird'), 'small': ALL, 'paper': ALL}
DENSITIES = {'smoke': (0.1,), 'small': (0.02, 0.1, 0.25, 0.5), 'paper': (0.02, 0.1, 0.25, 0.5)}
# Densities (Table 9) of the models in Table 3, which were trained with lambda = 0.1.
TRAINED = {'ListOps': 0.0115, 'Text': 0.1062, 'Retrieval': 0.0249, 'Image': 0.0133,
           'Pathfinder': 0.0261}
PAPER_FLOPS = {  # values of Table 3, relative to full attention
    FORMED: dict.fromkeys(LENGTHS, 1.),
    'linear, released': dict(zip(LENGTHS, (0.02, 0.01, 0.02, 0.04, 0.04))),
    'Reformer': dict(zip(LENGTHS, (0.05, 0.03, 0.05, 0.10, 0.10))),
    'Performer, ReLU': dict(zip(LENGTHS, (0.18, 0.12, 0.18, 0.36, 0.36))),
    'Linformer': dict(zip(LENGTHS, (0.33, 0.22, 0.33, 0.66, 0.66))),
    'Nystromformer': dict(zip(LENGTHS, (1.09, 0.70, 1.09, 2.37, 2.37))),
    SAMPLED: dict(zip(LENGTHS, (0.07, 0.23, 0.08, 0.27, 0.29)))}
PAPER_MEMORY = {
    FORMED: dict.fromkeys(LENGTHS, 1.),
    'linear, released': dict(zip(LENGTHS, (0.18, 0.16, 0.12, 0.42, 0.42))),
    'Reformer': dict(zip(LENGTHS, (0.39, 0.31, 0.18, 0.72, 0.72))),
    'Performer, ReLU': dict(zip(LENGTHS, (0.76, 0.70, 0.60, 0.96, 0.96))),
    'Linformer': dict(zip(LENGTHS, (0.26, 0.22, 0.14, 0.34, 0.34))),
    'Nystromformer': dict(zip(LENGTHS, (0.34, 0.27, 0.16, 0.70, 0.70))),
    SAMPLED: dict(zip(LENGTHS, (0.19, 1.01, 0.19, 0.39, 0.48)))}
# Which omits the probabilities for sampling a graph.
IN_TABLE_5 = {'memberships': 'nd^2 + nkd', 'mixing': 'k^2 d', 'logits': 'md', 'sums': 'md'}
OF_GRADIENT = 'probability of edges'
ABOUT = f'One layer of {HEADS} heads, {CHANNELS} channels, on one sequence'
COSTS = {'MFLOPs': 'operations', 'infer ms': 'time of inference',
         'train ms': 'time of a training step', 'infer MiB': 'memory of inference',
         'train MiB': 'memory of a training step'}


def main(study: Study) -> Table:
    scale = study.scale
    measured = {n: measure(cases_at(scale, n), ROUNDS[scale])
                for n in sorted({n for _, n in TASKS[scale]})}
    report(steps_table(scale), 'steps', study.folder)
    report([row for rows in measured.values() for row in crossings(rows)], 'crossings',
           study.folder)
    return Table([row for task, n in TASKS[scale] for row in compare(task, measured[n])],
                 draw(measured))


# Measuring ###########################################################################


def cases_at(scale: str, n: int) -> list[Case]:
    """Return the kinds of attention at a length, with block models at several densities."""
    trained = {TRAINED[task] for task, length in TASKS[scale] if length == n}
    densities = sorted({*DENSITIES[scale], *trained})
    return [Case(name, n) for name in CHOSEN[scale]] + [
        Case(name, n, density) for name in (SAMPLED, POISSON, EDGES) for density in densities]


def measure(cases: list[Case], rounds: int) -> list[dict]:
    """Return a row for each case, with its numbers of operations, times and peaks of memory."""
    n = cases[0].n
    layers = {case: case.attend() for case in cases}
    seconds = {run.__name__: interleave({case: lambda own=own, run=run: run(*own)
                                         for case, own in layers.items()}, rounds)
               for run in (infer, train)}
    rows = []
    for case in tqdm(cases, desc=f'costs at {n} tokens', unit='attention', disable=None):
        steps, graph = case.steps(), case.graph()
        inference, training = elsewhere(peaks, case)
        rows.append({
            'attention': case.name, 'tokens': n, 'asked density': case.density,
            'density': 1. if graph is None else graph.density(),
            'MFLOPs': HEADS * sum(steps.values()) / 1e6,
            'of them to draw': 1 - sum(steps[name] for name in ('logits', 'sums')) / sum(
                steps.values()) if case.name in (SAMPLED, POISSON) else None,
            'counted by torch': counted(case),
            'infer ms': 1e3 * seconds['infer'][case], 'train ms': 1e3 * seconds['train'][case],
            'infer MiB': inference / 2**20, 'train MiB': training / 2**20})
    return rows


def counted(case: Case) -> float | None:
    """Return torch's count of MFLOPs without projections; it does not know attention on edges."""
    if case.name not in STEPS:
        return None
    layer, attend = case.attend()
    projections = sum(module.weight.numel() for name, module in layer.named_children()
                      if name.startswith('lin_'))
    return (flops.counted(attend) - 2 * case.n * projections) / 1e6


# Comparing ###########################################################################


def compare(task: str, measured: list[dict]) -> list[dict]:
    """Return the measurements for a task, beside full attention and the values of the paper."""
    formed, fused = (next(row for row in measured if row['attention'] == name)
                     for name in (FORMED, FUSED))
    of_other_tasks = {*TRAINED.values()} - {TRAINED[task]}
    return [{
        'task': task, 'tokens': row['tokens'], 'attention': row['attention'],
        'density, %': 100 * row['density'], 'MFLOPs': row['MFLOPs'],
        'counted by torch': row['counted by torch'],
        'FLOPs / full': row['MFLOPs'] / formed['MFLOPs'],
        'paper, FLOPs': printed(PAPER_FLOPS, task, row),
        'drawing, % of FLOPs': percent(row['of them to draw']),
        'drawing, % of time': percent(time_to_draw(row, measured)),
        **{f'{step} ms': row[f'{step} ms'] for step in ('infer', 'train')},
        **{f'{step} / SDPA': row[f'{step} ms'] / fused[f'{step} ms']
           for step in ('infer', 'train')},
        **{f'{step} MiB': row[f'{step} MiB'] for step in ('infer', 'train')},
        # The memory of a short sequence may be too small to measure beside the process's own.
        'memory / formed': row['infer MiB'] / formed['infer MiB'] if formed['infer MiB'] else None,
        'paper, memory': printed(PAPER_MEMORY, task, row),
    } for row in measured if row['asked density'] not in of_other_tasks]


def printed(figures: dict, task: str, row: dict) -> float | None:
    """Return a value of Table 3, which has block models at the density of a trained one."""
    if row['asked density'] not in (None, TRAINED[task]) or row['tokens'] > 2 * LENGTHS[task]:
        return None
    return figures.get(row['attention'], {}).get(task)


def time_to_draw(row: dict, measured: list[dict]) -> float | None:
    """Return the fraction of its time that a block model spends on sampling its graph."""
    if row['attention'] not in (SAMPLED, POISSON):
        return None
    edges = next(other for other in measured if other['attention'] == EDGES
                 and other['asked density'] == row['asked density'])
    return 1 - edges['infer ms'] / row['infer ms']


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def steps_table(scale: str) -> list[dict]:
    """Return the operations of a head by step, at the density of the paper's trained model."""
    rows = []
    for task, n in TASKS[scale]:
        steps = Case(SAMPLED, n, TRAINED[task]).steps(trains=True)
        inference = sum(steps[name] for name in steps if name != OF_GRADIENT)
        rows += [{'task': task, 'tokens': n, 'step': step, 'MFLOPs': number / 1e6,
                  '% of inference': None if step == OF_GRADIENT else 100 * number / inference,
                  'paper, Table 5': IN_TABLE_5.get(step, 'not in it')}
                 for step, number in steps.items()]
    return rows


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


# Drawing #############################################################################


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
    return curves(drawn, 'density, %', ['value'], ABOUT, panel='length', series='cost', ylabel='',
                  levels=levels, log='xy')
