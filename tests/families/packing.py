"""Sequences that are packed into the rows of a batch, and the same sequences alone."""

import inspect

import torch
from torch import Tensor, nn

from tests.families.attaching import Result, attached_answer, examined, short
from tests.families.inputs import BATCH, LENGTH

PATTERN = 'SlidingWindow(1) | GlobalTokens(1)'
CLOSE = 2e-4
# Lengths of the sequences of each row, and the position at which the row begins: inside a sequence.
ROWS = ((3, 4, 5), 3), ((2, 6, 4), 0)
POSITIONS = torch.stack([torch.cat([torch.arange(length) + (first if at == 0 else 0)
                                    for at, length in enumerate(lengths)])
                         for lengths, first in ROWS])
POINTERS = torch.tensor([0, 3, 7, 12, 14, 20, 24], dtype=torch.int32)
ENDS = dict(cu_seq_lens_q=POINTERS, cu_seq_lens_k=POINTERS, max_length_q=6, max_length_k=6)
assert POSITIONS.shape == (BATCH, LENGTH)


def _run(model: nn.Module, tokens: Tensor, **given) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return what a model says of tokens, flat, and the gradients of a sum over it."""
    torch.manual_seed(1)
    out = model(input_ids=tokens, **given)
    kept = {name: x for name, x in dict(out).items() if isinstance(x, Tensor) and x.dim() > 2
            and x.shape[:2] == tokens.shape and x.is_floating_point()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    total = sum(x.float().square().sum() for x in kept.values())
    grads = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True) if (
        kept and total.requires_grad) else []
    return {name: x.detach().flatten(0, 1) for name, x in kept.items()}, list(grads)


def _alone(model: nn.Module, tokens: Tensor, **given):
    """Return the same from each sequence alone."""
    outs, sums = [], None
    for row, positions, (lengths, _) in zip(tokens, POSITIONS, ROWS):
        for ids, at in zip(row.split(lengths), positions.split(lengths)):
            out, grads = _run(model, ids[None], position_ids=at[None], **given)
            outs.append(out)
            sums = grads if sums is None else [a + b for a, b in zip(sums, grads)]
    return {name: torch.cat([out[name] for out in outs]) for name in outs[0]}, sums


def _off(got, expected) -> float:
    if got[0].keys() != expected[0].keys():
        return float('inf')
    pairs = [(got[0][name], x) for name, x in expected[0].items()] + list(zip(got[1], expected[1]))
    return max((float((a - b).abs().nan_to_num(float('inf')).max() / b.abs().max().clamp(1))
                for a, b in pairs if a.numel()), default=float('inf'))


def ways(model: nn.Module) -> dict[str, dict]:
    """Return how sequences are packed: by positions alone, without a cache, with pointers."""
    uncached = {'use_cache': False} if 'use_cache' in inspect.signature(
        type(model).forward).parameters else {}
    return {'positions': {}, 'pointers': {**ENDS, **uncached}} | (
        {'uncached': uncached} if uncached else {})


def tried(model: nn.Module, inputs: dict) -> tuple[str, str]:
    if list(inputs) != ['input_ids'] or inputs['input_ids'].shape != (BATCH, LENGTH):
        return 'not taken', f'takes {list(inputs)}'
    tokens = inputs['input_ids']
    try:
        before, _ = _run(model, tokens, position_ids=POSITIONS)
    except Exception as error:
        return 'not taken', short(error)
    if not before:
        return 'not taken', 'says nothing of tokens'
    try:
        return attached_answer(model, PATTERN, None, lambda: compared(model, tokens))
    except ValueError as error:
        return 'not attached', short(error)


def compared(model: nn.Module, tokens: Tensor) -> tuple[str, str]:
    expected, found = _alone(model, tokens, **ways(model).get('uncached', {})), []
    for name, given in ways(model).items():
        try:
            off = _off(_run(model, tokens, position_ids=POSITIONS, **given), expected)
            found.append((name, 'equal' if off <= CLOSE else 'wrong', f'{name}: off by {off:.1g}'))
        except (TypeError, ValueError) as error:
            is_named = any(word in str(error) for word in (
                'position_ids', 'cu_seq_lens', 'packed sequences'))
            found.append((name, 'refused' if is_named else 'wrong', f'{name}: {short(error)}'))
    for result in ('wrong', 'refused'):
        if why := [why for _, each, why in found if each == result]:
            return result, ' / '.join(why)
    return 'equal', ''


def examine(name: str) -> Result:
    """Compare packed sequences with the same sequences alone, in a model along a pattern."""
    return examined(name, tried)
