"""Checks of arguments that several modules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from operator import le
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphattn._tensors import host_copy, is_autocast, is_traced

if TYPE_CHECKING:
    from graphattn.graphs.graph import BipartiteGraph

_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
             torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INSIDE: dict[str, Callable[[float], bool]] = {
    'in [0, 1]': lambda number: 0 <= number <= 1,
    'in [0, 1)': lambda number: 0 <= number < 1,
    'positive and finite': lambda number: 0 < number < math.inf,
    'finite and not negative': lambda number: 0 <= number < math.inf,
    'finite': math.isfinite,
}
# Longer sides are refused, because an allocation of that size may exhaust memory before it fails.
MAX_SIDE = 2**31 - 1
MAX_HOPS = 10_000  # for more hops, use the limit, ``math.inf``


def check_edge_index(edge_index: Tensor, name: str = 'edge_index') -> None:
    if hasattr(edge_index, 'stores'):  # PyG's Data and similar classes
        raise TypeError(f"'{name}' must be an int64 Tensor (got {type(edge_index).__name__}); "
                        f"call BipartiteGraph.from_data(data) for a PyG Data")
    check_integers(name, edge_index)
    check_has_numbers(name, edge_index)
    check_shape(name, edge_index, (2, 'num_edges'),
                ', with keys in row 0 and queries in row 1')


def check_integers(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.long:
        hint = ('' if not isinstance(tensor, Tensor) else f'; pass {name}.long()'
                if tensor.dtype != torch.bool else '; pass mask.nonzero().T.flip(0) for a mask '
                '[query, key], or call BipartiteGraph.from_mask')
        raise TypeError(f"'{name}' must be an int64 Tensor (got {kind_of(tensor)}){hint}")
    check_strided(name, tensor)


def check_size(name: str, size: int, at_least: int = 0, at_most: int | None = None) -> None:
    if not isinstance(size, Integral) or isinstance(size, bool):
        raise TypeError(f"'{name}' must be an int (got {type(size).__name__})")
    if size < at_least:
        bound = 'not be negative' if at_least == 0 else f'be at least {at_least}'
        raise ValueError(f"'{name}' must {bound} (got {size})")
    if at_most is not None and size > at_most:
        raise ValueError(f"'{name}' must be at most {at_most} (got {size})")


def check_sides(**sizes: int) -> None:
    """Raise an error unless each size is an int from 1 to ``MAX_SIDE``, the largest number of rows
    or columns of a tensor. The message names the argument by its keyword."""
    for name, size in sizes.items():
        check_size(name, size, 1, MAX_SIDE)


def check_number(name: str, number: float, where: str) -> None:
    """Raise an error unless ``number`` is in the range ``where``, a key of ``_INSIDE``."""
    if not isinstance(number, Real) or isinstance(number, bool):
        raise TypeError(f"'{name}' must be a number (got {type(number).__name__})")
    if not _INSIDE[where](number):
        raise ValueError(f"'{name}' must be {where} (got {number})")


def check_dropout(**probabilities: float) -> None:
    for name, probability in probabilities.items():
        check_number(name, probability, 'in [0, 1)')


def check_bool(**values: bool) -> None:
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"'{name}' must be a bool (got {type(value).__name__})")


def check_choice(name: str, choice: str, choices: Collection[str]) -> None:
    if not isinstance(choice, str):
        raise TypeError(f"'{name}' must be a str (got {type(choice).__name__})")
    if choice not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"'{name}' must be {', '.join(others)} or {last} (got {choice!r})"
                         f"{did_you_mean(choice, choices)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the names that are like ``name``, or nothing."""
    near = get_close_matches(str(name), list(known))
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ''


def check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' must be a {kind.__name__} (got {type(value).__name__})")


def check_generator(generator: torch.Generator | None) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"'generator' must be a torch.Generator or None (got "
                        f"{type(generator).__name__}); to pass a seed, use "
                        f"torch.Generator(device).manual_seed(seed)")


