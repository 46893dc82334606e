"""Calls of attached models: arguments that their masks and attention need, but do not receive."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphattn._checks import check_ptr
from graphattn._tensors import is_one

__all__ = ['POINTERS', 'Packing', 'entering_attention', 'entering_model', 'leaving_model',
           'present_call']

POINTERS = 'cu_seq_lens_q', 'cu_seq_lens_k'
OF_CACHE = 'past_key_values', 'layer_past'
# Types of layers, in configs, in which tokens meet in nothing but attention.
OF_ATTENTION = {'full_attention', 'sliding_attention', 'chunked_attention', 'window_attention',
                'indexed_attention', 'reference_sliding_attention', 'mlp', 'moe'}
# Names of arguments with the hidden states of keys; the hidden states of queries come first.
OF_KEYS = ('key_value_states', 'encoder_hidden_states', 'cross_attention_states', 'key', 'keys',
           'k', 'key_tensor', 'context', 'context_hidden_states')
# Arguments of a model that do not change which token attends to which. Padding does, but the mask
# has it.
OF_TOKENS = {'input_ids', 'inputs_embeds', 'attention_mask', 'labels', 'logits_to_keep',
             'use_cache', 'return_dict', 'output_hidden_states', 'output_attentions'}
# Words in the code of models whose masks may say more than such arguments.
OF_OWN_MASKS = 'block_sequence_ids', 'allow_is_causal_skip', 'mask_function'


class Call(NamedTuple):
    """Facts about a call of a model."""

    packing: Packing | None
    wants_weights: bool  # of attention
    has_only_tokens: bool  # and padding, so that a causal mask excludes only these and later keys
    joins_tokens: bool  # outside attention, in this model or one around it
    outer: Call | None  # of the model around this one


class _OfThread(threading.local):
    call: Call | None = None


class _Traced:
    call: Call | None = None


# A compiler cannot trace what belongs to a thread, so compiled code has a place of its own.
_OF_THREAD, _TRACED = _OfThread(), _Traced()


def _place() -> _OfThread | _Traced:
    # Code that a compiler leaves to Python may run within a compiled call.
    return _TRACED if torch.compiler.is_compiling() or _OF_THREAD.call is None else _OF_THREAD


def present_call() -> Call | None:
    """Return the call of the innermost attached model that runs now, or ``None`` outside."""
    return _place().call


def entering_model(model: nn.Module) -> Callable:
    """Return a forward pre-hook for ``model`` that begins a :class:`Call`."""
    kind = type(model)
    return partial(_enter_model, _arguments(kind), not _has_own_masks(kind), joins_tokens(model))


def _enter_model(names: list[str], is_plain: bool, joins: bool, model: nn.Module, args: tuple,
                 kwargs: dict[str, Any]) -> None:
    model.graph_attachment.check(model)
    given = dict(zip(names, args)) | kwargs
    place = _TRACED if torch.compiler.is_compiling() else _OF_THREAD
    outer, wants_weights = place.call, given.get('output_attentions')
    if wants_weights is None:
        wants_weights = getattr(model.config, 'output_attentions', False)
    has_only_tokens = is_plain and all(
        name in OF_TOKENS or value is None for name, value in given.items())
    packing = Packing.of_call(given, 'position_ids' in names)
    place.call = Call(packing, bool(wants_weights or outer and outer.wants_weights),
                      has_only_tokens, joins or outer is not None and outer.joins_tokens, outer)


def leaving_model(model: nn.Module, args: tuple, out: Any) -> None:
    """End the call, unless it marked sequences that no attention has seen: a ``ValueError``."""
    place = _place()
    if place.call is None:
        return
    packing, outer = place.call.packing, place.call.outer
    place.call = outer
    if packing is None or out is None or torch.compiler.is_compiling():
        return
    if outer is not None and outer.packing is not None:
        outer.packing.is_seen |= packing.is_seen and (
            outer.packing.position_ids is None or packing.position_ids is not None)
    elif not packing.is_seen and packing.marks_any():
        raise ValueError(f"{packing.name!r} must be None for {type(model).__name__}, which does "
                         f"not pass it on; pad the sequences instead, and pass an "
                         f"'attention_mask'")


def entering_attention(module: nn.Module) -> Callable:
    """Return a forward pre-hook of a module that notes other keys and a cache in its attachment."""
    return partial(_enter_attention, _arguments(type(module)))


def _enter_attention(names: list[str], module: nn.Module, args: tuple,
                     kwargs: dict[str, Any]) -> None:
    given = dict(zip(names, args)) | kwargs
    of_queries = next((x for x in given.values() if isinstance(x, Tensor)), None)
    attachment = module.graph_attachment
    attachment.check(module)
    attachment.has_other_keys = any(isinstance(given.get(name), Tensor) and not is_one(
        given[name], of_queries) for name in OF_KEYS)
    attachment.has_cache = any(given.get(name) is not None for name in OF_CACHE)


@cache
def _arguments(kind: type[nn.Module]) -> list[str]:
    return list(inspect.signature(kind.forward).parameters)[1:]


@cache
def _has_own_masks(kind: type[nn.Module]) -> bool:
    from transformers import PreTrainedModel
    own = kind.__mro__[:kind.__mro__.index(PreTrainedModel)]
    try:
        sources = {inspect.getsource(inspect.getmodule(each)) for each in own}
    except (OSError, TypeError):
        return True
    return any(word in source for source in sources for word in OF_OWN_MASKS)


# Several sequences in each row of a batch ############################################


class Packing:
    """Arguments of a model that may mark several sequences in a row."""

    def __init__(self, pointers: Mapping[str, Tensor], position_ids: Tensor | None = None,
                 has_cache: bool = False, takes_positions: bool = True):
        self.pointers = pointers  # those of POINTERS that are given
        self.position_ids = position_ids  # [batch or 1, length]
        self.has_cache = has_cache
        self.takes_positions = takes_positions  # so that positions can begin again
        self.is_seen = False  # by attention
        self._is_replaced: bool | None = None
        self._found: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    @staticmethod
    def of_call(given: Mapping[str, Any], takes_positions: bool) -> Packing | None:
        """Return what the arguments of a model may mark, or ``None`` if they mark nothing."""
        pointers = {name: given[name] for name in POINTERS if given.get(name) is not None}
        position_ids = given.get('position_ids')
        # A mask says that each row is one sequence, as in transformers.
        if not isinstance(position_ids, Tensor) or given.get('attention_mask') is not None:
            position_ids = None
        elif position_ids.dim() == 3 and len(position_ids) == 4:
            position_ids = position_ids[0]  # those of the text, before those of images
        if position_ids is not None and (position_ids.dim() != 2 or position_ids.size(1) == 1):
            position_ids = None
        if position_ids is None and not pointers:
            return None
        has_cache = any(given.get(name) is not None for name in OF_CACHE)
        return Packing(pointers, position_ids, has_cache, takes_positions)

    @property
    def name(self) -> str:
        return next(iter(self.pointers), 'position_ids')

    def marks_any(self) -> bool:
        """Return whether there are several sequences in a row, whatever attention receives."""
        return bool(self.pointers) or between_starts(self.position_ids, False) is not None

    def is_replaced(self, own: Tensor | None) -> bool:
        """Return whether a layer got position ids of one sequence in place of the model's."""
        given = self.position_ids
        if given is None or own is None or own.dim() != 2 or own.size(1) != given.size(1):
            return False
        if self._is_replaced is None:
            self._is_replaced = own is not given and between_starts(
                own.expand_as(given) if len(own) == 1 else own, False) != between_starts(
                    given.expand_as(own) if len(given) == 1 else given, False)
        return self._is_replaced

    def lengths(self, query: Tensor, key: Tensor, is_encoder: bool) -> tuple[int, ...] | None:
        """Return the lengths of all sequences, or ``None`` if each row contains one."""
        # All layers share the result, whose values are read once.
        at = len(query), query.size(2), key.size(2), is_encoder
        if at not in self._found:
            self._found[at] = _between(self.pointers, query, key) if self.pointers else (
                self._between_starts(query, key, is_encoder))
        return self._found[at]

    def _between_starts(self, query: Tensor, key: Tensor,
                        is_encoder: bool) -> tuple[int, ...] | None:
        batch, length = len(query), query.size(2)
        if self.position_ids.shape not in ((1, length), (batch, length)):
            return None
        found = between_starts(self.position_ids.expand(batch, -1), is_encoder)
        if found is not None and (self.has_cache or key.size(2) != length):
            raise ValueError("'position_ids' must count up by 1 with a cache, because packed "
                             "sequences cannot share a cache (got 'position_ids' that begin again "
                             "inside a row); pass use_cache=False, or an 'attention_mask' of ones "
                             "if each row is one sequence")
        return found


