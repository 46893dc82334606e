"""Memory for rows that compiled loops fill."""

import math

import pytest
import torch

from graphattn.ops.cpu.rows import HUGE, new_rows


@pytest.mark.parametrize('shape', [(0, 4), (3, 2, 4), (HUGE // 16, 4), (HUGE // 8 + 1, 1, 3)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_rows_are_contiguous_from_a_line_of_the_cache_on(shape, dtype):
    rows = new_rows(*shape, dtype=dtype)
    assert rows.shape == shape and rows.dtype == dtype and rows.is_contiguous()
    assert rows.data_ptr() % 64 == 0
    assert rows.fill_(2).sum() == 2 * math.prod(shape)