def check_seed(seed: int) -> None:
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise TypeError(f"'seed' must be an int, a torch.Generator or None (got "
                        f"{type(seed).__name__})")
    if not -2**63 <= seed < 2**64:
        raise ValueError(f"'seed' must be an int from -2**63 to 2**64 - 1 (got {seed})")


def check_device(device: torch.device | str) -> torch.device:
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"'device' must be a torch.device or a device name, such as 'cpu' or "
                         f"'cuda:0' (got {device!r}): {error}") from None


def check_num_pairs(num_queries: int, num_keys: int) -> None:
    if num_queries * num_keys >= 2**63:
        raise ValueError(f"'num_queries' times 'num_keys' must be below 2**63, because pairs are "
                         f"numbered in int64 (got {num_queries} and {num_keys}); use fewer queries "
                         f"or keys")


def check_floating(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if (isinstance(tensor, Tensor) and tensor.dtype in _FLOATS
                and tensor.layout == torch.strided and not tensor.is_nested):
            continue  # at once, because every call of every layer runs this check several times
        if not isinstance(tensor, Tensor) or not is_float(tensor.dtype):
            hint = '; pass data.x' if hasattr(tensor, 'stores') else ''  # PyG's Data and its kin
            raise TypeError(f"'{name}' must be a Tensor of float16, bfloat16, float32 or float64 "
                            f"(got {kind_of(tensor)}){hint}")
        check_strided(name, tensor)


def kind_of(value: object) -> str:
    """Return the dtype of a tensor, or the type of another object, for an error."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def check_on(name: str, tensor: Tensor, device: torch.device, of: str) -> None:
    if tensor.device != device:
        raise ValueError(f"'{name}' must be on {device}, the device of {of} (got {tensor.device}); "
                         f"pass {name}.to('{device}')")


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype, of: str) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"'{name}' must have the dtype of {of}, {dtype} (got {tensor.dtype}); pass "
                        f"{name}.to({dtype})")


def check_shape(name: str, tensor: Tensor, shape: tuple[int | str, ...], why: str = '') -> None:
    """Raise an error unless ``tensor`` has the ``shape``, whose names stand for any size."""
    if tensor.dim() != len(shape) or any(
            size != own for size, own in zip(shape, tensor.shape) if not isinstance(size, str)):
        raise ValueError(f"'{name}' must have shape [{', '.join(map(str, shape))}]{why} (got shape "
                         f"{tuple(tensor.shape)})")


def is_float(dtype: torch.dtype) -> bool:
    """Return whether torch computes in ``dtype``; 8 bits and less are only for storage."""
    return dtype in _FLOATS


def check_strided(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"'{name}' must be a Tensor (got {type(tensor).__name__})")
    if tensor.is_nested:
        raise TypeError(f"'{name}' must be a dense Tensor (got a nested Tensor); pass "
                        f"torch.cat({name}.unbind())")
    if tensor.layout != torch.strided:
        raise TypeError(f"'{name}' must be a dense Tensor (got layout {tensor.layout}); pass "
                        f"{name}.to_dense()")


def check_has_numbers(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ValueError(f"'{name}' must be on a device with values, such as 'cpu', because the "
                         f"values are read (got a Tensor on the device 'meta')")


def check_features(x: Tensor, channels: int, layer: nn.Module, name: str = 'x') -> None:
    """Raise an error unless ``x`` is a floating Tensor ``[num_tokens, channels]`` with the device
    and dtype of ``layer``."""
    check_floating(**{name: x})
    if x.dim() != 2 or x.size(1) != channels:
        check_shape(name, x, ('num_tokens', channels))
    check_place(name, x, layer)


def check_place(name: str, x: Tensor, layer: nn.Module | Tensor) -> None:
    """Raise an error unless ``x`` has the device and dtype of ``layer.weight``, or of a weight."""
    weight = layer if isinstance(layer, Tensor) else getattr(layer, 'weight', None)
    # missing or not floating in a quantised layer
    if not isinstance(weight, Tensor) or weight.dtype not in _FLOATS:
        return
    if x.dtype == weight.dtype and x.device == weight.device:
        return
    check_on(name, x, weight.device, 'the layer')
    if not is_autocast(x):  # which casts both
        check_dtype(name, x, weight.dtype, 'the layer')


def check_ids(name: str, ids: Tensor, num_ids: int, device: torch.device) -> None:
    check_integers(name, ids)
    check_shape(name, ids, ('num_tokens',), f", without a batch; pass {name}.flatten(), and the "
                                            f"first token of each sequence as 'ptr'")
    check_on(name, ids, device, 'the model')
    if ids.numel() == 0 or is_traced(ids):
        return
    lowest, highest = torch.stack(ids.aminmax()).tolist()  # one synchronisation
    if not 0 <= lowest <= highest < num_ids:
        raise ValueError(f"'{name}' must contain ids from 0 to {num_ids - 1} (got {lowest} to "
                         f"{highest})")


def check_on_edges(name: str, values: Tensor, num_edges: int) -> None:
    if not isinstance(values, Tensor) or values.is_complex():
        raise TypeError(f"'{name}' must be a Tensor of real numbers (got {kind_of(values)})")
    check_strided(name, values)
    check_has_numbers(name, values)
    check_shape(name, values, (num_edges,), ', one value for each edge')


def check_range(edge_index: Tensor, num_queries: int, num_keys: int) -> None:
    if edge_index.size(1) == 0 or is_traced(edge_index):
        return
    # The rows are checked one by one. For two rows at once, torch would start threads, which takes
    # longer than the check.
    bounds = [bound for row in edge_index.as_subclass(Tensor) for bound in torch.aminmax(row)]
    low, high = torch.stack(bounds).view(2, 2).t().tolist()  # one synchronisation
    for row, name, size in ((0, 'key', num_keys), (1, 'query', num_queries)):
        if low[row] < 0 or high[row] >= size:
            is_swapped = min(low) >= 0 and high[0] < num_queries and high[1] < num_keys
            cure = ("put keys in row 0 of 'edge_index' and queries in row 1" if is_swapped else
                    "renumber the nodes, or pass the number of all nodes")
            raise ValueError(f"'edge_index[{row}]' must contain {name} numbers from 0 to "
                             f"{size - 1} (got {low[row]} to {high[row]}); {cure}")


def check_edge_prob(edge_prob: Tensor, num_edges: int, device: torch.device) -> None:
    check_floating(edge_prob=edge_prob)
    check_shape('edge_prob', edge_prob, (num_edges,), ', one probability for each edge')
    check_on('edge_prob', edge_prob, device, 'the edges')
    if is_traced(edge_prob) or num_edges == 0:
        return
    lowest, highest = torch.stack(edge_prob.detach().aminmax()).tolist()
    if not 0 <= lowest <= highest <= 1 + 1e-5:  # tolerance for rounding
        outside = highest if lowest >= 0 else lowest
        raise ValueError(f"'edge_prob' must be in [0, 1] (got {outside})")


def check_pointer(name: str, ptr: Tensor, device: torch.device) -> None:
    """Raise an error unless ``ptr`` is a dense int64 Tensor ``[num_segments + 1]``."""
    # its values are not checked
    is_plain = isinstance(ptr, Tensor) and ptr.dtype == torch.long and not ptr.is_nested
    if not is_plain or ptr.layout != torch.strided:
        check_integers(name, ptr)
    if ptr.device != device:
        check_on(name, ptr, device, 'the nodes')
    if ptr.dim() != 1 or ptr.numel() == 0:
        raise ValueError(f"'{name}' must have shape [num_segments + 1] with 0 as the first entry "
                         f"(got shape {tuple(ptr.shape)})")


def check_ptr(name: str, ptr: Tensor, size: int | None, device: torch.device) -> None:
    """Raise an error unless the values of ``ptr`` begin with 0, never decrease and end with
    ``size``. If ``size`` is None, the last value may be any number."""
    check_pointer(name, ptr, device)
    if is_traced(ptr):
        return
    ptr = host_copy(ptr)
    if ptr.numel() <= _MAX_LISTED:  # a list takes a quarter of the time of tensors
        ends = ptr.tolist()
        first, last, ascends = ends[0], ends[-1], all(map(le, ends, ends[1:]))
    else:
        first, last, ascends = int(ptr[0]), int(ptr[-1]), bool((ptr.diff() >= 0).all())
    size = last if size is None else size
    if not ascends or first != 0 or last != size:
        is_batch = ptr.numel() == size and ascends
        hint = ("; if this is a batch vector of PyG, convert the vector by "
                "torch_geometric.utils.sparse.index2ptr(batch)" if is_batch else '')
        raise ValueError(f"'{name}' must rise from 0 to {size} (got {_shown(ptr.tolist())}){hint}")


_MAX_LISTED = 256


def _shown(numbers: list[int], most: int = 8) -> str:
    if len(numbers) <= most:
        return str(numbers)
    first, last = (', '.join(map(str, part)) for part in (numbers[:3], numbers[-3:]))
    return f'[{first}, ..., {last}]'


def check_order(name: str, order: Tensor, ptr: Tensor) -> None:
    """Raise an error unless ``order`` permutes the nodes inside each segment."""
    check_integers(name, order)
    check_has_numbers(name, order)
    check_on(name, order, ptr.device, 'the graph')
    segment = torch.repeat_interleave(ptr.diff())
    node = torch.arange(segment.numel(), device=ptr.device)
    if order.shape != node.shape or not torch.equal(order.sort().values, node):
        raise ValueError(f"'{name}' must contain the number of each of the {node.numel()} nodes "
                         f"once (got shape {tuple(order.shape)})")
    if not torch.equal(segment[order], segment):
        raise ValueError(f"'{name}' must keep each node in its segment (got an order that moves "
                         f"nodes to other segments)")


def check_rows(indptr: Tensor, key: Tensor, num_keys: int | None) -> None:
    """Raise an error unless ``indptr`` and ``key`` are a graph in CSR format."""
    check_strided('key', key)
    if key.dim() != 1 or key.dtype not in _INTEGERS:
        raise TypeError(f"'key' must be a Tensor of integers [num_edges] (got {key.dtype} of shape "
                        f"{tuple(key.shape)})")
    check_ptr('indptr', indptr, key.numel(), key.device)
    num_keys = indptr.numel() - 1 if num_keys is None else num_keys
    check_size('num_keys', num_keys)
    if key.numel() == 0 or is_traced(key):
        return
    key = key.long()
    low, high = (bound.item() for bound in torch.aminmax(key))
    if low < 0 or high >= num_keys:
        raise ValueError(f"'key' must contain numbers of keys from 0 to {num_keys - 1} (got {low} "
                         f"to {high})")
    ascends = torch.ones(key.numel() + 1, dtype=torch.bool, device=key.device)
    torch.gt(key[1:], key[:-1], out=ascends[1:-1])
    ascends[indptr] = True  # no constraint between rows
    if not bool(ascends.all()):
        raise ValueError("'key' must strictly ascend within each query (got other keys); call "
                         "BipartiteGraph.from_edge_index, which sorts edges and merges duplicates")


def check_square(graph: BipartiteGraph, operation: str, hint: str = '') -> None:
    if not graph.is_square:
        raise ValueError(f"'{operation}' needs equal numbers of keys and queries in each segment "
                         f"(got {graph}){hint}")


def check_segments_of_rows(indptr: Tensor, key: Tensor, query_ptr: Tensor, key_ptr: Tensor) -> None:
    """Raise an error if an edge joins different segments."""
    if is_traced(indptr):
        return
    query = torch.repeat_interleave(indptr.diff(), output_size=key.numel())
    query_segment = torch.bucketize(query, query_ptr, right=True)
    key_segment = torch.bucketize(key, key_ptr, right=True)
    strays = (query_segment != key_segment).nonzero()
    if strays.numel():
        edge = int(strays[0])
        raise ValueError(f"'edge_index' must not join different segments (got an edge from key "
                         f"{int(key[edge])} of segment {int(key_segment[edge]) - 1} to query "
                         f"{int(query[edge])} of segment {int(query_segment[edge]) - 1})")
