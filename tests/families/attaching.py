"""Results of attaching a model to all edges."""

import inspect
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn

from tests.families.answers import answer, answers, cached, difference, reads_padding, tensors
from tests.families.inputs import BATCH, OF_PAIRS, OTHER, candidate_inputs, values, variants
from tests.families.models import find, new_model

SECONDS = 60  # for one class
CLOSE = 2e-4  # of the largest number


class Result(NamedTuple):
    """Result of a class: ``equal``, ``refused``, ``not built`` or ``wrong``, and why."""

    name: str
    result: str
    why: str = ''


@contextmanager
def within(seconds: int):
    def stop(*_):
        raise TimeoutError(f'{seconds} s')
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def short(error: BaseException) -> str:
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:300]


def build(kind: type, configs: Iterator) -> tuple[nn.Module, dict]:
    """The smallest model that answers, and to what."""
    reasons = []
    for config in configs:
        try:
            model = new_model(kind, config())
        except TimeoutError:
            raise
        except Exception as error:
            reasons.append(short(error))
            continue
        for inputs in candidate_inputs(model):
            why = _why_not(model, inputs)
            if why is None:
                return model, _with_images(model, inputs)
            reasons.append(why)
    raise ValueError(' / '.join(dict.fromkeys(reasons)) or 'no arguments are known')


@torch.no_grad()
def _why_not(model: nn.Module, inputs: dict) -> str | None:
    """Why a model does not answer, if it does not."""
    try:
        return None if tensors(model(**inputs)) else 'no tensor comes out'
    except TimeoutError:
        raise
    except Exception as error:
        return short(error)


def _with_images(model: nn.Module, inputs: dict) -> dict:
    """Beside the tokens images, with as many tokens for them as the model asks for."""
    parameters = inspect.signature(type(model).forward).parameters
    if 'pixel_values' in inputs or 'pixel_values' not in parameters or 'input_ids' not in inputs:
        return inputs
    beside = {'image_grid_thw': values('image_grid_thw', model)[0]} if (
        'image_grid_thw' in parameters) else {}
    for pixels in values('pixel_values', model):
        both = inputs | {'pixel_values': pixels} | beside
        why = _why_not(model, both)
        wanted = re.search(r'features\D{0,20}(\d+)', why or '')
        token = getattr(model.config, 'image_token_id', None)
        if wanted and token is not None:
            images = torch.full((BATCH, max(int(wanted[1]) // BATCH, 1)), token)
            both['input_ids'] = torch.cat([images, inputs['input_ids']], dim=1)
            why = _why_not(model, both)
        if why is None:
            return both
    return inputs


def attached_answer(model: nn.Module, pattern: object, layers: list[int] | None,
              answer: Callable) -> dict:
    """Its answers along a pattern, or along the edges that it chooses itself."""
    from graphattn.hugging_face import attach, detach
    attach(model, pattern, layers=layers)
    try:
        return answer()
    except ValueError as error:
        if "'along' must be None" not in str(error):
            raise
    attach(detach(model), None, layers=layers)
    return answer()


def tried(model: nn.Module, inputs: dict, layers: list[int] | None) -> tuple[str, str]:
    """Attach a model to ``Full()``, and return the result."""
    from graphattn.hugging_face import attention, detach
    from graphattn.patterns import Full
    asked = {}
    for name, given in variants(model, inputs).items():
        try:
            answer(model, given)
            asked[name] = given
        except TimeoutError:
            raise
        except Exception:  # that a model takes no padding
            continue
    own = {'': answer(model, asked['pairs'])} if 'pairs' in asked else {}
    for names in OF_PAIRS:
        if names[0] in asked and difference({}, own, {'': answer(model, asked[names[0]])})[0] > (
                CLOSE):
            asked = {name: given for name, given in asked.items() if name not in names}

    def all_answers():
        found = answers(model, asked)
        if 'left' in asked:
            try:
                tokens = cached(model, asked['left'])
            except (TimeoutError, ValueError):
                raise
            except Exception:
                tokens = None
            found |= {} if tokens is None else {'cached': tokens}
        return found

    before = all_answers()
    noise, where = difference(asked, {'unpadded': before['unpadded']}, {
        'unpadded': answer(model, asked['unpadded'])})
    if noise > 1e-5:
        return 'not built', f'answers differ from call to call by {noise:.1g} ({where})'
    attended = mock.Mock(side_effect=attention.attend_padded)
    try:
        with mock.patch.object(attention, 'attend_padded', attended), warnings.catch_warnings(
                record=True) as warned:
            warnings.simplefilter('always')
            after = attached_answer(model, Full(), layers, all_answers)
    except ValueError as error:
        if any(hasattr(module, 'graph_attachment') for module in model.modules()):
            detach(model)
        off, where = difference(asked, before, all_answers())
        return ('wrong', f'refused, yet changed {where}') if off > 1e-6 else (
            'refused', str(error))
    off, where = difference(asked, before, after)
    hangs = [] if off <= CLOSE else reads_padding(asked, before)
    if hangs:  # on outputs for padding, which are 0 once it is attached
        before = {name: outputs for name, outputs in before.items()
                  if name.removesuffix(OTHER) not in hangs}
        off, where = difference(asked, before, after)
    if off > CLOSE:
        return 'wrong', f'off by {off:.1g} ({where})'
    left = {str(warning.message) for warning in warned
            if 'not replaced' in str(warning.message)}
    if not attended.called and not left:
        return 'wrong', 'attached, and no attention along edges was called for'
    is_whole = attended.called and not any('AttentionInterface' in why for why in left)
    return 'equal' if is_whole else 'equal, in part', ' / '.join([', '.join(before), *(
        f'outputs for tokens depend on padding: {side}' for side in hangs),
                                                                 *sorted(left)])


def examined(name: str, tried: Callable, is_eager: bool = False) -> Result:
    """Build a model, and return the result that ``tried`` finds of it and its inputs."""
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    with within(SECONDS):
        try:
            model, inputs = build(*find(name))
            if is_eager:
                model.set_attn_implementation('eager')
        except Exception as error:
            return Result(name, 'not built', short(error))
        try:
            return Result(name, *tried(model, inputs))
        except TimeoutError as error:
            return Result(name, 'not built', short(error))
        except Exception as error:
            return Result(name, 'wrong', short(error))


def examine(name: str, is_eager: bool = False, layers: list[int] | None = None) -> Result:
    """Examine a model, some or all of its layers, with SDPA or its own code before."""
    return examined(name, partial(tried, layers=layers), is_eager)
