"""Every model of transformers, small, before and after it is attached: ``python -m tests.families``."""

from __future__ import annotations

import argparse
import csv
import importlib
import inspect
import itertools
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

BATCH, LENGTH, SHORT, CACHED = 2, 12, 7, 3
MOST_PARAMETERS = 40_000_000
SECONDS = 60  # for one class
CLOSE = 2e-4  # of the largest number
# Whole-number options of configs, by what their names end in, and what they become.
HEADS, HIDDEN = 4, 32
SMALL = {
    r'(kv|key_value|kv_attention)_heads|num_kv$': 2,
    r'(?<!latent_)heads?$|n_head$|attention_heads$': HEADS,
    r'(?<!conv_)(?<!extract_)(hidden|num|encoder|decoder|n|text|vision|block)_?layers?$|^depth$|n_layers?$'
    r'|(?<!extract)(?<!conv)(?<!adapter)_layers$|num_blocks$': 2,
    r'^vocab_size$|_vocab_size$': 99,
    r'intermediate_size$|ffn_(hidden_)?dim$|^d_ff$|n_inner$|mlp_dim$|ffn_(hidden_)?size$|hidden_dim$'
    r'|^dim_feedforward$': 48,
    r'^(hidden|embed|model|embedding|n|d|text|vision|encoder|decoder|projection|proj|output)_?'
    r'(size|dim|embd|model|hidden_size|hidden_dim|embed_dim|embedding_dim)$|^dim$|embed_dim$'
    r'|_hidden_size$|^output_channels$': HIDDEN,
    r'head_dim$|^d_kv$|^rotary_dim$|head_size$|head_hidden_size$': HIDDEN // HEADS,
    r'(n|num)_?(\w+_)?experts$|num_local_experts$|moe_num_experts$': 4,
    r'experts_per_tok(en)?$|top_?k(_experts)?$|moe_topk$': 2,
    r'^n_group$|topk_group$': 1,
    r'num_mel_bins$|num_pos_feats$': 16,
    r'image_embedding_size$|latent_query_num$|num_query_tokens$|num_latents$': 4,
}
OTHER = ', other padding'
SOUNDS = 'input_values', 'input_features'
# Options that follow from others.
DERIVED = ('out_features', 'out_indices', 'stage_names', 'per_layer_config', 'transformers_version')
WANTED = {'prediction_length': 4, 'pad_token_id': 0, 'head_dim': HIDDEN // HEADS}  # where there is no default
RESNET = dict(model_type='resnet', embedding_size=16, hidden_sizes=[16, 16, 32, 32],
              depths=[1, 1, 1, 1], out_features=['stage4'])
OF_EVERY = [key for key in SMALL if re.search(r'layers|vocab|experts', key)]


@cache
def model_classes() -> dict[str, type[nn.Module]]:
    """The models of the installed transformers, by their names."""
    import transformers
    from transformers import PreTrainedModel
    found = {}
    for path in sorted(Path(transformers.models.__path__[0]).glob('*/modeling_*.py')):
        name = f'transformers.models.{path.parent.name}.{path.stem}'
        try:
            module = importlib.import_module(name)
        except ImportError:  # of a package that is no part of transformers
            continue
        found |= {kind.__name__: kind for kind in vars(module).values()
                  if inspect.isclass(kind) and issubclass(kind, PreTrainedModel)
                  and kind.__module__ == name and kind.config_class is not None
                  and not kind.__name__.endswith('PreTrainedModel')
                  and kind.forward is not PreTrainedModel.forward}
    return found


# Small configs ##########################################################################


def _shrunk(options: dict, rules: list[str]) -> dict:
    small = {}
    if any(isinstance(options.get(name), list) for name in ('num_heads', 'num_attention_heads')):
        rules = [rule for rule in rules if SMALL[rule] not in (HIDDEN, 48)]
    for name, value in options.items():
        if name in DERIVED:
            continue
        if isinstance(value, dict) and value.get('model_type') == 'timm_backbone':
            value = RESNET
        elif isinstance(value, dict) and not name.startswith(('id2', 'label2', 'rope')):
            value = _shrunk(value, rules)
        elif isinstance(value, int) and not isinstance(value, bool):
            size = next((SMALL[rule] for rule in rules if re.search(rule, name)), value)
            value = min(size, value)
        small[name] = value
    if options.get('num_key_value_heads', 0) == options.get('num_attention_heads'):
        small['num_key_value_heads'] = small.get('num_attention_heads')
    _fit_layers(small, options)
    _fit_ids(small)
    _fit_rope(small)
    patch = small.get('patch_size')
    if isinstance(small.get('depths'), list):
        small['depths'] = [1] * len(small['depths'])
    if isinstance(patch, int) and isinstance(small.get('image_size'), int) and (
            not small.get('window_size')):
        small['image_size'] = min(small['image_size'], 4 * patch)
    return small


def _fit_layers(small: dict, options: dict) -> None:
    """Lists of one entry a layer: as many of the last as there are layers."""
    counts = {value: small[name] for name, value in options.items()
              if isinstance(value, int) and re.search(r'layers?$|depth', name)}
    for name, value in options.items():
        if isinstance(value, list) and len(value) in counts and len(value) > 2 and (
                re.search(r'layer|pattern|rope|types?$', name)):
            kinds = list(dict.fromkeys(value)) if isinstance(value[0], str) else value[-1:]
            small[name] = (kinds + value[::-1])[:counts[len(value)]]


def _fit_rope(small: dict) -> None:
    heads, size = small.get('num_attention_heads'), small.get('hidden_size')
    if not isinstance(heads, int) or not isinstance(size, int):
        return
    half = (small.get('head_dim') or size // heads) // 2
    for rope in (small.get('rope_parameters'), small.get('rope_scaling')):
        if isinstance(rope, dict) and not any(isinstance(part, dict) for part in rope.values()):
            rope['mrope_section'] = [half - 2 * (half // 4), half // 4, half // 4]


def _fit_ids(small: dict) -> None:
    """Tokens of a meaning: below the size of the vocabulary, and each another."""
    size, taken = small.get('vocab_size'), itertools.count(1)
    for name, value in small.items():
        if name.endswith(('_token_id', '_token_index')) and isinstance(value, int) and (
                isinstance(size, int) and value >= size):
            small[name] = size - next(taken)


def default_options(config_class: type) -> dict:
    options = config_class().to_dict()
    return options | {name: value for name, value in WANTED.items() if options.get(name, 0) is None}


def small_configs(kind: type) -> Iterator:
    """From the smallest to those that keep more of what they are by default."""
    options = default_options(kind.config_class)
    for rules in (list(SMALL), [rule for rule in SMALL if 'head' not in rule or 'experts' in rule],
                  OF_EVERY):
        yield lambda rules=rules: kind.config_class.from_dict(_shrunk(options, rules))


# Models that are put together from two: the outer class, and the types of the two.
MIXED = [
    *(('EncoderDecoderModel', 'bert', decoder) for decoder in (
        'bert', 'gpt2', 'roberta', 'electra', 'big_bird', 'xlm-roberta-xl', 'camembert')),
    ('EncoderDecoderModel', 'big_bird', 'bert'), ('EncoderDecoderModel', 'longformer', 'gpt2'),
    *(('VisionEncoderDecoderModel', 'vit', decoder) for decoder in ('trocr', 'gpt2', 'bert')),
    ('VisionEncoderDecoderModel', 'swin', 'mbart'),
    ('SpeechEncoderDecoderModel', 'wav2vec2', 'bert'),
    ('SpeechEncoderDecoderModel', 'hubert', 'bart'),
    ('VisionTextDualEncoderModel', 'vit', 'bert'), ('VisionTextDualEncoderModel', 'clip', 'bert'),
    *(('LlavaForConditionalGeneration', 'clip_vision_model', text) for text in (
        'gptj', 'gpt_neo', 'opt', 'bloom', 'codegen', 'mpt', 'falcon', 'gemma2', 'mistral')),
]


def mixed_configs(kind: type, first: str, second: str) -> Iterator:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    parts = [_shrunk(default_options(CONFIG_MAPPING[part]), list(SMALL)) | {'model_type': part}
             for part in (first, second)]
    names = {'EncoderDecoder': ('encoder', 'decoder'), 'VisionTextDual': (
        'vision_config', 'text_config'), 'Llava': ('vision_config', 'text_config')}
    names = next(pair for part, pair in names.items() if part in kind.__name__)
    if names[1] == 'decoder':
        parts[1] |= {'is_decoder': True, 'add_cross_attention': True}
    beside = {'image_token_index': 98, 'vision_feature_layer': -1} if 'Llava' in kind.__name__ else {}
    yield lambda: kind.config_class(**dict(zip(names, parts)), **beside)


def cases() -> dict[str, list]:
    """All that are tried, by their names."""
    kinds = model_classes()
    mixed = [(f'{kind} ({first}, {second})', kinds[kind], (first, second))
             for kind, first, second in MIXED]
    return {name: case for name, *case in [*((name, kind, None) for name, kind in kinds.items()),
                                           *mixed]}


def new_model(kind: type, config) -> nn.Module:
    with torch.device('meta'):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f'{size:,} parameters')
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():  # fresh models attend to all alike
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape).to(parameter), alpha=.05)
    return model.float().eval()


# What they are given ####################################################################


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
    """Those of Pix2Struct, whose first numbers are their places."""
    places = torch.stack([torch.arange(LENGTH) // 4 + 1, torch.arange(LENGTH) % 4 + 1], dim=1)
    return torch.cat([places.expand(BATCH, -1, -1), _random(BATCH, LENGTH, size)], dim=2)


def _values(name: str, model: nn.Module) -> list:
    """What may be given under a name, likely first."""
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
        'bbox': [boxes], 'xpath_tags_seq': [torch.ones(BATCH, LENGTH, 50).long()],
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
                *(_values(name, model) for name in names)))


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
    """What a model is asked: without padding, with it, and each with something changed that may
    not matter."""
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
                is_padding = is_padding & (inputs[main] != getattr(model.config, 'image_token_id', -1))
            found[side + OTHER] = padded | {main: _changed(padded[main], is_padding)}
    return found


# What they answer #######################################################################


def _tensors(outputs) -> dict[str, Tensor]:
    leaves, _ = tree_flatten_with_path(tree_map_only(Tensor, lambda x: x.detach(), dict(outputs)
                                       if hasattr(outputs, 'keys') else outputs))
    return {''.join(map(str, path)): x.float().clone() for path, x in leaves
            if isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.bool)
            and 'past_key_values' not in str(path[:1])}


