"""Checks of what several modules are given: sizes, edges, probabilities and block pointers."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor


def check_edge_index(edge_index: Tensor) -> None:
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"'edge_index' must be a Tensor (got {type(edge_index).__name__})")
    if edge_index.dtype != torch.long:
        raise TypeError(f"'edge_index' must be of dtype torch.int64 (got {edge_index.dtype}); "
                        f"convert with .long()")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"'edge_index' must be [2, num_edges], key over query (got shape "
                         f"{tuple(edge_index.shape)})")


def check_size(name: str, size: int) -> None:
    if not isinstance(size, Integral) or isinstance(size, bool):
        raise TypeError(f"'{name}' must be an int (got {type(size).__name__})")
    if size < 0:
        raise ValueError(f"'{name}' must not be negative (got {size})")


def check_num_pairs(num_queries: int, num_keys: int) -> None:
    if num_queries * num_keys >= 2**63:
        raise ValueError(f"'num_queries' times 'num_keys' must be below 2^63, for pairs are "
                         f"numbered in int64 (got {num_queries} and {num_keys})")


def check_floating(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"'{name}' must be a floating point Tensor (got {kind})")


def check_range(edge_index: Tensor, num_queries: int, num_keys: int) -> None:
    if edge_index.size(1) == 0:
        return
    low, high = (bound.tolist() for bound in torch.aminmax(edge_index.as_subclass(Tensor), dim=1))
    for row, name, size in ((0, 'key', num_keys), (1, 'query', num_queries)):
        if low[row] < 0 or high[row] >= size:
            raise ValueError(f"'edge_index[{row}]' must hold {name} numbers from 0 to {size - 1} "
                             f"(got {low[row]} to {high[row]}); row 0 is the key, row 1 the query")


def check_edge_prob(edge_prob: Tensor, edge_index: Tensor) -> None:
    check_floating('edge_prob', edge_prob)
    if edge_prob.shape != edge_index.shape[1:]:
        raise ValueError(f"'edge_prob' must hold one value for each of the {edge_index.size(1)} "
                         f"edges (got shape {tuple(edge_prob.shape)})")
    if edge_prob.device != edge_index.device:
        raise ValueError(f"'edge_prob' must be on {edge_index.device}, where the edges are (got "
                         f"{edge_prob.device})")
    inside = (edge_prob >= 0) & (edge_prob <= 1 + 1e-5)  # a sum of products rounds
    if not bool(inside.all()):
        raise ValueError(f"'edge_prob' must be in [0, 1] (got "
                         f"{float(edge_prob.detach()[~inside][0])})")


def check_ptr(name: str, ptr: Tensor, size: int, device: torch.device) -> None:
    if not isinstance(ptr, Tensor) or ptr.dtype != torch.long:
        kind = ptr.dtype if isinstance(ptr, Tensor) else type(ptr).__name__
        raise TypeError(f"'{name}' must be an int64 Tensor (got {kind})")
    if ptr.device != device:
        raise ValueError(f"'{name}' must be on {device}, where the edges are (got {ptr.device})")
    is_ptr = ptr.dim() == 1 and ptr.numel() >= 1 and bool((ptr.diff() >= 0).all())
    if not is_ptr or int(ptr[0]) != 0 or int(ptr[-1]) != size:
        raise ValueError(f"'{name}' must rise from 0 to {size}, one entry more than blocks (got "
                         f"{ptr.tolist()})")
