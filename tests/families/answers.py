"""Answers of a model, and how two answers differ where they may not."""

import itertools

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

from tests.families.inputs import BATCH, LENGTH, OTHER, SOUNDS

CACHED = 3


def tensors(outputs) -> dict[str, Tensor]:
    leaves, _ = tree_flatten_with_path(tree_map_only(Tensor, lambda x: x.detach(), dict(outputs)
                                       if hasattr(outputs, 'keys') else outputs))
    return {''.join(map(str, path)): x.float().clone() for path, x in leaves
            if isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.bool)
            and 'past_key_values' not in str(path[:1])}


@torch.no_grad()
def answer(model: nn.Module, inputs: dict) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return tensors(model(**tree_map_only(Tensor, torch.clone, inputs)))


@torch.no_grad()
def cached(model: nn.Module, inputs: dict) -> dict[str, Tensor] | None:
    """Logits of the last tokens, decoded one by one behind a prompt that is padded on the left."""
    if set(inputs) != {'input_ids', 'attention_mask'} or not hasattr(model, 'generate'):
        return None
    tokens, mask, cache, logits = *inputs.values(), None, []
    for first, last in itertools.pairwise([0, *range(LENGTH - CACHED, LENGTH + 1)]):
        outputs = model(input_ids=tokens[:, first:last], attention_mask=mask[:, :last],
                        past_key_values=cache, use_cache=True)
        cache = getattr(outputs, 'past_key_values', None)
        if cache is None or not hasattr(outputs, 'logits'):
            return None
        logits.append(outputs.logits[:, -1])
    return {'decoded': torch.stack(logits, dim=1)}


def answers(model: nn.Module, asked: dict[str, dict]) -> dict[str, dict[str, Tensor]]:
    return {name: answer(model, inputs) for name, inputs in asked.items()}


def _of_tokens(x: Tensor, inputs: dict, key: str) -> Tensor | None:
    """Return where an answer is about tokens, if it is about each."""
    mask = inputs.get('attention_mask')
    if mask is not None and x.shape[:2] == mask.shape:
        return mask.bool().reshape(*mask.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    if mask is not None and _is_of_frames(x, inputs, key):
        is_frame = nn.functional.adaptive_avg_pool1d(mask.float(), x.size(1)) == 1
        return is_frame.reshape(*is_frame.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    return None


def _is_told_by(x: Tensor, name: str, asked: dict, before: dict, key: str) -> Tensor:
    """Return where an answer is to be compared: at tokens, or where it does not depend on
    padding."""
    is_finite, where = x.abs() < 1e30, _of_tokens(x, asked.get(name, {}), key)
    if where is not None:
        return is_finite & where
    if x.dim() == 2 and _may_read_padding(name, asked.get(name, {})):
        return torch.zeros_like(is_finite)
    other = before.get(name.removesuffix(OTHER) + OTHER, {}).get(key)
    this = before[name.removesuffix(OTHER)].get(key)
    if other is None or not x.shape == other.shape == this.shape:
        return is_finite
    return is_finite & (other == this)


def _may_read_padding(name: str, inputs: dict) -> bool:
    """Return whether one answer for a sequence may come from a first slot, or a mean, with
    padding."""
    return name.startswith('left') or 'attention_mask' in inputs and next(iter(inputs)) in SOUNDS


def reads_padding(asked: dict, before: dict) -> list[str]:
    """On which sides it stands that changes what is said of tokens."""
    sides = [name.removesuffix(OTHER) for name in before if name.endswith(OTHER)]
    return [side for side in sides if difference(asked, {side: before[side]}, {
        side: before[side + OTHER]})[0] > 1e-6]


def _is_of_frames(x: Tensor, inputs: dict, key: str) -> bool:
    """Return whether an answer may be about stretches of sound, fewer of which come out than go
    in."""
    main, length = next(iter(inputs)), x.size(1) if x.dim() > 2 else 0
    decoded = inputs['decoder_input_ids'].size(1) if 'decoder_input_ids' in inputs else 0
    is_encoded = 'encoder' in key or length != decoded
    return main in SOUNDS and is_encoded and len(x) == BATCH and (
        1 < length < inputs['attention_mask'].size(1))


def difference(asked: dict, before: dict, after: dict) -> tuple[float, str]:
    """The largest, as a part of the largest number, and where it is."""
    worst = 0., ''
    for name, outputs in before.items():
        if outputs.keys() != after[name].keys():
            return float('inf'), f'{name}: {sorted(outputs.keys() ^ after[name].keys())}'
        for key, x in outputs.items():
            got, is_told = after[name][key], _is_told_by(x, name, asked, before, key)
            if got.shape != x.shape:
                return float('inf'), f'{name}: shape of {key}'
            if is_told.any():
                x, got = x[is_told], got[is_told]
                off = float((got - x).abs().nan_to_num(float('inf')).max() / x.abs().max().clamp(1))
                worst = max(worst, (off, f'{name}: {key}'))
    return worst
