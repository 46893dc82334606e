"""SplitMix64: what is written for each compiler gives the bits of the definition."""

import numpy as np
import pytest
import torch
from torch import Tensor

from graphattn._splitmix import STEP, mix, mix_tensor, signed

STATES = [0, STEP, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1,
          *(3**exponent for exponent in range(1, 40, 3))]


def by_torch(states: Tensor) -> Tensor:
    return mix_tensor(states)


def by_torch_on_gpus(states: Tensor) -> Tensor:
    simulated = pytest.importorskip('tests.simulated_gpu', exc_type=ImportError)
    with simulated.simulated_gpu():
        return mix_tensor(states.to('cuda')).cpu()


def by_numba(states: Tensor) -> Tensor:
    numba = pytest.importorskip('numba')
    from graphattn.ops.cpu.splitmix import mix as compiled

    run = numba.vectorize(['uint64(uint64)'])(lambda bits: compiled(bits))
    return torch.from_numpy(run(states.numpy().view(np.uint64)).view(np.int64))


def by_triton(states: Tensor) -> Tensor:
    pytest.importorskip('triton')
    from tests.ops.triton.interpreter import interpreted
    from tests.ops.triton.mixing import mixed

    with interpreted():
        return mixed(states)


def test_the_definition_returns_published_values():
    """Those of Java's SplittableRandom and of the generator that xoshiro is begun with, of seed 0
    and 1234567."""
    assert [mix(n * STEP % 2**64) for n in (1, 2, 3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(1234567 + STEP) == 6457827717110365317


@pytest.mark.parametrize('implementation', [
    by_torch, pytest.param(by_torch_on_gpus, marks=pytest.mark.slow),
    pytest.param(by_numba, marks=pytest.mark.slow),
    pytest.param(by_triton, marks=pytest.mark.slow)])
def test_every_implementation_gives_the_bits_of_the_definition(implementation):
    states = torch.tensor([signed(state) for state in STATES])
    assert implementation(states).tolist() == [signed(mix(state)) for state in STATES]
