"""Checks of what several modules are given: sizes, edges, probabilities and block pointers."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from graphattn._tensors import is_traced

_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
             torch.int64)


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
    if edge_index.size(1) == 0 or is_traced(edge_index):
        return
    low, high = (bound.tolist() for bound in torch.aminmax(edge_index.as_subclass(Tensor), dim=1))
    for row, name, size in ((0, 'key', num_keys), (1, 'query', num_queries)):
        if low[row] < 0 or high[row] >= size:
            raise ValueError(f"'edge_index[{row}]' must hold {name} numbers from 0 to {size - 1} "
                             f"(got {low[row]} to {high[row]}); row 0 is the key, row 1 the query")


def check_edge_prob(edge_prob: Tensor, num_edges: int, device: torch.device) -> None:
    check_floating('edge_prob', edge_prob)
    if edge_prob.shape != (num_edges,):
        raise ValueError(f"'edge_prob' must hold one value for each of the {num_edges} edges (got "
                         f"shape {tuple(edge_prob.shape)})")
    if edge_prob.device != device:
        raise ValueError(f"'edge_prob' must be on {device}, where the edges are (got "
                         f"{edge_prob.device})")
    if is_traced(edge_prob):
        return
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
    if is_traced(ptr):
        return
    is_ptr = ptr.dim() == 1 and ptr.numel() >= 1 and bool((ptr.diff() >= 0).all())
    if not is_ptr or int(ptr[0]) != 0 or int(ptr[-1]) != size:
        raise ValueError(f"'{name}' must rise from 0 to {size}, one entry more than blocks (got "
                         f"{ptr.tolist()})")


def check_rows(indptr: Tensor, key: Tensor, num_keys: int) -> None:
    """That ``indptr`` and ``key`` are the rows of a graph, each key once in a row."""
    if not isinstance(key, Tensor):
        raise TypeError(f"'key' must be a Tensor (got {type(key).__name__})")
    if key.dim() != 1 or key.dtype not in _INTEGERS:
        raise TypeError(f"'key' must be integers [num_edges] (got {key.dtype} of shape "
                        f"{tuple(key.shape)})")
    check_ptr('indptr', indptr, key.numel(), key.device)
    if key.numel() == 0 or is_traced(key):
        return
    key = key.long()
    low, high = (bound.item() for bound in torch.aminmax(key))
    if low < 0 or high >= num_keys:
        raise ValueError(f"'key' must hold key numbers from 0 to {num_keys - 1} (got {low} to "
                         f"{high})")
    ascends = torch.ones(key.numel() + 1, dtype=torch.bool, device=key.device)
    torch.gt(key[1:], key[:-1], out=ascends[1:-1])
    ascends[indptr] = True  # a row may begin with any key
    if not bool(ascends.all()):
        raise ValueError("'key' must ascend among the edges of each query, each key once; "
                         "BipartiteGraph.from_edge_index sorts and merges")


def check_blocks_of_rows(indptr: Tensor, key: Tensor, query_ptr: Tensor, key_ptr: Tensor) -> None:
    """That no edge leaves its block."""
    if is_traced(indptr):
        return
    query = torch.repeat_interleave(indptr.diff(), output_size=key.numel())
    query_block = torch.bucketize(query, query_ptr, right=True)
    key_block = torch.bucketize(key, key_ptr, right=True)
    strays = (query_block != key_block).nonzero()
    if strays.numel():
        edge = int(strays[0])
        raise ValueError(f"'edge_index' must stay inside the blocks, but query "
                         f"{int(query[edge])} and key {int(key[edge])} are of blocks "
                         f"{int(query_block[edge]) - 1} and {int(key_block[edge]) - 1}")
