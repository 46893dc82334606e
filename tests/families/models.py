"""The models of transformers, each as small as it can be built."""

import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch import nn

MAX_PARAMETERS = 45_000_000
# Whole-number options of configs, by what their names end in, and what they become.
HEADS, HIDDEN = 4, 32
SMALL = {
    r'(kv|key_value|kv_attention)_heads|num_kv$|attn_layer_period$': 2,
    r'attn_layer_offset$': 1, r'mamba_(d_head|head_dim)$': 16,
    r'(?<!latent_)heads?$|n_head$|attention_heads$': HEADS,
    r'(?<!conv_)(?<!extract_)(hidden|num|encoder|decoder|n|text|vision|block)_?layers?$'
    r'|^depth$|n_layers?$|(?<!extract)(?<!conv)(?<!adapter)_layers$|num_blocks$': 2,
    r'^vocab_size|_vocab_size$': 99,
    r'intermediate_size$|ffn_(hidden_)?dim$|^d_ff$|n_inner$|mlp_dim$|ffn_(hidden_)?size$'
    r'|hidden_dim$|^dim_feedforward$': 48,
    r'^(hidden|embed|model|embedding|n|d|text|vision|encoder|decoder|projection|proj|output)_?'
    r'(size|dim|embd|model|hidden_size|hidden_dim|embed_dim|embedding_dim)$|^dim$|emb(ed)?_dim$'
    r'|_hidden_size$|^output_channels$': HIDDEN,
    r'_per_layer_input$|head_dim$|^d_kv$|^rotary_dim$|head_size$'
    r'|head_hidden_size$': HIDDEN // HEADS,
    r'(n|num)_?(\w+_)?experts$|num_local_experts$|moe_num_experts$': 4,
    r'experts_per_tok(en)?$|top_?k(_experts)?$|moe_topk$|moe_k$': 2,
    r'^n_group$|topk_group$': 1,
    r'num_mel_bins$|num_pos_feats$': 16,
    r'^max_source_positions$': 64,
    r'image_embedding_size$|latent_query_num$|num_query_tokens$|num_latents$': 4,
}
# Options that follow from others.
DERIVED = ('out_features', 'out_indices', 'stage_names', 'per_layer_config', 'transformers_version')
# Where there is no default.
WANTED = {'prediction_length': 4, 'pad_token_id': 0, 'head_dim': HIDDEN // HEADS,
          'vocab_size': 99, 'num_key_value_heads': HEADS, 'num_experts_per_tok': 2}
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
            not small.get('window_size') or 'depths' not in small):
        small['image_size'] = min(small['image_size'], 4 * patch)
    return small


def _fit_layers(small: dict, options: dict) -> None:
    """Lists of one entry a layer: as many of the last as there are layers."""
    counts = {value: small[name] for name, value in options.items()
              if isinstance(value, int) and re.search(r'layers?$|depth', name)}
    for name, value in options.items():
        if isinstance(value, list) and len(value) in counts and len(value) > 2 and (
                re.search(r'layer|pattern|rope|types?$|intermediate_size$', name)):
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
    """Yield configs from the smallest to those that keep more of their defaults."""
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
    options = dict(zip(names, parts))
    if 'Llava' in kind.__name__:
        options |= {'image_token_index': 98, 'vision_feature_layer': -1}
    yield lambda: kind.config_class(**options)


def names() -> list[str]:
    """Return the names of all models that are tried."""
    return [*model_classes(), *(f'{kind} ({first}, {second})' for kind, first, second in MIXED)]


def find(name: str) -> tuple[type[nn.Module], Iterator]:
    """A model's class and its configs, from the smallest on."""
    import transformers
    outer, _, parts = name.rstrip(')').partition(' (')
    kind = getattr(transformers, outer, None) or model_classes()[outer]
    return kind, mixed_configs(kind, *parts.split(', ')) if parts else small_configs(kind)


def new_model(kind: type, config) -> nn.Module:
    with torch.device('meta'):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f'{size:,} parameters')
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():  # fresh models attend to all alike
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape).to(parameter), alpha=.05)
    return model.float().eval()
