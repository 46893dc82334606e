"""A checkpoint runs what it holds twice, and no more often."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from tests.modules import CASES, INPUTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name', CASES)
def test_a_checkpoint_runs_a_module_twice(name):
    case, runs = CASES[name], []
    torch.manual_seed(0)
    module = case.make()
    module.register_forward_pre_hook(lambda *_: runs.append(1))
    inputs = [INPUTS[part] for part in case.inputs]
    out = checkpoint(lambda *given: module(*given, **case.options), *inputs, use_reentrant=False)
    sum(x.square().sum() for x in tree_leaves(out) if isinstance(x, torch.Tensor)).backward()
    assert len(runs) == 2
