"""Train modules of every kind on a real GPU, and compare them with the CPU."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from graphattn.functional import choose
from tests.modules import CASES, INPUTS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'),
              pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')]


def to(device: str, tree):
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, tree)


def step(module: nn.Module, inputs: list[Tensor], options: dict[str, Tensor],
         seed: int = 1) -> dict[str, Tensor]:
    """Return the loss and the gradients of parameters."""
    torch.manual_seed(seed)
    module.zero_grad()
    loss = sum(x.square().sum() for x in tree_leaves(module(*inputs, **options))
               if isinstance(x, Tensor))
    loss.backward()
    return to('cpu', {'loss': loss.detach(), **{
        name: x.grad.clone() for name, x in module.named_parameters() if x.grad is not None}})


@pytest.mark.parametrize('name', CASES)
def test_a_step_is_that_of_a_cpu(name, monkeypatch):
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cpu', choose.GATHER)
    case = CASES[name]
    module, inputs = case.make(), [INPUTS[part] for part in case.inputs]
    there = copy.deepcopy(module).to('cuda')
    found = step(there, *to('cuda', (inputs, case.options)))
    expected = step(module, inputs, case.options)
    assert found.keys() == expected.keys() > {'loss'}
    assert all(bool(x.isfinite().all()) for x in found.values())
    is_random = not torch.equal(expected['loss'], step(module, inputs, case.options, 2)['loss'])
    if not is_random:  # the two devices draw other numbers
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
    again = step(there, *to('cuda', (inputs, case.options)))
    torch.testing.assert_close(again, found, rtol=2e-4, atol=2e-4)