@torch.no_grad()
def answer(model: nn.Module, inputs: dict) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return _tensors(model(**tree_map_only(Tensor, torch.clone, inputs)))


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


# What comes of it #######################################################################


class Result(NamedTuple):
    """What came of a class: ``equal``, ``refused``, ``not built`` or ``wrong``, and why."""

    name: str
    result: str
    why: str = ''


def _of_tokens(x: Tensor, inputs: dict, key: str) -> Tensor | None:
    """Where an answer is one about tokens, if it is one about each."""
    mask = inputs.get('attention_mask')
    if mask is not None and x.shape[:2] == mask.shape:
        return mask.bool().reshape(*mask.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    if mask is not None and _is_of_frames(x, inputs, key):
        is_frame = nn.functional.adaptive_avg_pool1d(mask.float(), x.size(1)) == 1
        return is_frame.reshape(*is_frame.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    return None


def _is_told_by(x: Tensor, name: str, asked: dict, before: dict, key: str) -> Tensor:
    """Where an answer is to be compared: of tokens, or where it does not hang on padding."""
    is_finite, where = x.abs() < 1e30, _of_tokens(x, asked.get(name, {}), key)
    if where is not None:
        return is_finite & where
    other = before.get(name.removesuffix(OTHER) + OTHER, {}).get(key)
    this = before[name.removesuffix(OTHER)].get(key)
    if other is None or not x.shape == other.shape == this.shape:
        return is_finite
    return is_finite & (other == this)


def reads_padding(asked: dict, before: dict) -> list[str]:
    """On which sides it stands that changes what is said of tokens."""
    sides = [name.removesuffix(OTHER) for name in before if name.endswith(OTHER)]
    return [side for side in sides if difference(asked, {side: before[side]}, {
        side: before[side + OTHER]})[0] > 1e-6]


def _is_of_frames(x: Tensor, inputs: dict, key: str) -> bool:
    """Whether it may be about stretches of sound, of which fewer come out than go in."""
    main, length = next(iter(inputs)), x.size(1) if x.dim() > 2 else 0
    is_encoded = 'decoder_input_ids' not in inputs or 'encoder' in key
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
        return None if _tensors(model(**inputs)) else 'no tensor comes out'
    except TimeoutError:
        raise
    except Exception as error:
        return short(error)


def _with_images(model: nn.Module, inputs: dict) -> dict:
    """Beside the tokens images, with as many tokens for them as the model asks for."""
    parameters = inspect.signature(type(model).forward).parameters
    if 'pixel_values' in inputs or 'pixel_values' not in parameters or 'input_ids' not in inputs:
        return inputs
    beside = {'image_grid_thw': _values('image_grid_thw', model)[0]} if (
        'image_grid_thw' in parameters) else {}
    for pixels in _values('pixel_values', model):
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


def _attached(model: nn.Module, pattern: object, answer: Callable) -> dict:
    """Its answers along a pattern, or along the edges that it chooses itself."""
    from graphattn.hugging_face import attach, detach
    attach(model, pattern)
    try:
        return answer()
    except ValueError as error:
        if "'along' must be None" not in str(error):
            raise
    attach(detach(model), None)
    return answer()


def tried(model: nn.Module, inputs: dict) -> tuple[str, str]:
    """What comes of attaching a model to ``Full()``."""
    from graphattn import hugging_face
    from graphattn.hugging_face import detach
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
    noise, where = difference(asked, before, all_answers())
    if noise > 1e-5:
        return 'not built', f'answers differ from call to call by {noise:.1g} ({where})'
    attended = mock.Mock(side_effect=hugging_face.attend_padded)
    try:
        with mock.patch.object(hugging_face, 'attend_padded', attended), warnings.catch_warnings(
                record=True) as warned:
            warnings.simplefilter('always')
            after = _attached(model, Full(), all_answers)
    except ValueError as error:
        if any(hasattr(module, 'graph_attachment') for module in model.modules()):
            detach(model)
        off, where = difference(asked, before, all_answers())
        return ('refused', str(error)) if off <= 1e-6 else ('wrong', f'refused, yet changed {where}')
    off, where = difference(asked, before, after)
    hangs = [] if off <= CLOSE else reads_padding(asked, before)
    if hangs:  # on outputs for padding, which are 0 once it is attached
        before = {name: outputs for name, outputs in before.items()
                  if name.removesuffix(OTHER) not in hangs}
        off, where = difference(asked, before, after)
    if off > CLOSE:
        return 'wrong', f'off by {off:.1g} ({where})'
    left = {str(warning.message) for warning in warned if re.search('as it is|as they are', str(
        warning.message))}
    if not attended.called and not left:
        return 'wrong', 'attached, and no attention along edges was called for'
    is_whole = attended.called and not any('AttentionInterface' in why for why in left)
    return 'equal' if is_whole else 'equal, in part', ' / '.join([', '.join(before), *(
        f'what it says of tokens hangs on padding: {side}' for side in hangs),
                                                                 *sorted(left)])


def examine(name: str) -> Result:
    kind, parts = cases()[name]
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    with within(SECONDS):
        try:
            model, inputs = build(kind, mixed_configs(kind, *parts) if parts else small_configs(kind))
        except Exception as error:
            return Result(name, 'not built', short(error))
        try:
            return Result(name, *tried(model, inputs))
        except TimeoutError as error:
            return Result(name, 'not built', short(error))
        except Exception as error:
            return Result(name, 'wrong', short(error))


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m tests.families', description=__doc__)
    parser.add_argument('names', nargs='*', help='names of classes (default: all)')
    parser.add_argument('--out', type=Path, default='families.csv')
    parser.add_argument('--processes', type=int, default=2)
    args = parser.parse_args()
    chosen = args.names or list(cases())
    import transformers
    transformers.logging.set_verbosity_error()
    start = time.monotonic()
    with get_context('fork').Pool(args.processes, maxtasksperchild=50) as pool, open(
            args.out, 'w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(Result._fields)
        for count, result in enumerate(pool.imap_unordered(examine, chosen), 1):
            writer.writerow(result)
            file.flush()
            if args.names or result.result == 'wrong':
                print(*result, sep=' | ')
            print(f'{count} of {len(chosen)}, {time.monotonic() - start:.0f} s', end='\r',
                  file=sys.stderr)


if __name__ == '__main__':
    main()
