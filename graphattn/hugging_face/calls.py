"""Calls of attached models: arguments that their masks and attention need, but do not receive."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphattn._tensors import is_one
from graphattn.hugging_face.packing import OF_CACHE, Packing, joins_tokens

__all__ = ['entering_attention', 'entering_model', 'leaving_model', 'present_call']

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
