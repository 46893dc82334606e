"""Arguments that a pattern refuses, and how it says so."""

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
    Mask,
    Neighborhood,
    Offsets,
    OverlappingBlocks,
    RandomBlocks,
    RandomKeys,
    RandomPairs,
    RandomRegular,
    ShiftedWindows,
)


def repeated_pair():
    return base64.b64encode(zlib.compress(np.array([1, 0], '<u4').tobytes())).decode()


def many_zeros():
    return base64.b64encode(zlib.compress(bytes(2**20))).decode()


@pytest.mark.parametrize(('make', 'match'), [
    (lambda: OverlappingBlocks(5), r"'width' must be even, .* \(got 5\)"),
    (lambda: Neighborhood(3, (4, 0)), r"'inner' must be at least 1 \(got 0\)"),
    (lambda: Neighborhood((3, 3), (4, 4)), r"'window'.*axes.* \(got \(3, 3\)\)"),
    (lambda: Neighborhood(3, (4,), dilation=2), r"'window'.*4.*3.*2\)"),
    (lambda: Neighborhood(3, (4,)).build(8), r"'window'.*first.*\(got"),
    (lambda: ShiftedWindows(3, (4,), shift=3), r"'shift'.*\(got.*3\)"),
    (lambda: GlobalTokens([1]), r"'tokens' must be an int or a tuple .* \(got list\)"),
    (lambda: GlobalTokens((1, 2.0)), r"'tokens' must contain only ints \(got float\)"),
    (lambda: GlobalTokens((1, -2)), r"'tokens' must.*\(got -2\)"),
    (lambda: GlobalTokens((1, 2), random=True), r"'tokens' must.*\(1, 2\)\); pass tokens=2"),
    (lambda: GlobalTokens(2, first=1), r"'first' must be omitted .*\(got 1\)"),
    (lambda: GlobalTokens(2, block=2), r"'block' must be omitted .*\(got 2\)"),
    (lambda: GlobalTokens(5, random=True, block=2), r"'tokens' must.*'block' \(got.*2\)"),
    (lambda: RandomKeys(2, 'even'), r"'spacing' must be .* \(got 'even'\)"),
    (lambda: Fixed(4, summary=5), r"'summary' must.*'block' \(got 5"),
    (lambda: Mask(FreeLayout(2), '101'), r"'values' must.*4.*\(got 3 "),
    (lambda: Mask(FreeLayout(2), '1021'), r"'values' must.*4.*'1021'\)"),
    (lambda: Mask(FreeLayout(2), torch.ones(4)), r"'values' must be a str .*Tensor\)"),
    (lambda: Offsets([1]), r"'offsets' must be a tuple of ints \(got list\)"),
    (lambda: Offsets((1, 2.)), r"'offsets' must.*ints \(got float\)"),
    (lambda: Offsets((2**41,)), r"'offsets' must.*\d+.*\(got 2"),
    (lambda: EdgeList(2**16, ''), r"'tokens' must be at most 65535 \(got 65536\)"),
    (lambda: EdgeList(2, torch.tensor([[2], [0]])), r"'edge_index\[0\]' must "),
    (lambda: EdgeList(2, 'no base 64'), "'pairs' must.*'no base 64'"),
    (lambda: EdgeList(2, 'AAAA'), "'pairs' must.*'AAAA'"),
    (lambda: EdgeList(2, EdgeList(9, torch.tensor([[8], [8]])).pairs), "'pairs' must.*tokens"),
    (lambda: EdgeList(2, repeated_pair()), "'pairs' must.*got 'eJxjZIAAAAAQAAI='"),
    (lambda: EdgeList(2, many_zeros()), r"'pairs' .*more than 16 bytes"),
])
def test_arguments_that_do_not_fit_one_another(make, match):
    """What is wrong in itself is in tests/test_arguments.py."""
    with pytest.raises((TypeError, ValueError), match=match):
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
