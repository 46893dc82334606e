"""Examine the kernels of Triton, and the other backends, on a real GPU by the public function."""

from __future__ import annotations

import pytest
import torch

from graphattn.functional import edge_attention
from graphattn.testing import check_attention
from graphattn.testing.checks import CHECKS
from tests.testing.test_backends import declared

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from graphattn.ops.attention import triton_short_rows as short_rows  # noqa: E402
from graphattn.ops.attention import triton_tiles as tiles  # noqa: E402
from graphattn.ops.triton.launch import MAX_CHANNELS  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'),
              pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')]

# The number of edges from which on a tile is computed as a whole, and the mean number below which
# rows are short.
WAYS = {'rows': (2**20, 0), 'short rows': (2**20, 2**20), 'tiles': (1, 0), 'as chosen': None}


@pytest.mark.parametrize('check', [check.name for check in CHECKS])
@pytest.mark.parametrize('way', WAYS)
def test_kernels_are_right(way, check, monkeypatch):
    if WAYS[way] is not None:
        edges_of_a_tile, short = WAYS[way]
        monkeypatch.setattr(tiles, 'EDGES_OF_A_TILE',
                            dict.fromkeys(tiles.EDGES_OF_A_TILE, edges_of_a_tile))
        monkeypatch.setattr(short_rows, 'FASTER_BELOW', dict.fromkeys((2, 4, 8), short))

    def attention(query, key, value, graph, **terms):
        backend = 'triton' if query.size(-1) <= MAX_CHANNELS else 'auto'
        return edge_attention(query, key, value, graph, backend=backend, **terms)

    check_attention(attention, supports=declared('triton'), checks=[check], device='cuda',
                    time_limit=60.).check()


@pytest.mark.parametrize('name', ['gather', 'csr', 'sdpa', 'reference'])
def test_other_backends_are_right(name):
    def attention(query, key, value, graph, **terms):
        return edge_attention(query, key, value, graph, backend=name, **terms)

    checks = ['graphs', 'nothing to attend to', 'half precision', 'bias', 'grouped queries']
    check_attention(attention, supports=declared(name), checks=checks, device='cuda',
                    time_limit=60.).check()
