"""Inputs of a model: tokens, images, sounds, with and without padding."""

import inspect
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.families.models import HIDDEN

BATCH, LENGTH, SHORT = 2, 12, 7
OTHER = ', other padding'
# A model takes such masks of pairs if the first is to its own code what zeros are.
OF_PAIRS = ('booleans',), ('ones', 'bias')
SOUNDS = 'input_values', 'input_features'


def _find(config, name: str, default=None):
    """An option of a config, or of the first config in it that has it."""
    for part in (config, *(getattr(config, key, None) for key in (
            'vision_config', 'audio_config', 'text_config', 'encoder', *config.sub_configs))):
        if part is not None and isinstance(getattr(part, name, None), (int, list, tuple)):
            return getattr(part, name)
    return default


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _tokens(config, length: int) -> Tensor:
    size = min(_find(config.get_text_config(), 'vocab_size', 90), 90)
    return torch.randint(min(5, size - 2), size, (BATCH, length),
                         generator=torch.Generator().manual_seed(4))


def _image(config) -> tuple[int, int, int]:
    size = _find(config, 'image_size', 64)
    size = [size, size] if isinstance(size, int) else list(size)[-2:]
    return _find(config, 'num_channels', _find(config, 'in_channels', 3)), *size


def _features(config) -> list[Tensor]:
    size = _find(config, 'num_mel_bins', _find(config, 'feature_size', _find(
        config, 'input_feat_per_channel', _find(config, 'n_mels', 80))))
    length = 2 * _find(config, 'max_source_positions', 32)
    return [_random(BATCH, size, min(length, 3000)), _random(BATCH, 64, size),
            _random(BATCH, 64, 2 * size), _random(BATCH, 1, 64, size)]


def _grid(config) -> tuple[Tensor, Tensor]:
    """Two images of 4 x 8 patches, and how many each has."""
    patch = _find(config, 'patch_size', 14)
    patch = patch if isinstance(patch, int) else patch[-1]
    channels = _find(config, 'in_channels', _find(config, 'in_chans', 3))
    pixels = _find(config, 'temporal_patch_size', 1) * channels * patch * patch
    return _random(64, pixels), torch.tensor([[1, 4, 8]] * BATCH)


