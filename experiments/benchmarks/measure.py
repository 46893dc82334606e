"""Interleaved timing of cases, and measurement of memory, for all benchmarks."""

import ctypes
import functools
import inspect
import math
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import active_children, get_context, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jsonargparse.typing import restricted_number_type
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor
from tqdm import tqdm

from experiments.runs.command import run_or_exit
from experiments.runs.command_line import Parser, with_short_summary
from graphattn.utils.files import check_folder
from graphattn.utils.memory import within_free_memory

# Names of the sparse backends by device type. The last backend is fused.
SPARSE = {'cpu': ('numba',), 'cuda': ('triton',)}
COMMON = {'heads': 'Number of heads, which share the graph.', 'channels': 'Width of a head.',
          'rounds': 'Number of measurements of each case; the median is reported.',
          'device': "The device, such as 'cuda'.", 'out': 'The folder of the results.'}
A_ROUND = 1 / 7  # seconds; fast cases have more rounds, to fill this time
Measured = TypeVar('Measured')
Density = restricted_number_type('Density', float, [('>', 0), ('<=', 1)])


def run_benchmark(main: Callable[..., None], arguments: list[str] | None = None,
                  modes: Sequence[str] = ()) -> None:
    """Run ``main``, or that of the module that the first argument names, with the other options."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in modes:
        main = import_module(f'{__package__}.{words[0]}').main
        words = words[1:]
    if arguments is None:
        sys.argv[1:] = words  # from which importing takes the user's modules
    else:
        arguments = words
    summary = with_short_summary(main).__doc__.partition('\n')[0]
    parser = Parser(description=summary, exit_on_error=False,
                            epilog=f'Modes, as the first argument: {", ".join(modes)}.' if modes
                            else None)
    parser.add_function_arguments(main, skip={'quick'})
    parser.add_argument('--quick', action='store_true', help='Ends within a minute.')

    def run() -> None:
        options = parser.parse_args(arguments)
        for name in vars(options):
            if options[name] == []:
                raise ValueError(f"'{name}' must contain at least one value (got none)")
        check_folder('out', options.out)
        with within_free_memory():
            main(**parser.instantiate(options).as_dict())

    run_or_exit(run)


def benchmark(**quick: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function the ``main`` of a benchmark."""
    def decorate(main: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(main)

        @functools.wraps(main)
        def run(*arguments: object, **options: object) -> None:
            if 'quick' not in signature.parameters and options.pop('quick', False):
                options |= quick
            given = signature.bind(*arguments, **options)
            given.apply_defaults()
            device = given.arguments.get('device', 'cpu')
            check_device(device)
            with default_device(torch.device(device)):
                main(*given.args, **given.kwargs)

        run.__doc__ = _documented(main.__doc__ or '', signature)
        return run
    return decorate


def _documented(text: str, signature: inspect.Signature) -> str:
    """Return the docstring of a benchmark, ``text``, with a description of the common options that
    its function has."""
    text = inspect.cleandoc(text)
    lines = [f'    {name}: {meaning}' for name, meaning in COMMON.items()
             if name in signature.parameters and f'\n    {name}: ' not in text]
    return '\n'.join([text, *lines] if '\nArgs:\n' in text else [text, '', 'Args:', *lines])


@contextmanager
def default_device(device: torch.device | None) -> Iterator[None]:
    """Return a context in which ``device`` is torch's default device."""
    before = torch.get_default_device()
    _set_default_device(device)
    try:
        yield
    finally:
        _set_default_device(before)


def _set_default_device(device: torch.device | None) -> None:
    is_cpu = device is None or device.type == 'cpu'
    torch.set_default_device(None if is_cpu else device)


def interleave(cases: dict[str, Callable[[], object]], rounds: int = 7,
               seconds: float = 20.) -> dict[str, float]:
    """Return the median seconds of each case."""
    return {name: statistics.median(values)
            for name, values in all_times(cases, rounds, seconds).items()}


def all_times(cases: dict[str, Callable[[], object]], rounds: int = 7,
              seconds: float = 20.) -> dict[str, list[float]]:
    """Return the seconds of each run of each case."""
    # The first run of each warms up and compiles. Then cases alternate, so that slow phases of the
    # machine affect all, each round in another order, because a case leaves the caches warm or cold
    # for the next. Slow cases have at least two rounds, fast ones up to a hundred times ``rounds``;
    # what exceeds a GPU's memory takes NaN seconds.
    timed = stopwatch()
    times = {name: [] if _fits(name, functools.partial(timed, case)) else [math.nan]
             for name, case in cases.items()}
    fitting = [name for name, values in times.items() if not values]
    begin = time.perf_counter()
    for done in range(100 * rounds):
        spent = time.perf_counter() - begin
        if done >= 2 and spent > (seconds if done < rounds else rounds * A_ROUND):
            break
        for name in random.Random(done).sample(fitting, len(fitting)):
            times[name].append(timed(cases[name]))
    return times


def times_of_passes(forwards: dict[str, Callable[[], Tensor]], inputs: Sequence[Tensor],
                    rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each case for each pass: a dict by pass of dicts by case."""
    passes = {'infer': infer, 'train': functools.partial(train, inputs=inputs)}
    return {name: interleave({case: functools.partial(run, forward)
                              for case, forward in forwards.items()}, rounds)
            for name, run in passes.items()}


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return torch's fused attention of tokens ``[n, heads, channels]``, whose backward pass
    computes the weights again."""
    batch = (x.transpose(0, 1)[None] for x in (query, key, value))
    return F.scaled_dot_product_attention(*batch, attn_mask=mask)[0].transpose(0, 1)


def infer(forward: Callable[[], Tensor]) -> None:
    with torch.no_grad():
        forward()


def train(forward: Callable[[], Tensor], inputs: Sequence[Tensor]) -> None:
    torch.autograd.grad(forward().sum(), inputs, allow_unused=True)


def _fits(name: str, run: Callable[[], object]) -> bool:
    try:
        run()
        return True
    except torch.OutOfMemoryError as error:
        reason = str(error).partition('. ')[0]
    torch.cuda.empty_cache()  # only after the error has released its tensors
    print(f'skipped {name}: {reason}')
    return False


def stopwatch() -> Callable[[Callable[[], object]], float]:
    """Return a function that times a case in seconds on the default device."""
    seconds = _seconds_on_cpu if torch.get_default_device().type == 'cpu' else _seconds_on_gpu

    def timed(case: Callable[[], object]) -> float:
        with default_device(None):  # which would slow down torch's calls
            return seconds(case)
    return timed


def _seconds_on_cpu(case: Callable[[], object]) -> float:
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def _seconds_on_gpu(case: Callable[[], object]) -> float:
    """Return the seconds that the GPU takes for a case, without its idle time before the launch."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    case()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def check_device(device: str) -> None:
    """Raise an error unless torch has the device and this module can time it."""
    try:
        if torch.device(device).type not in ('cpu', 'cuda'):
            raise RuntimeError("it is neither 'cpu' nor 'cuda'")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"'device' must be 'cpu', or 'cuda' if torch finds a GPU (got "
                         f"{device!r}): {str(error).splitlines()[0]}") from error


def seeded() -> torch.Generator:
    """Return a random generator on the default device with seed 0."""
    return torch.Generator(torch.get_default_device()).manual_seed(0)


def machine() -> str:
    is_cpu = torch.get_default_device().type == 'cpu'
    return f'{torch.get_num_threads()} threads' if is_cpu else torch.cuda.get_device_name()


def saved_bytes(forward: Callable[[], object]) -> int:
    """Return the bytes that autograd saves in a forward pass."""
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        parts = [tensor.values()] if tensor.layout != torch.strided else [tensor]
        for part in parts:
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = forward()
    del kept
    return sum(storages.values())


def elsewhere(measured: Callable[..., Measured], *arguments: object,
              start: Literal['forkserver', 'spawn'] = 'forkserver') -> Measured:
    """Run a function in a new process with the current default device, and return its result."""
    # Time needs ``spawn``, which takes seconds: a forked process cannot use torch's threads, and
    # its own compete for the cores with those that wait.
    context = forkserver() if start == 'forkserver' else get_context(start)
    with ProcessPoolExecutor(1, context) as pool, ending_children():
        with without_interrupts():
            result = pool.submit(_there, torch.get_default_device(), measured, *arguments)
        return result.result()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Return a context in which new processes do not receive Ctrl-C."""
    # A terminal sends the signal to all processes; this one handles it after the context.
    interrupts = []  # another thread, such as a progress bar's, may receive the signal
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
    # started here, because starting it later would unblock the signal
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def ending_children() -> Iterator[None]:
    """Return a context that ends all child processes if an interrupt occurs inside."""
    try:
        yield
    except KeyboardInterrupt:
        for process in active_children():
            process.kill()
        raise


def _there(device: torch.device, measured: Callable[..., Measured], *arguments: object) -> Measured:
    with default_device(device):
        return measured(*arguments)


def forkserver() -> BaseContext:
    """Return a context that forks processes from a parent that has imported everything and done no
    work."""
    context = get_context('forkserver')
    context.set_forkserver_preload(['experiments.benchmarks.scaling', 'graphattn.layers'])
    return context


def peak_bytes(step: Callable[[], object], warm_up: int = 0) -> int:
    """Return the peak memory in use during a step, in bytes above the memory before."""
    free_at_once()
    before = held_bytes()  # the peak includes what the warm-up leaves, such as a graph
    for _ in range(warm_up):
        step()
    start_peak_over()
    step()
    return max_held_bytes() - before


def held_bytes() -> int:
    """Return the number of bytes that this process uses, or on a GPU the number of bytes of its
    tensors."""
    return memory('VmRSS') if _counts_process() else torch.cuda.memory_allocated()


def max_held_bytes() -> int:
    """Return the maximum of :func:`held_bytes` since :func:`start_peak_over`."""
    return memory('VmHWM') if _counts_process() else torch.cuda.max_memory_allocated()


def start_peak_over() -> None:
    """Reset the maximum that :func:`max_held_bytes` returns."""
    if _counts_process():
        Path('/proc/self/clear_refs').write_text('5')
    else:
        torch.cuda.reset_peak_memory_stats()


def _counts_process() -> bool:
    return torch.get_default_device().type == 'cpu'


def free_at_once() -> None:
    """Make glibc return freed blocks of 128 KiB and more to the system, including blocks freed
    earlier."""
    # Otherwise glibc keeps blocks below 32 MiB, and a peak depends on whether the next one fits a
    # hole.
    library, mmap_threshold = ctypes.CDLL(None), -3  # in its malloc.h
    library.mallopt(mmap_threshold, 1 << 17)
    library.malloc_trim(ctypes.c_size_t(0))


def memory(name: Literal['VmRSS', 'VmHWM']) -> int:
    """Return the current or the maximum number of bytes of this process, as Linux reports them."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(f'{name}:'):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def progress(cases: Iterable, title: str) -> Iterable:
    return tqdm(list(cases), desc=title, unit='case', disable=None)


def drawn_over(rows: list[dict], x: str, columns: dict[str, str], cases: Sequence[str],
               dashed: Sequence[str] = ()) -> Figure:
    """Draw columns of a table over ``x`` in logarithmic panels, with a line for each case."""
    figure = Figure(figsize=(10, 4.5), layout='constrained')
    for axes, (column, title) in zip(figure.subplots(1, len(columns)), columns.items()):
        for case in cases:
            own = sorted((row for row in rows if row['case'] == case), key=lambda row: row[x])
            axes.loglog([row[x] for row in own], [row[column] for row in own], marker='o',
                        linestyle='--' if case in dashed else '-', label=case)
        axes.set_title(title)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        plain(axes)
    return figure


def plain(axes: Axes) -> None:
    """Show plain numbers instead of powers of ten at the ticks of a figure's axes, and draw a
    grid."""
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f'{number:,g}'))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which='both')