def joins_tokens(model: nn.Module) -> bool:
    """Return whether tokens of two sequences meet in convolutions, states or embeddings."""
    from transformers import PreTrainedModel
    config = model.config
    inner = tuple(f'{name}.' for name, module in model.named_modules() if name and isinstance(
        module, PreTrainedModel))  # which answer for themselves
    return (not {*(getattr(config, 'layer_types', None) or ())} <= OF_ATTENTION
            or bool(getattr(config, 'trigram_input', False))
            or any(isinstance(module, nn.Conv1d) and module.kernel_size != (1,)
                   and not name.startswith(inner) for name, module in model.named_modules()))


def _between(pointers: Mapping[str, Tensor], query: Tensor, key: Tensor) -> tuple[int, ...]:
    (batch, _, num_queries, _), num_keys = query.shape, key.size(2)
    if num_keys != num_queries:
        raise ValueError(f"'cu_seq_lens_q' must be None unless the keys are the tokens of the "
                         f"queries (got {num_queries} queries and {num_keys} keys); if the keys "
                         f"are in a cache, pass use_cache=False")
    for name, ptr in pointers.items():
        is_short = getattr(ptr, 'dtype', None) == torch.int32  # as flash attention has them
        check_ptr(name, ptr.long() if is_short else ptr, batch * num_queries, query.device)
    ends = [ptr.tolist() for ptr in pointers.values()]
    if ends[0] != ends[-1]:
        raise ValueError(f"'cu_seq_lens_k' must equal 'cu_seq_lens_q' in self-attention (got "
                         f"{ends[-1]} and {ends[0]})")
    if missing := {*range(0, batch * num_queries, num_queries)} - {*ends[0]}:
        raise ValueError(f"{next(iter(pointers))!r} must contain the beginning of each row, "
                         f"because no sequence spans two rows (got none at {min(missing)}); put "
                         f"the sequences into one row")
    return tuple(end - begin for begin, end in pairwise(ends[0]))


def between_starts(position_ids: Tensor, is_encoder: bool) -> tuple[int, ...] | None:
    """Return the lengths of the sequences that begin where positions do not count up by 1."""
    from transformers.masking_utils import find_packed_sequence_indices
    number = find_packed_sequence_indices(position_ids)
    if number is None:
        return None
    if is_encoder:
        # Encoders take any position ids: equal ones, or those of padding. Only sequences that all
        # begin at the lowest position are packed.
        is_start = number.diff(dim=1) > 0
        starts = position_ids[:, 1:][is_start]
        if bool(is_start.all()) or bool((starts != position_ids.min()).any()):
            return None
    row = torch.arange(len(number), device=number.device).unsqueeze(1) * number.size(1)
    return tuple((number + row).flatten().unique_consecutive(return_counts=True)[1].tolist())
