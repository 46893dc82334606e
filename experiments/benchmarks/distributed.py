"""One sequence over several processes: time, memory, and bytes sent compared with sending all keys.

The column "plain ms" is the time of a step that waits for messages before it computes attention,
and that requests its keys one by one even if it needs all keys. Every process has one thread;
processes beyond the number of cores share them.

    python -m experiments.benchmarks.distributed
    python -m experiments.benchmarks.distributed --quick
    python -m experiments.benchmarks.distributed --cases '[window]' --window 64 --nodes 1048576
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch
import torch.distributed as dist
from jsonargparse.typing import PositiveInt
from torch import Tensor

from experiments.benchmarks import measure as bench
from experiments.runs.tables import report
from graphattn import distributed
from graphattn.distributed import SequenceParallel, sequence_parallel
from graphattn.layers import GraphAttention
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow, get
from graphattn.placement import Exchange, messages
from graphattn.sources import BlockModelSource, PatternSource

HEADS, CHANNELS = 4, 32
CASES = {
    'window': lambda window: _layer(PatternSource(SlidingWindow(window))),
    'window, global, random': lambda window: _layer(
        PatternSource(SlidingWindow(window) | GlobalTokens(2) | RandomKeys(4))),
    'Diffuser, 5 hops': lambda window: _layer(
        PatternSource(get('diffuser', num_global=16, num_random=16)), hops=5, teleport=.1),
    'block model, 26 %': lambda window: _layer(BlockModelSource(HEADS, CHANNELS, 32)),
}
Case = Literal['window', 'window, global, random', 'Diffuser, 5 hops', 'block model, 26 %']
Measurement = Callable[[str, int, int], dict]  # of a case, its tokens and its window


@bench.benchmark(processes=(2,), nodes=1024, nodes_of_block_model=256, rounds=2)
def main(
    processes: list[PositiveInt] = (1, 2, 4),
    cases: list[Case] = tuple(CASES),
    nodes: PositiveInt = 16384,
    nodes_of_block_model: PositiveInt = 2048,
    window: PositiveInt = 32,
    rounds: PositiveInt = 5,
    out: Path = Path('runs/benchmarks'),
) -> None:
    """Time training steps of a layer on a sequence that is divided over processes.

    Args:
        processes: Numbers of processes, with one thread each.
        cases: Names of the layers.
        nodes: Number of tokens of the sequence.
        nodes_of_block_model: Number of tokens for the block model, whose edges are a quarter of the
            pairs.
        window: Number of keys to each side of a query, in cases with a window.
    """
    sizes = {case: nodes_of_block_model if 'block' in case else nodes for case in cases}
    rows = []
    for world in bench.progress(processes, 'distributed'):
        # Memory is measured in processes of their own, where allocations are slower.
        times = measure_elsewhere(world, partial(time_case, rounds=rounds), sizes, window)
        memory = measure_elsewhere(world, weigh_case, sizes, window)
        rows += [combined(world, case, *parts) for case, *parts in zip(cases, times, memory)]
    report(rows, 'distributed', out)


def measure_elsewhere(world: int, measure_case: Measurement, sizes: dict[str, int],
                      window: int) -> list[tuple[dict, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        processes = [bench.forkserver().Process(
            target=measure, args=(Path(folder), rank, world, measure_case, sizes, window))
            for rank in range(world)]
        with bench.ending_children():
            with bench.without_interrupts():
                for process in processes:
                    process.start()
            for process in processes:
                process.join()
        if any(process.exitcode for process in processes):
            raise ValueError(f"{world} processes failed; their own errors are printed above")
        parts = [json.loads((Path(folder) / f'{rank}.json').read_text()) for rank in range(world)]
    return [*zip(*parts)]


def combined(world: int, case: Case, times: Sequence[dict], memory: Sequence[dict]) -> dict:
    return {'case': case, 'processes': world, 'n': times[0]['n'],
            **{way: max(part[way] for part in times) for way in ('step ms', 'plain ms')},
            'peak MiB': max(part['peak MiB'] for part in memory),
            'peak MiB, all': sum(part['peak MiB'] for part in memory),
            'edges': sum(part['edges'] for part in memory),
            **{name: sum(part[name] for part in memory) / world
               for name in ('sent MiB', 'all keys MiB')}}


def measure(folder: Path, rank: int, world: int, measure_case: Measurement,
            sizes: dict[str, int], window: int) -> None:
    """Measure each case in this process, and write the results to ``folder/rank.json``."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank,
                            world_size=world)
    rows = [measure_case(case, n, window) for case, n in sizes.items()]
    (folder / f'{rank}.json').write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def time_case(case: Case, n: int, window: int, rounds: int) -> dict:
    """Return the milliseconds of a training step, the least over several rounds, with overlap
    (``'step ms'``) and without (``'plain ms'``)."""
    step = warm_step(case, n, window)
    seconds = {'step ms': [], 'plain ms': []}
    for _ in range(rounds):
        for way, context in (('step ms', nullcontext()), ('plain ms', plainly())):
            with context:
                dist.barrier()
                start = time.perf_counter()
                step()
                seconds[way].append(time.perf_counter() - start)
    return {'n': n, **{way: 1e3 * min(times) for way, times in seconds.items()}}


