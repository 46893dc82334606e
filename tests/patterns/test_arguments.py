"""Arguments that a pattern refuses, and how it says so."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
import torch

from graphattn.graphs.pair_layout import FreeLayout
from graphattn.patterns import (
    Cropped,
    EdgeList,
    Fixed,
    GlobalTokens,
    LogSparse,
    Mask,
    Neighborhood,
    Offsets,
    OverlappingBlocks,
    RandomBlocks,
    RandomKeys,
    RandomPairs,
    RandomRegular,
    ShiftedWindows,
    SlidingWindow,
    Strided,
)


def repeated_pair():
    return base64.b64encode(zlib.compress(np.array([1, 0], '<u4').tobytes())).decode()


def many_zeros():
    return base64.b64encode(zlib.compress(bytes(2**20))).decode()


@pytest.mark.parametrize(('make', 'error', 'match'), [
    (lambda: SlidingWindow(-1), ValueError, r"'radius' must not be negative \(got -1\)"),
    (lambda: SlidingWindow(1.0), TypeError, r"'radius' must be an int \(got float\)"),
    (lambda: SlidingWindow(True), TypeError, r"'radius' must be an int \(got bool\)"),
    (lambda: SlidingWindow(1, causal=1), TypeError, r"'causal' must be a bool \(got int\)"),
    (lambda: SlidingWindow(1, dilation=0), ValueError, r"'dilation' must be at least 1 \(got 0\)"),
    (lambda: OverlappingBlocks(5), ValueError, r"'width' must be even, .* \(got 5\)"),
    (lambda: OverlappingBlocks(0), ValueError, r"'width' must be at least 2 \(got 0\)"),
    (lambda: OverlappingBlocks('4'), TypeError, r"'width' must be an int \(got str\)"),
    (lambda: Neighborhood(0, (4,)), ValueError, r"'window' must be at least 1 \(got 0\)"),
    (lambda: Neighborhood(3.0, (4,)), TypeError, r"'window' must be an int \(got float\)"),
    (lambda: Neighborhood(3, (4, 0)), ValueError, r"'inner' must be at least 1 \(got 0\)"),
    (lambda: Neighborhood((3, 3), (4, 4)), ValueError, r"'window'.*axes.* \(got \(3, 3\)\)"),
    (lambda: Neighborhood(3, (4,), dilation=2), ValueError, r"'window'.*4.*3.*2\)"),
    (lambda: Neighborhood(3, (4,), causal=1), TypeError, r"'causal' must be a bool \(got int\)"),
    (lambda: Neighborhood(3, (4,)).build(8), ValueError, r"'window'.*first.*\(got"),
    (lambda: ShiftedWindows(3, (4,), shift=3), ValueError, r"'shift'.*\(got.*3\)"),
    (lambda: ShiftedWindows(3, (4,), shift=-1), ValueError, r"'shift' .* \(got -1\)"),
    (lambda: GlobalTokens(-1), ValueError, r"'tokens' must not be negative \(got -1\)"),
    (lambda: GlobalTokens([1]), TypeError, r"'tokens' must be an int or a tuple .* \(got list\)"),
    (lambda: GlobalTokens(True), TypeError, r"'tokens' must be an int \(got bool\)"),
    (lambda: GlobalTokens((1, 2.0)), TypeError, r"'tokens' must contain only ints \(got float\)"),
    (lambda: GlobalTokens((1, -2)), ValueError, r"'tokens' must.*\(got -2\)"),
    (lambda: GlobalTokens((1, 2), random=True), ValueError,
     r"'tokens' must.*number.*tokens.*positions.*\(1, 2\)\); pass tokens=2"),
    (lambda: GlobalTokens(2, random=0), TypeError, r"'random' must be a bool \(got int\)"),
    (lambda: GlobalTokens(2, first=1), ValueError, r"'first' must be omitted .*\(got 1\)"),
    (lambda: GlobalTokens(2, block=2), ValueError, r"'block' must be omitted .*\(got 2\)"),
    (lambda: GlobalTokens(2, random=True, first=-1), ValueError,
     r"'first' must not be negative \(got -1\)"),
    (lambda: GlobalTokens(2, random=True, block=0), ValueError,
     r"'block' must be at least 1 \(got 0\)"),
    (lambda: GlobalTokens(5, random=True, block=2), ValueError,
     r"'tokens' must.*multiple.*'block' \(got.*2\)"),
    (lambda: Cropped('star', 4), TypeError, r"'pattern' must be a Pattern \(got str\)"),
    (lambda: Cropped(Strided(2), 0), ValueError, r"'size' must be at least 1 \(got 0\)"),
    (lambda: RandomKeys(-2), ValueError, r"'count' must not be negative \(got -2\)"),
    (lambda: RandomKeys(None), TypeError, r"'count' must be an int \(got NoneType\)"),
    (lambda: RandomKeys(2, 'even'), ValueError,
     r"'spacing' must be 'random' or 'uniform' \(got 'even'\)"),
    (lambda: RandomKeys(2, 3), TypeError, r"'spacing' must be a str \(got int\)"),
    (lambda: RandomBlocks(-1, 4), ValueError, r"'count' must not be negative \(got -1\)"),
    (lambda: RandomBlocks(1, 0), ValueError, r"'block' must be at least 1 \(got 0\)"),
    (lambda: RandomRegular(-3), ValueError, r"'degree' must not be negative \(got -3\)"),
    (lambda: RandomRegular(3.5), TypeError, r"'degree' must be an int \(got float\)"),
    (lambda: Strided(0), ValueError, r"'stride' must be at least 1 \(got 0\)"),
    (lambda: Strided(4, causal=None), TypeError, r"'causal' must be a bool \(got NoneType\)"),
    (lambda: Fixed(0), ValueError, r"'block' must be at least 1 \(got 0\)"),
    (lambda: Fixed(4, summary=5), ValueError, r"'summary' must.*'block' \(got 5"),
    (lambda: Fixed(4, summary=-1), ValueError, r"'summary' must not be negative \(got -1\)"),
    (lambda: RandomPairs(-1), ValueError, r"'count' must not be negative \(got -1\)"),
    (lambda: RandomPairs(2.0), TypeError, r"'count' must be an int \(got float\)"),
    (lambda: Mask(3, '1'), TypeError, r"'layout' must be a PairLayout \(got int\)"),
    (lambda: Mask(FreeLayout(2), '101'), ValueError, r"'values' must.*4.*\(got 3 "),
    (lambda: Mask(FreeLayout(2), '1021'), ValueError, r"'values' must.*4.*'1021'\)"),
    (lambda: Mask(FreeLayout(2), torch.ones(4)), TypeError, r"'values' must be a str .*Tensor\)"),
    (lambda: Mask(FreeLayout(2), torch.ones(2, 2).bool()), TypeError, r"'values' must be a str "),
    (lambda: Offsets([1]), TypeError, r"'offsets' must be a tuple of ints \(got list\)"),
    (lambda: Offsets((1, 2.)), TypeError, r"'offsets' must.*ints \(got float\)"),
    (lambda: Offsets((2**41,)), ValueError, r"'offsets' must.*\d+.*\(got 2"),
    (lambda: EdgeList(0, ''), ValueError, r"'tokens' must be at least 1 \(got 0\)"),
    (lambda: EdgeList(2**16, ''), ValueError, r"'tokens' must be at most 65535 \(got 65536\)"),
    (lambda: EdgeList(2, 3), TypeError, r"'pairs' must be a str or an int64 Tensor"),
    (lambda: EdgeList(2, torch.ones(2, 2)), TypeError, r"'edge_index' must be an int64 Tensor"),
    (lambda: EdgeList(2, torch.tensor([[2], [0]])), ValueError, r"'edge_index\[0\]' must "),
    (lambda: EdgeList(2, 'no base 64'), ValueError, "'pairs' must.*'no base 64'"),
    (lambda: EdgeList(2, 'AAAA'), ValueError, "'pairs' must.*'AAAA'"),
    (lambda: EdgeList(2, EdgeList(9, torch.tensor([[8], [8]])).pairs), ValueError,
     "'pairs' must.*different pairs.*tokens.*got 'eNoLYGBgAAABRABR'"),
    (lambda: EdgeList(2, repeated_pair()), ValueError, "'pairs' must.*got 'eJxjZIAAAAAQAAI='"),
    (lambda: EdgeList(2, many_zeros()), ValueError, r"'pairs' .*more than 16 bytes"),
    (lambda: LogSparse('yes'), TypeError, r"'causal' must be a bool \(got str\)"),
])
def test_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(('pattern', 'size', 'match'), [
    (GlobalTokens(4), (3,), r"'tokens' must.*tokens.*\(got 4\)"),
    (GlobalTokens(4, random=True), (9, 3), r"'tokens' must.*tokens.*\(got 4\)"),
    (GlobalTokens(4, random=True, first=3), (6,),
     r"must.*tokens that.*query.*key.*position 3.*\(got 4\)"),
    (GlobalTokens(4, random=True, first=1, block=2), (4,),
     r"'tokens' must.*tokens.*position 1.*blocks.*2 \(got 4\)"),
    (GlobalTokens(1, random=True, first=9), (4,), "'tokens' must.*0 tokens"),
    (Cropped(RandomKeys(2), 8), (9,), r"'length' must.*tokens.*\(got 9\)"),
    (Cropped(RandomKeys(2), 8), (3, 9), r"'length' must.*tokens.*\(got 9\)"),
    (Cropped(RandomKeys(9), 8), (3,), r"'count' must.*8.*\(got 9\)"),
    (GlobalTokens((0, 5)), (5, 9), r"'tokens' must contain.*positions below 5,.*\(got 5\)"),
    (RandomKeys(4), (9, 3), r"'count' must.*3.*\(got 4\)"),
    (RandomKeys(4, 'uniform'), (3,), r"'count' must.*3.*\(got 4\)"),
    (RandomBlocks(4, 3), (8,), r"'count' must.*blocks.*3 keys \(got 4\)"),
    (RandomPairs(10), (3,), r"'count' must.*9.*\(got 10\)"),
    (Mask(FreeLayout(2), '1010'), (3,), r"'length' must.*tokens.*\(got 3\)"),
    (Mask(FreeLayout(2), '1010'), (2, 1), r"'num_keys' must equal 'num_queries'.*\(got.*2"),
    (RandomRegular(3), (3,), r"'degree' must.*below.*tokens,.*\(got 3\)"),
    (RandomRegular(2), (5, 6), r"'num_keys' must equal 'num_queries'.*\(got.*5\)"),
])
def test_lengths_that_are_too_short(pattern, size, match):
    with pytest.raises(ValueError, match=match):
        pattern.build(*size, seed=0)
