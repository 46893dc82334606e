"""SplitMix64 (Steele et al., 2014): counter-based random bits, in any order and on any device.

Word ``n`` of the stream that begins at ``state`` is ``mix(state + n * STEP)``, modulo 2^64.
Compiled loops and GPU kernels share these constants.
"""

import numpy as np
import torch
from torch import Tensor

from graphattn._tensors import is_traced

STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
ROW = 0xD1342543DE82EF95  # added to the seed from one row's stream to the next


def mix(bits: int) -> int:
    """Return the hash of a 64-bit integer, the same in tensors, compiled loops and GPU kernels."""
    bits = (bits ^ bits >> 30) * FIRST % 2**64
    bits = (bits ^ bits >> 27) * SECOND % 2**64
    return bits ^ bits >> 31


def mix_tensor(bits: Tensor) -> Tensor:
    # int64 values, read as 64 unsigned bits
    bits = shift_right(bits, 30).bitwise_xor_(bits).mul_(signed(FIRST))
    bits = shift_right(bits, 27).bitwise_xor_(bits).mul_(signed(SECOND))
    return shift_right(bits, 31).bitwise_xor_(bits)


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Return int64 values shifted right by ``by`` bits, with zeros on the left."""
    # numpy takes half of torch's time
    if type(bits) is Tensor and bits.device.type == 'cpu' and not is_traced(bits):
        return torch.from_numpy((bits.numpy().view(np.uint64) >> np.uint64(by)).view(np.int64))
    return (bits >> by).bitwise_and_(2**(64 - by) - 1)


def signed(bits: int) -> int:
    # the same 64 bits
    return bits - 2**64 if bits >= 2**63 else bits
