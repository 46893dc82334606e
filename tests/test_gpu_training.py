"""Training on a GPU has the numbers of training on a CPU, and who waits for it has a reason."""

import copy
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from graphattn import ops
from graphattn.functional import choose
from graphattn.graphs.cache import GRAPHS
from graphattn.hugging_face import attach
from graphattn.samplers import bernoulli, fastrg

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.modules import (  # noqa: E402
    CASES,
    CHANNELS,
    HEADS,
    INPUTS,
    attention,
    block_model,
)
from tests.simulated_gpu import (  # noqa: E402
    counted_launches,
    out_of_memory_after,
    simulated_gpu,
    to_gpu,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]


@pytest.fixture
def gpu(monkeypatch):
    """Both devices draw by the same operations, and so the same graphs."""
    for sampler in (bernoulli, fastrg):
        monkeypatch.setattr(sampler, 'takes_compiled', lambda model, method: False)
    # Whose operators are not torch's, and want a real GPU.
    monkeypatch.setattr('torch_geometric.typing.WITH_TORCH_SCATTER', False)
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', choose.GATHER)
    with torch.random.fork_rng(devices=[]), simulated_gpu() as waits:
        torch.manual_seed(0)
        yield waits


def numbers(tree: Any) -> Any:
    """Those of tensors that all are on the GPU."""
    return tree_map(lambda x: x.on_cpu, tree)


# Steps ###############################################################################


class Step(NamedTuple):
    loss: Tensor
    grads: dict[str, Tensor]


def step(module: nn.Module, *inputs: Tensor, gpu: Counter | None = None, **options) -> Step:
    """Forward and backward; what ``gpu`` has counted before the backward pass is ``'forward'``."""
    torch.manual_seed(1)
    module.zero_grad()
    loss = sum(x.square().sum() for x in tree_leaves(module(*inputs, **options))
               if isinstance(x, Tensor))
    if gpu is not None:
        gpu['forward'] = gpu.total()
    loss.backward()
    return Step(loss.detach(), {name: x.grad for name, x in module.named_parameters()
                                if x.grad is not None})


def step_there(gpu: Counter, module: nn.Module, *inputs: Tensor, **options) -> Step:
    """One with a batch of its own, after another that has built what is kept."""
    step(module, *to_gpu(inputs), **to_gpu(options))
    inputs, options = to_gpu((inputs, options))
    gpu.clear()
    return step(module, *inputs, gpu=gpu, **options)


class Backward(torch.autograd.Function):
    """An object whose gradient a function computes itself."""

    @staticmethod
    def forward(ctx, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


def test_what_a_backward_pass_does_is_seen(gpu):
    x = to_gpu(torch.ones(3)).requires_grad_()
    Backward.apply(x, lambda grad: grad + torch.full((3,), 2., device='cuda')).sum().backward()
    assert x.grad.on_cpu.tolist() == [3.] * 3 and not gpu
    Backward.apply(x, lambda grad: grad * grad.sum().item()).sum().backward()
    assert gpu == {'_local_scalar_dense': 1}
    with pytest.raises(RuntimeError, match='mixes devices'):
        Backward.apply(x, lambda grad: grad + torch.ones(3)).sum().backward()


@pytest.mark.parametrize('name', CASES)
def test_a_step_has_the_numbers_of_cpus(gpu, name):
    case = CASES[name]
    module, inputs = case.make(), [INPUTS[part] for part in case.inputs]
    there = copy.deepcopy(module).to('cuda')
    expected = step(module, *inputs, **case.options)
    found = step_there(gpu, there, *inputs, **case.options)
    forward = gpu.pop('forward')
    assert forward <= case.waits and gpu.total() - forward <= case.waits_back, (forward, gpu)
    assert expected.grads
    # A last norm leaves little of a gradient: beside float64, that of 'grid' errs by 1.1e-4 there.
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
@pytest.mark.parametrize('name', ['pattern', 'fixed', 'diagonals', 'edges of the data', 'padding'])
def test_a_default_device_changes_nothing(gpu, name, device):
    case = CASES[name]
    module = case.make().to(device)
    inputs, options = tree_map(lambda x: x.to(device), ([INPUTS[part] for part in case.inputs],
                                                        case.options))
    expected = step(module, *inputs, **options)
    GRAPHS.clear()
    with torch.device('cuda'):
        found = step(module, *inputs, **options)
    here = [[getattr(x, 'on_cpu', x) for x in tree_leaves(each)] for each in (found, expected)]
    torch.testing.assert_close(*here)


def test_a_model_of_transformers_is_trained(gpu):
    transformers = pytest.importorskip('transformers')
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=20, hidden_size=CHANNELS, num_attention_heads=HEADS, num_hidden_layers=2,
        intermediate_size=CHANNELS, hidden_dropout_prob=0., attention_probs_dropout_prob=0.))
    attach(model, 'SlidingWindow(1)')
    there = copy.deepcopy(model).to('cuda')
    inputs = {'input_ids': INPUTS['tokens'].view(2, 5),
              'attention_mask': (torch.arange(5) < torch.tensor([[5], [3]])).long()}
    expected, found = step(model, **inputs), step_there(gpu, there, **inputs)
    assert gpu.total() == 2 * gpu['forward'] <= 6, gpu  # for which slots are tokens
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', ['learned teleport', 'edges with features'])
def test_kernels_of_gpus_train(gpu, monkeypatch, name):
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', ops.load('triton'))
    case = CASES[name]
    module, inputs = case.make(), [INPUTS[part] for part in case.inputs]
    there = copy.deepcopy(module).to('cuda')
    expected, found = step(module, *inputs), step_there(gpu, there, *inputs)
    forward = gpu.pop('forward')
    assert forward <= case.waits and gpu.total() - forward <= case.waits_back, (forward, gpu)
    torch.testing.assert_close(numbers(found), expected, rtol=1e-4, atol=1e-4)


def test_graphs_that_gpus_draw_are_trained(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', ops.load('triton'))
    module = attention(block_model(), dropout=0.5).to('cuda')
    with counted_launches() as launches:
        found = step_there(gpu, module, INPUTS['x'], INPUTS['ptr'])
    assert gpu.total() == 2 * gpu['forward'] <= 6, gpu  # ptr, draws, edges; nothing afterwards
    assert launches['aten::sort.stable'] == 2, launches  # by key, once in each of two steps
    assert found.grads.keys() == dict(module.named_parameters()).keys()
    assert all(bool(x.isfinite().all()) for x in numbers(tree_leaves(found)))


# Memory that runs out #################################################################


@pytest.mark.parametrize('name', ['pattern', 'diagonals', 'edges of the data', 'recomputed'])
def test_a_step_that_ran_out_of_memory_can_be_taken_again(gpu, name):
    case = CASES[name]
    module = case.make().to('cuda')
    expected = numbers(step(module, *to_gpu([INPUTS[part] for part in case.inputs])))
    for number in count(0, 61):
        GRAPHS.clear()
        inputs, is_done = to_gpu([INPUTS[part] for part in case.inputs]), True
        try:
            with out_of_memory_after(number):
                step(module, *inputs)
        except torch.OutOfMemoryError:
            is_done = False
        found = numbers(step(module, *inputs))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        if is_done:
            break
    assert number > 0
