"""Growth of the costs of attention, compared with the classes in SBM-Transformer's Table 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from experiments.benchmarks import flops
from experiments.papers.sbm_transformer.cost_cases import (
    CLUSTERS,
    FORMED,
    FUSED,
    POISSON,
    RANKS,
    SAMPLED,
    STEPS,
    WIDTH,
)


class Classes(NamedTuple):
    """The growth of time and memory in the paper's Table 6, as formulas and as functions of n
    tokens, d channels, k clusters (or landmarks, features, rounds) and m edges."""

    time: str
    of_time: Callable[[int, int, int, float], float]
    memory: str
    of_memory: Callable[[int, int, int, float], float]


# The formulas of Table 6. Reformer's factor (4n / c)^2 is left out, because it is constant for a
# fixed length c of chunks.
TABLE_6 = {
    **dict.fromkeys((FORMED, FUSED), Classes(
        'n^2 d', lambda n, d, k, m: n**2 * d,
        'n^2 + nd', lambda n, d, k, m: n**2 + n * d)),
    **dict.fromkeys(('linear', 'linear, released'), Classes(
        'nd^2', lambda n, d, k, m: n * d**2,
        'nd + d^2', lambda n, d, k, m: n * d + d**2)),
    'Reformer': Classes(
        'nd + nk (4n/c)^2', lambda n, d, k, m: n * d + n * k,
        'nd + nk (4n/c)^2', lambda n, d, k, m: n * d + n * k),
    **dict.fromkeys(('Performer', 'Performer, ReLU'), Classes(
        'nkd + kd^2', lambda n, d, k, m: n * k * d + k * d**2,
        'nk + nd', lambda n, d, k, m: n * k + n * d)),
    'Linformer': Classes(
        'nkd + nk', lambda n, d, k, m: n * k * d + n * k,
        'nk + nd', lambda n, d, k, m: n * k + n * d),
    'Nystromformer': Classes(
        'nkd + nk^2 + k^3', lambda n, d, k, m: n * k * d + n * k**2 + k**3,
        'nk + nd + kd + k^2', lambda n, d, k, m: n * k + n * d + k * d + k**2),
    **dict.fromkeys((SAMPLED, POISSON), Classes(
        'md + nd^2 + nkd + k^2 d',
        lambda n, d, k, m: m * d + n * d**2 + n * k * d + k**2 * d,
        'm + nd + nk + kd + k^2',
        lambda n, d, k, m: m + n * d + n * k + k * d + k**2))}
EDGES_SHARE = 0.1  # fraction of all pairs that are edges, for m in Table 6


def operations(name: str, n: int, d: int, k: int) -> float:
    """Return the number of operations of one head with a kind of attention. In graphs, a fixed
    fraction of all pairs are edges.

    Args:
        name: The kind of attention.
        n: Number of tokens.
        d: Size of the head.
        k: Number of clusters, landmarks, projected keys, features or rounds.
    """
    if name in STEPS:
        return sum(STEPS[name](n, d, k).values())
    drawn = flops.algorithm_1(n, k) if name == POISSON else {
        'queries mixed': 2. * n * k**2, 'probability of pairs': 2. * n**2 * k}
    return sum(flops.block_model(n, d, k, drawn, EDGES_SHARE * n**2).values())


def classes_table(measured: dict[int, list[dict]]) -> list[dict]:
    """Return the rows of a table for each kind of attention: by which factors operations and memory
    grow, as counted or measured, and by Table 6.

    Args:
        measured: Rows of measurements by number of tokens.
    """
    n = max(measured)
    return [{'attention': name, 'tokens': n, 'time, Table 6': classes.time,
             **growths(name, n, WIDTH, RANKS.get(name, CLUSTERS)),
             'memory, Table 6': classes.memory,
             **memory_growth(name, measured)} for name, classes in TABLE_6.items()
            if name in {row['attention'] for row in measured[n]}]


def growths(name: str, n: int, d: int, k: int) -> dict[str, float]:
    """Return by which factor the number of operations grows when n, d or k doubles, as counted and
    by Table 6. Arguments are those of :func:`operations`."""
    found = {}
    for symbol, larger in (('n', (2 * n, d, k)), ('d', (n, 2 * d, k)), ('k', (n, d, 2 * k))):
        found[f'FLOPs, 2{symbol}'] = operations(name, *larger) / operations(name, n, d, k)
        found[f'Table 6, 2{symbol}'] = (
            TABLE_6[name].of_time(*larger, EDGES_SHARE * larger[0]**2)
            / TABLE_6[name].of_time(n, d, k, EDGES_SHARE * n**2))
    return found


def memory_growth(name: str, measured: dict[int, list[dict]]) -> dict[str, float | None]:
    """Return by which factor the memory of inference grows from half of the longest length to the
    longest length, as measured and by Table 6. The measured factor is ``None`` if one of the two
    lengths was not measured."""
    n = max(measured)
    peak = {length: next((row['infer MiB'] for row in measured.get(length, ())
                          if row['attention'] == name
                          and row['asked density'] in (None, EDGES_SHARE)), None)
            for length in (n // 2, n)}
    k = RANKS.get(name, CLUSTERS)
    return {'measured, 2n': peak[n] / peak[n // 2] if peak[n] and peak[n // 2] else None,
            'memory of Table 6, 2n':
                TABLE_6[name].of_memory(n, WIDTH, k, EDGES_SHARE * n**2)
                / TABLE_6[name].of_memory(n // 2, WIDTH, k, EDGES_SHARE * n**2 / 4)}
