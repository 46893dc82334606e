"""The order of an epoch is that of the trainer's epoch, whatever epoch Lightning passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.tasks.batch_stream import ShuffledEpochs
from experiments.tasks.synthetic import _FreshIndices


def trainer(epoch: int) -> SimpleNamespace:
    progress = SimpleNamespace(current=SimpleNamespace(processed=0))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    return SimpleNamespace(world_size=1, global_rank=0, current_epoch=epoch, fit_loop=loop)


@pytest.mark.parametrize('make', [lambda at: ShuffledEpochs(range(30), 5, at),
                                  lambda at: _FreshIndices(6, at)], ids=['shuffled', 'fresh'])
def test_a_resumed_epoch_keeps_its_order(make):
    """Without ``max_epochs``, Lightning passes the next epoch on resumption."""
    orders = []
    for passed in (1, 2):
        sampler = make(trainer(epoch=1))
        sampler.set_epoch(passed)
        orders.append(list(sampler))
    assert orders[0] == orders[1] != list(make(trainer(epoch=2)))