def _patches(size: int) -> Tensor:
    """Return the patches of Pix2Struct, whose first values are their places."""
    places = torch.stack([torch.arange(LENGTH) // 4 + 1, torch.arange(LENGTH) % 4 + 1], dim=1)
    return torch.cat([places.expand(BATCH, -1, -1), _random(BATCH, LENGTH, size)], dim=2)


def values(name: str, model: nn.Module) -> list:
    """Return values that a model may take under a name, likely ones first."""
    config = model.config
    channels, *sides = _image(config)
    boxes = torch.tensor([1, 2, 7, 9]).expand(BATCH, LENGTH, 4)
    lags = max(getattr(config, 'lags_sequence', None) or [0])
    steps = getattr(config, 'context_length', 16) + lags
    future, variates = getattr(config, 'prediction_length', 4) or 4, _find(
        config, 'num_input_channels', 1)
    hidden = _find(config, 'hidden_size', HIDDEN)
    features = _find(config, 'num_time_features', 0)
    grid, counts = _grid(config)
    return {
        'input_ids': [_tokens(config, LENGTH)],
        'decoder_input_ids': [_tokens(config, LENGTH - 2)],
        'bbox': [boxes, boxes / 10], 'xpath_tags_seq': [torch.ones(BATCH, LENGTH, 50).long()],
        'pixel_values': [_random(BATCH, channels, *sides), _random(BATCH, 2, channels, *sides),
                         _random(BATCH, 1, 2, channels, *sides), grid],
        'pixel_values_videos': [_random(BATCH, _find(config, 'num_frames', _find(
            config, 'frames_per_clip', 2)), channels, *sides)],
        'flattened_patches': [_patches(_find(config, 'patch_embed_hidden_size', 768))],
        'image_embeds_position_mask': [(torch.arange(LENGTH) < 4).expand(BATCH, -1)],
        'input_features': _features(config),
        'input_values': [_random(BATCH, 2400), _random(BATCH, 1, 2400), _random(
            BATCH, _find(config, 'max_length', 64), _find(config, 'num_mel_bins', 128))],
        'audio_values': [_random(BATCH, 1, 2400), _random(BATCH, 64, 128)],
        'hidden_states': [grid, _random(BATCH, LENGTH, hidden)],
        'grid_thw': [counts], 'image_grid_thw': [counts],
        'inputs_embeds': [_random(BATCH, LENGTH, hidden)],
        'encoder_hidden_states': [_random(BATCH, LENGTH, hidden)],
        'past_values': [_random(BATCH, steps, variates), _random(BATCH, steps)],
        'past_time_features': [_random(BATCH, steps, features)],
        'past_observed_mask': [torch.ones(BATCH, steps)],
        'future_values': [_random(BATCH, future)],
        'future_time_features': [_random(BATCH, future, features)],
        'input_points': [_random(BATCH, 1, 2, 2).abs()],
        'input_boxes': [_random(BATCH, 1, 4).abs()],
        'states': [_random(BATCH, LENGTH, _find(config, 'state_dim', 17))],
        'actions': [_random(BATCH, LENGTH, _find(config, 'act_dim', 4))],
        'rewards': [_random(BATCH, LENGTH, 1)], 'returns_to_go': [_random(BATCH, LENGTH, 1)],
        'timesteps': [torch.arange(LENGTH).expand(BATCH, -1)],
        'task_inputs': [_tokens(config, 8)],
        'labels': [_tokens(config, LENGTH)], 'return_loss': [False],
    }.get(name, [])


def candidate_inputs(model: nn.Module) -> Iterator[dict]:
    """Arguments of a call, likely first."""
    parameters = inspect.signature(type(model).forward).parameters
    required = [name for name, parameter in parameters.items() if name != 'self'
                and parameter.default is inspect.Parameter.empty
                and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    main = [model.main_input_name] if model.main_input_name in parameters else []
    decoded = [name for name in ('decoder_input_ids',)
               if name in parameters and model.config.is_encoder_decoder]
    beside = [name for name in ('bbox', 'grid_thw', 'image_grid_thw', 'past_time_features',
                                'past_observed_mask', 'future_values', 'future_time_features',
                                'task_inputs', 'input_points')
              if name in parameters and model.main_input_name in ('past_values', 'input_ids')[:1]
              or name in ('bbox', 'input_points') and name in parameters]
    sets = [main + required + decoded, main + required + decoded + beside, required, ['input_ids'],
            ['pixel_values'], ['input_ids', 'pixel_values'], [*parameters][1:2] + decoded + beside,
            ['pixel_values', 'image_grid_thw'], ['input_features'], ['input_values'],
            ['pixel_values', 'input_ids', 'image_embeds_position_mask'],
            ['inputs_embeds'], ['input_ids', 'input_features'], ['input_ids', 'input_values']]
    seen = []
    for names in sets:
        names = list(dict.fromkeys(name for name in names if name in parameters))
        if names and set(names) not in seen:
            seen.append(set(names))
            yield from (dict(zip(names, values)) for values in itertools.product(
                *(values(name, model) for name in names)))


def _masked(inputs: dict, parameters, side: str) -> dict | None:
    """The same with padding on one side of the second sequence, or ``None`` if there is none."""
    name, main = next(iter(inputs.items()))
    if side == 'left' and name in SOUNDS:
        return None  # many tell their padding by its length alone
    if 'attention_mask' in parameters and 'pixel' not in name:
        length = main.size(1) if main.dim() < 4 else main.size(2)
        tokens = torch.arange(length)[None].expand(BATCH, -1)
        pad = length * (LENGTH - SHORT) // LENGTH
        limits = torch.tensor([[0], [pad]])
        is_token = tokens >= limits if side == 'left' else tokens < length - limits
        return inputs | {'attention_mask': is_token.long()}
    if 'pixel_mask' in parameters and 'pixel_values' in inputs and side == 'right':
        is_pixel = torch.ones(BATCH, *inputs['pixel_values'].shape[-2:], dtype=torch.long)
        is_pixel[1, :, is_pixel.size(2) // 2:] = 0
        return inputs | {'pixel_mask': is_pixel}
    return None


def _changed(x: Tensor, where: Tensor) -> Tensor:
    """Other tokens or features at some places."""
    where = where.reshape(*where.shape, *[1] * (x.dim() - where.dim())).expand(x.shape)
    return torch.where(where, x - 1 if not x.is_floating_point() else 1. - x, x)


def variants(model: nn.Module, inputs: dict) -> dict[str, dict]:
    """Return the inputs of a model: without padding, with it, and each with something changed that
    may not matter."""
    parameters = inspect.signature(type(model).forward).parameters
    main, found = next(iter(inputs)), {'unpadded': inputs}
    if main in ('input_ids', 'inputs_embeds', 'input_values', 'past_values'):
        length = inputs[main].size(1)
        is_last = (torch.arange(length) >= length - 2).expand(BATCH, -1)
        found['later'] = inputs | {main: _changed(inputs[main], is_last)}
    if 'decoder_input_ids' in inputs:
        tokens = inputs['decoder_input_ids']
        is_last = (torch.arange(tokens.size(1)) >= tokens.size(1) - 2).expand(BATCH, -1)
        found['later'] = inputs | {'decoder_input_ids': _changed(tokens, is_last)}
    if main == 'input_ids' and 'attention_mask' in parameters:
        may = (_random(BATCH, 1, length, length) < .5).logical_or(torch.eye(length)).tril()
        least = torch.finfo(torch.float).min
        bias = _random(BATCH, 1, length, length)
        for name, mask in {'pairs': torch.where(may, 0., least), 'booleans': may,
                           'ones': torch.where(may, 1., least),
                           'bias': torch.where(may, bias, least)}.items():
            found[name] = inputs | {'attention_mask': mask}
    for side in 'right', 'left':
        padded = _masked(inputs, parameters, side)
        if padded is not None:
            found[side] = padded
            is_padding = padded.get('attention_mask', padded.get('pixel_mask')) == 0
            if 'pixel_mask' in padded:
                is_padding = is_padding[:, None]
            elif inputs[main].dim() == 3 and inputs[main].size(1) != is_padding.size(1):
                continue
            if side == 'left' and 'pixel_values' in inputs:
                image_token = getattr(model.config, 'image_token_id', -1)
                is_padding = is_padding & (inputs[main] != image_token)
            found[side + OTHER] = padded | {main: _changed(padded[main], is_padding)}
    return found
