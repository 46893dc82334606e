"""Attention weights that a model returns, before and after it is attached to all edges."""

from functools import partial

import torch
from torch import Tensor, nn

from tests.families.answers import answer, difference
from tests.families.attaching import CLOSE, Result, attached_answer, examined, short


def _weights(model: nn.Module, inputs: dict) -> dict[str, Tensor]:
    found = answer(model, inputs | {'output_attentions': True})
    return {name: x for name, x in found.items() if 'attentions' in name}


def tried(model: nn.Module, inputs: dict, layers: list[int] | None) -> tuple[str, str]:
    implementations = {id(module): module.config._attn_implementation for module in model.modules()
                       if hasattr(module, 'config')}
    try:
        before = answer(model, inputs)
        model.set_attn_implementation('eager')
        expected, after = _weights(model, inputs), answer(model, inputs)
    except TimeoutError:
        raise
    except Exception as error:
        return 'not taken', short(error)
    for module in model.modules():
        if hasattr(module, 'config'):
            module.config._attn_implementation_internal = implementations[id(module)]
    if (off := difference({}, {'': before}, {'': after})[0]) > CLOSE:
        return 'not taken', f'its own code and SDPA differ by {off:.1g}'
    if not expected:
        return 'not taken', 'returns no weights'
    try:
        got = attached_answer(model, 'Full()', layers, lambda: _weights(model, inputs))
    except ValueError as error:
        named = 'output_attentions' in str(error)
        return 'refused' if named else 'not attached', short(error)
    if got.keys() != expected.keys():
        return 'wrong', f'{len(expected)} weights of its own, {len(got)} along edges'
    has_sinks = any(name.endswith('sinks') for name, _ in model.named_parameters())
    tokens: dict[torch.Size, Tensor] = {}
    for name, x in expected.items():
        if got[name].shape != x.shape:
            return 'wrong', f'{name}: {tuple(x.shape)} of its own, {tuple(got[name].shape)}'
        if bool((x < 0).any()):  # outputs of attention, which some models return in their place
            whole = torch.ones_like(got[name][..., :1])
        else:
            whole = got[name].sum(-1, keepdim=True)
        # The weights of padding are 0, and what becomes of it behind them does not matter.
        is_token = tokens[x.shape[:-1]] = tokens.get(x.shape[:-1], True) & (whole > 0)
        if has_sinks:  # whose share GraniteSWA leaves out of its own weights
            x, got[name] = x / x.sum(-1, keepdim=True), got[name] / whole
        off = float(torch.where(is_token, got[name] - x, 0).abs().nan_to_num(float('inf')).max())
        if not is_token.any():
            return 'wrong', f'{name}: all 0'
        if off > CLOSE:
            return 'wrong', f'{name}: off by {off:.1g}'
    return 'equal', ''


def examine(name: str, layers: list[int] | None = None) -> Result:
    """Compare the weights that a model along all edges returns with those of its own code."""
    return examined(name, partial(tried, layers=layers))
