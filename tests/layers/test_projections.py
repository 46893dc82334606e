"""Several projections of the same features are what each module makes of them."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from graphattn.layers import projections
from graphattn.layers.projections import project
from graphattn.ops.pages import HUGE


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def changed(change) -> list[nn.Module]:
    linears = [nn.Linear(5, 6) for _ in range(3)]
    change(linears)
    return linears


LINEARS = {
    'plain': lambda: [nn.Linear(5, 6) for _ in range(3)],
    'of PyG': lambda: [pyg.Linear(5, 6), nn.Linear(5, 6)],
    'lazy': lambda: [pyg.Linear(-1, 6), pyg.Linear(-1, 6)],
    'without bias': lambda: [nn.Linear(5, 6, bias=False) for _ in range(2)],
    'one without bias': lambda: [nn.Linear(5, 6), nn.Linear(5, 6, bias=False)],
    'of several widths': lambda: [nn.Linear(5, 6), nn.Linear(5, 3)],
    'of a class of its own': lambda: [nn.Linear(5, 6), Scaled(5, 6)],
    'another module': lambda: [nn.Linear(5, 6), nn.Sequential(nn.Linear(5, 6), nn.ReLU())],
    'hooked': lambda: changed(lambda linears: linears[1].register_forward_hook(
        lambda module, inputs, out: 3 * out)),
    'hooked before': lambda: changed(lambda linears: linears[1].register_forward_pre_hook(
        lambda module, inputs: (3 * inputs[0],))),
    'hooked backward': lambda: changed(lambda linears: linears[2].register_full_backward_hook(
        lambda module, grads, of_out: (None if grads[0] is None else 2 * grads[0],))),
    'pruned': lambda: changed(lambda linears: prune.l1_unstructured(linears[0], 'weight', 0.5)),
    'parametrised': lambda: changed(lambda linears: parametrize.register_parametrization(
        linears[0], 'weight', Doubled())),
    'with a forward of its own': lambda: changed(lambda linears: setattr(
        linears[2], 'forward', lambda x: x @ linears[2].weight.t())),
}


@pytest.mark.parametrize('are_large', [False, True])
@pytest.mark.parametrize('num_nodes', [0, 1, 7])
@pytest.mark.parametrize('name', LINEARS)
def test_outputs_and_gradients_equal_those_of_each_module(name, num_nodes, are_large, monkeypatch):
    monkeypatch.setattr(projections, 'HUGE', 0 if are_large else HUGE)
    torch.manual_seed(0)
    linears = LINEARS[name]()
    for linear in linears:
        linear(torch.ones(1, 5))  # lazy ones have their parameters now
        linear.double()
    x = torch.randn(num_nodes, 5, dtype=torch.double, requires_grad=True)
    parameters = [x, *nn.ModuleList(linears).parameters()]
    results = []
    for outs in (project(x, *linears), [linear(x) for linear in linears]):
        loss = sum(out.sin().sum() * (i + 1) for i, out in enumerate(outs))
        results.append([*outs, *torch.autograd.grad(loss, parameters, allow_unused=True,
                                                    materialize_grads=True)])
    torch.testing.assert_close(*results)


def test_second_derivatives_equal_those_of_each_module(monkeypatch):
    monkeypatch.setattr(projections, 'HUGE', 0)
    linear, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.double, requires_grad=True)

    def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return projections._Product.apply(x, weight, bias).sin()

    assert torch.autograd.gradgradcheck(product, (x, linear.weight, linear.bias))
