"""Tensors that callers hold, or that their hooks have seen, stay what they are; and a checkpoint
runs what it holds twice, and no more often."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from tests.modules import CASES, CHANNELS, INPUTS

pytestmark = pytest.mark.slow


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    return CASES[request.param]


def tensors(tree) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def run(module: nn.Module, inputs: list[Tensor], options: dict) -> list[Tensor]:
    torch.manual_seed(1)
    return [out for out in tensors(module(*inputs, **options)) if out.requires_grad]


def inputs_of(case) -> list[Tensor]:
    """The inputs, whose gradients are asked for where they have some."""
    given = [INPUTS[name].clone() for name in case.inputs]
    return [x.requires_grad_() if x.is_floating_point() else x for x in given]


def test_tensors_that_hooks_hold_are_never_modified(case):
    module, seen = case.make(), []

    def note(_, given, out=()):
        seen.extend((x, x.detach().clone()) for x in tensors([given, out]))

    for part in module.modules():
        part.register_forward_pre_hook(note)
        part.register_forward_hook(note)
    inputs = inputs_of(case)
    sum(out.square().sum() for out in run(module, inputs, case.options)).backward()
    assert len(seen) > 2
    for now, before in seen:
        torch.testing.assert_close(now.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_gradients_at_an_output_are_correct(case):
    module = case.make()
    for out in run(module, inputs_of(case), case.options):
        if out.is_leaf:
            continue
        loss, noted = out.square().sum(), []
        asked, = torch.autograd.grad(loss, out, retain_graph=True)
        out.retain_grad()
        out.register_hook(noted.append)
        loss.backward(retain_graph=True)
        for grad in (asked, out.grad, *noted):
            torch.testing.assert_close(grad, 2 * out.detach(), rtol=0, atol=0)


def square_linears(module: nn.Module) -> list[str]:
    """The projections that an identity may take the place of."""
    return [name for name, part in module.named_modules()
            if hasattr(part, 'weight') and hasattr(part, 'bias') and 'Linear' in type(part).__name__
            and part.weight.dim() == 2 and part.weight.size(0) == part.weight.size(1) == CHANNELS]


def eye(part: nn.Module) -> None:
    with torch.no_grad():
        nn.init.eye_(part.weight)
        if part.bias is not None:
            part.bias.zero_()


# Models hold layers that are among the others, and what they have beside these.
WITH_PROJECTIONS = [name for name in CASES if 'tokens' not in CASES[name].inputs] + [
    'encoder', 'pooler', 'masked tokens']


@pytest.mark.parametrize('case', WITH_PROJECTIONS, indirect=True)
def test_an_identity_may_replace_a_projection(case):
    """It returns the very tensor that it was given, which belongs to the caller."""
    module = case.make()
    for name in square_linears(module):
        by_weight, by_identity = copy.deepcopy(module), copy.deepcopy(module)
        eye(by_weight.get_submodule(name))
        by_identity.set_submodule(name, nn.Identity())
        results = []
        for each in (by_weight, by_identity):
            inputs = inputs_of(case)
            before = [x.detach().clone() for x in inputs]
            try:
                outs = run(each, inputs, case.options)
            except AttributeError:  # torch's own modules read the weight of theirs
                continue
            assert all(map(torch.equal, inputs, before)), name
            sum(out.square().sum() for out in outs).backward()
            results.append([*outs, *(x.grad for x in inputs if x.requires_grad)])
        if len(results) == 2:
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_runs_a_module_twice(case):
    module, runs = case.make(), []
    module.register_forward_pre_hook(lambda *_: runs.append(1))
    inputs = [INPUTS[part] for part in case.inputs]
    out = checkpoint(lambda *given: module(*given, **case.options), *inputs, use_reentrant=False)
    sum(x.square().sum() for x in tensors(out)).backward()
    assert len(runs) == 2
