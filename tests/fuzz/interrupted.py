"""Operations that signals interrupt at random moments.

    python -m tests.fuzz.interrupted <signals for each number of threads> <seed>

Each signal makes one exception, which must come through; and what returns without one must be
whole. torch fills memory with NaN before it is used, and each operation has two inputs that take
turns, so that what an earlier call has left in memory is a wrong result.
"""

import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from select import select

import torch
from torch import Tensor

from graphattn.functional import edge_attention
from graphattn.patterns import RandomKeys
from graphattn.samplers import FactorModel, sample_bernoulli, sample_fastrg

Operation = Callable[[int], tuple[Tensor, ...]]  # of the number of the input that it takes


class Disturbed(Exception):
    """Exception of the handler of another signal than Ctrl-C."""


def disturb(number, frame):
    raise Disturbed


def start_sender() -> tuple[int, int]:
    """A process that sends this one the signals that it is told to: where to write, when they are
    sent one byte each comes from where to read."""
    (orders, to_sender), (from_sender, sent) = os.pipe(), os.pipe()
    target = os.getpid()
    if os.fork() > 0:
        os.close(orders)
        return to_sender, from_sender
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(to_sender)
    with os.fdopen(orders) as lines:
        for line in lines:
            number, seconds = line.split()
            time.sleep(float(seconds))
            os.kill(target, int(number))
            os.write(sent, b'.')
    os._exit(0)


def operations() -> dict[str, Operation]:
    graph = RandomKeys(16).build(1024, seed=0)
    inputs = [[torch.randn(1024, 4, 16, requires_grad=True) for _ in range(3)] for _ in range(2)]
    dense, sparse = (FactorModel(torch.rand(512, 4), scale * torch.rand(4, 4), torch.rand(512, 4))
                     for scale in (0.1, 0.002))

    def attend(turn, **options):
        return edge_attention(*inputs[turn], graph, backend='numba', **options),

    def train(turn, **options):
        return torch.autograd.grad(attend(turn, **options)[0].sum(), inputs[turn])

    def draw(sampler, turn, model, **options):
        return sampler(model, generator=torch.Generator().manual_seed(turn), **options).csr

    return {'attention': attend, 'training step': train,
            'diffusion': lambda turn: attend(turn, hops=4, teleport=0.1),
            'training step of diffusion': lambda turn: train(turn, hops=4, teleport=0.1),
            'comparing': lambda turn: draw(sample_bernoulli, turn, dense, method='compare'),
            'thinning': lambda turn: draw(sample_bernoulli, turn, sparse, method='thin'),
            'fastRG': lambda turn: draw(sample_fastrg, turn, dense)}


def bytes_of(tensors: tuple[Tensor, ...]) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def interrupt(operation: Operation, expected: list[list[bytes]], order: str, to_sender: int,
              from_sender: int) -> str:
    """Return the outcome of one signal, and of the calls before it."""
    torch.set_grad_enabled(True)  # torch.no_grad() leaves it off if it is interrupted as it begins
    end, outcome = math.inf, 'lost'
    try:
        os.write(to_sender, order.encode())
        for turn in cycle((0, 1)):
            if end == math.inf and select([from_sender], [], [], 0)[0]:
                end = time.monotonic() + 10
            if time.monotonic() > end:
                break
            if bytes_of(operation(turn)) != expected[turn]:
                outcome, end = 'not whole', 0
    except KeyboardInterrupt:
        outcome = 'KeyboardInterrupt'
    except Disturbed:
        outcome = 'Disturbed'
    except BaseException as error:  # another than its handler raised
        outcome = repr(error)
    try:
        os.read(from_sender, 1)
    except (KeyboardInterrupt, Disturbed):
        outcome += ', not by the signal'
        os.read(from_sender, 1)
    return outcome


def main() -> None:
    number, seed = map(int, sys.argv[1:])
    pipes, draw = start_sender(), random.Random(seed)
    signal.signal(signal.SIGUSR1, disturb)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(seed)
    named, outcomes = operations(), {}
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        expected, seconds = {}, {}
        for name, operation in named.items():
            expected[name] = [bytes_of(operation(turn)) for turn in (0, 1)]
            start = time.perf_counter()
            operation(0)
            seconds[name] = time.perf_counter() - start
        counts = Counter()
        for _ in range(number):
            name = draw.choice(list(named))
            sent = draw.choice(['KeyboardInterrupt', 'Disturbed'])
            code = {'KeyboardInterrupt': signal.SIGINT, 'Disturbed': signal.SIGUSR1}[sent]
            order = f'{int(code)} {draw.random() * 2 * seconds[name]}\n'
            outcome = interrupt(named[name], expected[name], order, *pipes)
            counts['raised' if outcome == sent else f'{name}: {sent} {outcome}'] += 1
        outcomes[threads] = counts
    print(json.dumps(outcomes))


if __name__ == '__main__':
    main()
