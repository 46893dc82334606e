"""Parameters and inputs that are edited in any way between calls: nothing that is kept is stale."""

from __future__ import annotations

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.fuzz.budget import cases
from tests.modules import CASES, INPUTS, Penalised

EDITS = {
    'in place': lambda x: x.mul_(-1.25),
    'through .data': lambda x: x.data.mul_(-1.25),
    'rows through .data': lambda x: x.data.copy_(x.data.flip(0)),
    'through numpy': lambda x: x.detach().numpy().__imul__(-1.25),
    'other storage': lambda x: setattr(x, 'data', x.data * -1.25),
    'by a step': lambda x: torch.optim.SGD([x], lr=.5).step() if x.grad is not None else None,
}
# The rows of 'edges' trade places: the same nodes, against their direction.
EDGE_EDITS = {
    'in place': lambda x: x.copy_(x.flip(0)),
    'through .data': lambda x: x.data.copy_(x.flip(0)),
    'columns through .data': lambda x: x.data.copy_(x.flip(1)),
    'through numpy': lambda x: x.numpy().__setitem__(slice(None), x.flip(0).numpy()),
    'other storage': lambda x: setattr(x, 'data', x.flip(0)),
}


@cases(40)
@given(name=st.sampled_from([*CASES]), data=st.data(), calls=st.integers(1, 3))
def test_an_edit_is_seen_whatever_made_it(name, data, calls):
    torch.manual_seed(0)
    module, inputs = CASES[name].make(), {part: INPUTS[part].clone() for part in CASES[name].inputs}
    for _ in range(calls):
        modes = [True] if isinstance(module, Penalised) else [True, False]
        module.train(data.draw(st.sampled_from(modes), 'trains'))
        step(name, module, inputs)
        for parameter in module.parameters():
            edit = data.draw(st.sampled_from([None, *EDITS]), 'edit')
            if edit is not None:
                with torch.no_grad():
                    EDITS[edit](parameter)
        if 'edges' in inputs:
            EDGE_EDITS[data.draw(st.sampled_from([*EDGE_EDITS]), 'edit of edges')](inputs['edges'])
    found = step(name, module, inputs)
    torch.testing.assert_close(found, step(name, copy.deepcopy(module), copy.deepcopy(inputs)),
                               equal_nan=True)


def step(name: str, module: torch.nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Outputs and gradients."""
    torch.manual_seed(1)
    module.zero_grad()
    outs = [x for x in tree_leaves(module(*inputs.values(), **CASES[name].options))
            if isinstance(x, Tensor) and x.requires_grad]
    sum(out.square().mean() for out in outs).backward()
    return [*(out.detach() for out in outs),
            *(x.grad.clone() for x in module.parameters() if x.grad is not None)]