def weigh_case(case: Case, n: int, window: int) -> dict:
    """Return the peak memory of a training step and the bytes that this process sends in it, as a
    row in MiB."""
    bench.free_at_once()
    before = bench.held_bytes()
    step = warm_step(case, n, window)
    bench.start_peak_over()
    with counted() as sent:
        edges = step()
    peak = bench.max_held_bytes() - before
    return {'edges': edges, 'peak MiB': peak / 2**20, 'sent MiB': sent[0] / 2**20,
            'all keys MiB': bytes_of_all_keys(*step.args) / 2**20}


def warm_step(case: Case, n: int, window: int) -> partial[int]:
    """Return a function that runs a training step."""
    torch.manual_seed(0)
    layer, ptr = sequence_parallel(CASES[case](window), dist.group.WORLD), torch.tensor([0, n])
    own = layer.share(ptr)
    x = torch.randn(n, HEADS * CHANNELS)[own].clone().requires_grad_()
    step = partial(train, layer, x, ptr)
    for _ in range(2):  # compiles loops, compares parameters and plans the exchange of keys
        step()
    return step


def train(layer: SequenceParallel, x: Tensor, ptr: Tensor) -> int:
    """Run a training step of ``layer``, and return the number of edges of this process."""
    out, graph = layer(x, ptr, return_graph=True)
    out.sum().backward()
    return graph.num_edges


@contextmanager
def plainly() -> Iterator[None]:
    """Return a context in which processes wait for messages before attention starts, and request
    keys even if they need all keys."""
    with patch.object(Exchange, 'in_parts', False), patch.object(distributed, 'ALL_ABOVE', 2.):
        yield


def bytes_of_all_keys(parallel: SequenceParallel, x: Tensor, ptr: Tensor) -> int:
    """Return the bytes that a process would send in a training step if the processes gathered all
    keys and values."""
    # Each further hop gathers values again, gradients are sent back, and block models send
    # memberships.
    layer = parallel.module
    numbers = (1 + layer.attention.hops) * x.numel()
    if isinstance(layer.source, BlockModelSource):
        numbers += x.size(0) * HEADS * layer.source.clusters
    return 2 * (dist.get_world_size() - 1) * x.element_size() * numbers


@contextmanager
def counted() -> Iterator[list[int]]:
    """Return a context that counts the bytes that this process sends: the rows of keys and values,
    and their gradients."""
    total, send = [0], messages.Message.__init__

    def counting(message: messages.Message, rows: Tensor, send_sizes: list[int],
                 receive_sizes: list[int], group: dist.ProcessGroup) -> None:
        total[0] += rows[:1].nbytes * (sum(send_sizes) - send_sizes[dist.get_rank()])
        send(message, rows, send_sizes, receive_sizes, group)

    with patch.object(messages.Message, '__init__', counting):
        yield total


def _layer(source: PatternSource | BlockModelSource, **options: float) -> GraphAttention:
    return GraphAttention(HEADS * CHANNELS, HEADS, source, **options)


if __name__ == '__main__':
    bench.run_benchmark(main, modes=('decoding',))
