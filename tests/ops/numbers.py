"""Random numbers for operators, and their gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from graphattn import BipartiteGraph

HEADS, CHANNELS, VALUE_CHANNELS = 2, 20, 17  # whole vectors of channels, and a remainder
EDGE_VALUES = {'plain': {}, 'shared': {'edge_bias': 1, 'edge_gate': 1},
               'per_head': {'edge_bias': HEADS, 'edge_gate': HEADS},
               'bias': {'edge_bias': 1}, 'gate': {'edge_gate': HEADS}}


def draw(graph: BipartiteGraph, edge_values: str = 'plain', *, dtype: torch.dtype = torch.float64,
         channels: int = CHANNELS, value_channels: int = VALUE_CHANNELS,
         heads: int = HEADS, is_kernel: bool = False) -> dict[str, Tensor]:
    """Values that heads share have a column where a kernel takes them."""
    generator = torch.Generator().manual_seed(0)
    shapes = {'query': (graph.num_queries, heads, channels),
              'key': (graph.num_keys, heads, channels),
              'value': (graph.num_keys, heads, value_channels)}
    shapes |= {name: (graph.num_edges, columns) if columns > 1 or is_kernel else (graph.num_edges,)
               for name, columns in EDGE_VALUES[edge_values].items()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            .requires_grad_() for name, shape in shapes.items()}


def with_grads(out: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1),
                            dtype=torch.float64).mul(2).round().to(out)
    grads = torch.autograd.grad(out, list(inputs.values()), cotangent, allow_unused=True)
    grads = [torch.zeros_like(leaf) if grad is None else grad
             for grad, leaf in zip(grads, inputs.values())]
    return {'out': out.detach(), **dict(zip(inputs, grads))}


def assert_same(actual, expected, tolerance: float = 1e-11, check_dtype: bool = True) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance,
                               check_dtype=check_dtype)


def saved_tensors(forward: Callable[[], Tensor]) -> list[Tensor]:
    """Those that are kept for the backward pass of what ``forward`` returns."""
    saved = []
    with saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        assert forward().grad_fn is not None
    return saved


def saved_bytes(forward: Callable[[], Tensor]) -> int:
    """Each storage once."""
    storages = [x.untyped_storage() for x in saved_tensors(forward)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
