"""A kernel that mixes bits and does nothing else."""

import triton
import triton.language as tl
from torch import Tensor

from graphattn.ops.triton.softmax import mix


def mixed(states: Tensor) -> Tensor:
    out = states.new_empty(triton.next_power_of_2(len(states)))
    _mix[(1,)](states, out, len(states), SIZE=len(out))
    return out[:len(states)]


@triton.jit
def _mix(states, out, num_states, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    bits = tl.load(states + at, mask=at < num_states, other=0).to(tl.uint64, bitcast=True)
    tl.store(out + at, mix(bits).to(tl.int64, bitcast=True))
