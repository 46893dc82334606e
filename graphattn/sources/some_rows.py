"""Distributed sampling: each process draws some rows of a graph."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from graphattn._tensors import without_autocast
from graphattn.functional.shard import Shard
from graphattn.graphs.graph import BipartiteGraph
from graphattn.ops.sample.factor_model import FactorModel
from graphattn.ops.sample.methods import check_sampling, takes_compiled
from graphattn.samplers.fastrg import check_rate


@torch.compiler.disable(reason='a graph is drawn, and its number of edges is unknown before')
@torch.no_grad()
def sample_rows(
    model: FactorModel,
    shard: Shard,
    *,
    distribution: Literal['bernoulli', 'poisson'],
    generator: torch.Generator | None,
) -> BipartiteGraph:
    """Draw the edges of the queries of one of several processes that share a batch."""
    # Every row has its own random bits, so the edges of all processes form the graph that a single
    # one would draw, except for pairs whose random value is within rounding of their probability:
    # the rounding of products depends on the number of rows. ``generator`` has the same state in
    # all.
    check_sampling(model, generator, 'compiled', ('compiled',))
    if model.device.type != 'cpu':
        raise ValueError(f"'model' must be on a CPU, because only the sampler for CPUs can "
                         f"draw the edges of one process without the edges of the other processes "
                         f"(got {model.device}); move the tensors from which you build 'model' to "
                         f"the CPU with .cpu()")
    takes_compiled(model, 'compiled')  # raises if unavailable
    draw = {'bernoulli': _draw_exactly, 'poisson': _draw_poisson}[distribution]
    with without_autocast(model.device):
        return BipartiteGraph.batch(draw(model, shard, generator))


def _draw_exactly(model: FactorModel, shard: Shard,
                  generator: torch.Generator | None) -> list[BipartiteGraph]:
    from graphattn.ops.sample.cpu.drawing import draw_seed
    from graphattn.ops.sample.cpu.thinning import Thinning, is_faster, is_less_work
    heads = _heads(model)
    num_pairs = len(heads) * sum(length**2 for length in shard.lengths)
    table_entries = model.num_keys * model.num_clusters
    if not is_less_work(0, table_entries, num_pairs):
        return _compare(heads, shard, generator)
    thinnings = [Thinning(head) for head in heads]
    bound, num_draws = (_of_all(values, shard) for values in (
        [thinning.bound for thinning in thinnings], [thinning.num_draws for thinning in thinnings]))
    if not is_faster(bound, num_draws, table_entries, num_pairs):
        return _compare(heads, shard, generator)
    counts = _own_counts(num_draws, shard, generator)
    seeds, coin_seeds = (_seeds(draw_seed(generator), shard, len(heads)) for _ in range(2))
    return [thinning.thinned(*drawn)
            for thinning, *drawn in zip(thinnings, counts, seeds, coin_seeds)]


def _compare(heads: list[FactorModel], shard: Shard,
             generator: torch.Generator | None) -> list[BipartiteGraph]:
    from graphattn.ops.sample.cpu.comparing import compare
    from graphattn.ops.sample.cpu.drawing import draw_seed
    seeds = _seeds(draw_seed(generator), shard, len(heads))
    return [compare(head, seed) for head, seed in zip(heads, seeds)]


def _draw_poisson(model: FactorModel, shard: Shard,
                  generator: torch.Generator | None) -> list[BipartiteGraph]:
    from graphattn.ops.sample.cpu.drawing import draw_seed
    from graphattn.ops.sample.cpu.rates import Rates
    heads = _heads(model)
    rates = [Rates(head) for head in heads]
    query_rate = _of_all([rate.of_queries() for rate in rates], shard)
    check_rate(query_rate.sum(), model)
    counts = _own_counts(query_rate, shard, generator)
    seeds = _seeds(draw_seed(generator), shard, len(heads))
    return [rate.draw(count, seed).to_graph(head)
            for head, rate, count, seed in zip(heads, rates, counts, seeds)]


def _heads(model: FactorModel) -> list[FactorModel]:
    # the queries of this process are contiguous only within a head of the whole graph
    num_heads = model.num_heads
    factors = zip(model.query_factor.detach().chunk(num_heads),
                  model.mixing.detach().view(num_heads, model.num_clusters, -1),
                  model.key_factor.detach().chunk(num_heads))
    segments = model.num_segments // num_heads + 1
    return [FactorModel(*of_head, query_ptr=model.query_ptr[:segments],
                        key_ptr=model.key_ptr[:segments], exploration=model.exploration,
                        validate=False)
            for of_head in factors]


def _of_all(values: list[np.ndarray], shard: Shard) -> np.ndarray:
    own = torch.from_numpy(np.stack(values, axis=1))
    # the queries of the whole batch in head 0, then those in head 1, and so on
    return shard.gather(own).t().flatten().numpy()


def _own_counts(mean: np.ndarray, shard: Shard,
                generator: torch.Generator | None) -> list[np.ndarray]:
    # each process draws the numbers of all queries from the same stream
    counts = torch.poisson(torch.from_numpy(mean), generator).long()
    counts = counts.view(-1, shard.num_tokens)[:, shard.start:shard.stop]
    return [*counts.contiguous().numpy()]


def _seeds(seed: np.uint64, shard: Shard, num_heads: int) -> list[np.uint64]:
    from graphattn.ops.sample.cpu.drawing import seed_from_row
    # query r gets the bits of query shard.start + r of the head in a single process
    return [seed_from_row(seed, head * shard.num_tokens + shard.start)
            for head in range(num_heads)]
