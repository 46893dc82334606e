"""Weights of Hugging Face's BERT and RoBERTa, copied into and out of this library's models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

from graphattn._checks import check_bool, check_choice
from graphattn.functional.recursion import is_one_hop
from graphattn.models.classifiers import SequenceClassifier
from graphattn.models.encoder import Encoder
from graphattn.models.masked_language_model import MaskedLanguageModel
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource
from graphattn.utils.files import as_path, write_whole
from graphattn.utils.reading import read_json

Model = MaskedLanguageModel | SequenceClassifier
Config = Mapping[str, Any] | str | PathLike  # or a PretrainedConfig of transformers
Weights = Mapping[str, torch.Tensor] | str | PathLike
# Modules here, and in Hugging Face's models without the prefix 'bert.' or 'roberta.'.
ENCODER = {'token_embedding': 'embeddings.word_embeddings', 'norm': 'embeddings.LayerNorm',
           'position_embedding': 'embeddings.position_embeddings',
           'segment_embedding': 'embeddings.token_type_embeddings'}
LAYER = {'attention.lin_query': 'attention.self.query', 'attention.lin_key': 'attention.self.key',
         'attention.lin_value': 'attention.self.value', 'feed_forward.3': 'output.dense',
         'attention.lin_out': 'attention.output.dense', 'feed_forward.0': 'intermediate.dense',
         'attention_norm': 'attention.output.LayerNorm', 'feed_forward_norm': 'output.LayerNorm'}
LANGUAGE = {'bert': {'transform.0': 'cls.predictions.transform.dense',
                     'transform.2': 'cls.predictions.transform.LayerNorm',
                     'pooler.linear': 'pooler.dense', 'next_sentence': 'cls.seq_relationship'},
            'roberta': {'transform.0': 'lm_head.dense', 'transform.2': 'lm_head.layer_norm'}}
CLASSIFIER = {'bert': {'pooler.linear': 'pooler.dense', 'head.1': 'classifier'},
              'roberta': {'pooler.linear': 'classifier.dense', 'head.1': 'classifier.out_proj'}}
DECODER = {'bert': 'cls.predictions', 'roberta': 'lm_head'}  # computes the logits of tokens
INNER = 'embeddings.', 'encoder.'
WORDS, POSITIONS = (f'embeddings.{each}_embeddings.weight' for each in ('word', 'position'))
# For an entry of a config: the attribute and the argument of Encoder, and transformers' default.
SETTINGS = {
    'vocab_size': ('token_embedding.num_embeddings', 'num_tokens', None),
    'hidden_size': ('channels', 'channels', 768), 'num_attention_heads': ('heads', 'heads', 12),
    'hidden_act': ('activation', 'activation', 'gelu'),
    'num_hidden_layers': ('layers', 'num_layers', 12),
    'intermediate_size': ('layers.0.feed_forward.0.out_features', 'hidden_channels', 3072),
    'type_vocab_size': ('segment_embedding.num_embeddings', 'num_segments', 2),
    'layer_norm_eps': ('norm.eps', 'norm_eps', 1e-12),
    'max_position_embeddings': ('position_embedding.num_embeddings', 'max_length', 512),
    'hidden_dropout_prob': ('dropout.p', 'dropout', .1),
    'attention_probs_dropout_prob': ('layers.0.attention.attention.dropout', 'attention_dropout',
                                     .1)}
ONLY = {'position_embedding_type': 'absolute', 'is_decoder': False, 'add_cross_attention': False}
FIXED = 'model_type', *ONLY, *[*SETTINGS][:-3]  # entries that a model and a checkpoint share
SAME = {'gelu_python': 'gelu', 'gelu_pytorch_tanh': 'gelu_new', 'swish': 'silu',
        'xlm-roberta': 'roberta', 'camembert': 'roberta'}  # values of the same meaning


def encoder_of(config: Config, source: GraphSource | Pattern | str | None,
               **options: Any) -> Encoder:
    """Return an encoder with random weights, and the settings of a Hugging Face BERT or RoBERTa.

    Args:
        config (Mapping, PretrainedConfig or path): A config, or a ``config.json`` or its folder.
            Missing entries have transformers' defaults; ``vocab_size`` is required.
        source (GraphSource, Pattern or str): As in :class:`Encoder`.
        **options: Arguments of :class:`Encoder` that override ``config``, such as ``hops``.
    """
    given = _read_config('bert', config)
    family = 'roberta' if given['model_type'] == 'roberta' else 'bert'
    _compare('config', {'model_type': family, **ONLY}, given)
    sizes = {argument: given[name] for name, (_, argument, _) in SETTINGS.items()}
    sizes['max_length'] -= given['first_position']
    return Encoder(source, **{**sizes, 'norm_first': False, **options})


def load_bert(model: Model, state_dict: Weights, config: Config | None = None) -> list[str]:
    """Copy the encoder of a Hugging Face BERT, and the pooler and heads that both have, into a
    model, and return the names of the model's parameters that were not loaded.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): Has the settings of the checkpoint, as
            with :func:`encoder_of`, or a smaller ``max_length``. It is unchanged after an error.
        state_dict (Mapping or path): The weights, or a ``model.safetensors`` or its folder.
        config (Mapping, PretrainedConfig or path): As in :func:`encoder_of`; by default, that in
            the folder of the weights.
    """
    return _load('bert', model, state_dict, config)


def load_roberta(model: Model, state_dict: Weights, config: Config | None = None, *,
                 tile_positions: bool = False) -> list[str]:
    """Do as :func:`load_bert` with a RoBERTa, XLM-RoBERTa or CamemBERT, whose positions of no token
    are dropped. With ``tile_positions``, a longer model repeats the others, as in Longformer."""
    check_bool(tile_positions=tile_positions)
    return _load('roberta', model, state_dict, config, tile_positions)


def to_hugging_face(model: Model, folder: str | PathLike, *,
                    family: Literal['bert', 'roberta'] = 'bert') -> None:
    """Write a post-norm model of one hop, without its sources, as ``config.json`` and
    ``model.safetensors``, which ``from_pretrained(folder)`` reads. ``family`` is ``'bert'``, or
    ``'roberta'``, which has no sequence logits."""
    from safetensors.torch import save_file

    check_choice('family', family, ('bert', 'roberta'))
    folder = as_path('folder', folder)
    names, config = _described(family, model)
    sources = {parameter for module in model.modules() if isinstance(module, GraphSource)
               for parameter in module.parameters()}
    if rest := [name for name, parameter in model.named_parameters()
                if name not in names and parameter not in sources]:
        raise ValueError(f"'model' must have only parameters of a {family} (got {rest[0]!r})")
    layer, heads = model.encoder.layers[0].attention, model.encoder.heads
    _compare('model', {'one hop': True, 'num_kv_heads': heads, 'heads * size': layer.channels}, {
        'one hop': is_one_hop(layer.attention.hops, layer.attention.teleport),
        'num_kv_heads': layer.num_kv_heads, 'heads * size': heads * layer.head_channels})
    inner = *INNER, 'pooler.'
    weights = {f'{family}.' * theirs.startswith(inner) + theirs: model.state_dict()[name]
               .contiguous() for name, theirs in names.items()}
    first, positions = 2 * (family == 'roberta'), f'{family}.{POSITIONS}'
    config['max_position_embeddings'] += first
    of_no_token = 0, 0, first, 0  # rows before the others
    weights[positions] = torch.nn.functional.pad(weights[positions], of_no_token)
    write_whole(folder / 'config.json', lambda path: path.write_text(json.dumps(config)))
    write_whole(folder / 'model.safetensors',
                lambda path: save_file(weights, path, {'format': 'pt'}))


def _described(family: str, model: Model) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the family's names of the parameters of a model, and its config."""
    if not isinstance(model, Model):
        raise TypeError(f"'model' must be a {Model} (got {type(model).__name__})")
    encoder, is_classifier = model.encoder, isinstance(model, SequenceClassifier)
    modules = {f'encoder.{mine}': theirs for mine, theirs in ENCODER.items()} | {
        f'encoder.layers.{i}.{mine}': f'encoder.layer.{i}.{theirs}'
        for i in range(len(encoder.layers)) for mine, theirs in LAYER.items()} | {
        mine: theirs for mine, theirs in (CLASSIFIER if is_classifier else LANGUAGE)[family].items()
        if getattr(model, mine.split('.')[0]) is not None}
    if is_classifier and (not model.pooler or len(model.head) * model.features_per_channel != 2):
        del modules['head.1']
    names = {f'{mine}.{end}': f'{theirs}.{end}' for mine, theirs in modules.items()
             for end in (('weight',) if 'embedding' in mine else ('weight', 'bias'))}
    names |= {} if is_classifier else {'token_bias': f'{DECODER[family]}.bias'}
    if missing := [name for name in names if name not in model.state_dict()]:
        raise ValueError(f"'model' must have {missing[0]!r}, and no adapters (got none)")
    activation = 'gelu' if family == 'roberta' and not is_classifier else encoder.activation
    _compare('model', {'norm_first': False, 'activation': activation}, {
        'norm_first': encoder.norm_first, 'activation': getattr(model, 'activation', activation)})
    kind = 'PreTraining' if model.pooler else 'MaskedLM'
    kind = 'SequenceClassification' if is_classifier else kind
    return names, {
        **{name: attrgetter(place)(encoder) for name, (place, _, _) in SETTINGS.items()}, **ONLY,
        'num_hidden_layers': len(encoder.layers), 'pad_token_id': int(family == 'roberta'),
        'model_type': family, 'architectures': [f'{family.title()}For{kind}'],
        'id2label': {i: f'LABEL_{i}' for i in range(getattr(model, 'num_classes', 2))}}


def _load(family: str, model: Model, state_dict: Weights, config: Config | None,
          tile: bool = False) -> list[str]:
    names, ours = _described(family, model)
    if config is None and isinstance(state_dict, str | PathLike):
        config = state_dict if Path(state_dict).is_dir() else Path(state_dict).parent
    given = {name.removeprefix(f'{family}.').replace('decoder.bias', 'bias')  # the same tensor
             .replace('LayerNorm.gamma', 'LayerNorm.weight')  # in the first checkpoints
             .replace('LayerNorm.beta', 'LayerNorm.bias'): tensor
             for name, tensor in _read('state_dict', state_dict, 'model.safetensors').items()
             if not name.endswith('position_ids')}
    if not all(map(torch.is_tensor, given.values())):
        raise TypeError("'state_dict' must be a mapping from names to tensors (got other values)")
    theirs = _read_config(family, config)
    _compare('config', {name: ours[name] for name in FIXED if theirs[name] is not None}, theirs)
    if POSITIONS in given:
        table, length = given[POSITIONS][theirs['first_position']:], ours['max_position_embeddings']
        given[POSITIONS] = table.repeat(-(-length // max(len(table), 1)) if tile else 1, 1)[:length]
    shapes = {theirs: tuple(model.get_parameter(name).shape) for name, theirs in names.items()}
    _compare('state_dict', {
        name: shapes.get(name) for name in {**shapes, **given}
        if name.startswith(INNER) or name in shapes and name in given},
        {name: tuple(tensor.shape) for name, tensor in given.items()})
    tied = f'{DECODER[family]}.decoder.weight'
    if 'token_bias' in names and not torch.equal(given.get(tied, given[WORDS]), given[WORDS]):
        raise ValueError(f"'state_dict' must have {tied} equal to {WORDS} (got other values)")
    loaded = {name: given[theirs] for name, theirs in names.items() if theirs in given}
    model.load_state_dict(loaded, strict=False)
    return [name for name in model.state_dict() if name not in loaded]


def _compare(argument: str, wanted: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if got.get(name) != value:
            hint = '' if argument == 'model' else '; encoder_of(config, ...) builds what fits'
            raise ValueError(f"'{argument}' must have {name}={value!r} (got {got.get(name)!r})"
                             f"{hint}")


def _read_config(family: str, config: Config) -> dict[str, Any]:
    defaults = {name: default for name, (_, _, default) in SETTINGS.items()} | ONLY
    given = {name: SAME.get(value, value) if isinstance(value, str) else value for name, value in {
        **defaults, 'model_type': family, **_read('config', config, 'config.json')}.items()}
    padding = given.get('pad_token_id', 1) if given['model_type'] == 'roberta' else -1
    if not isinstance(padding, int) or padding < -1:
        raise ValueError(f"'config' must have an int as pad_token_id (got {padding})")
    return {**given, 'first_position': padding + 1}  # rows before it belong to no token


def _read(argument: str, given: Any, file: str) -> Mapping[str, Any]:
    if isinstance(given, str | PathLike):
        from safetensors.torch import load_file
        path = Path(given) / file if Path(given).is_dir() else Path(given)
        try:
            given = read_json(path) if argument == 'config' else load_file(path)
        except Exception as error:  # safetensors has its own
            raise ValueError(f"'{argument}' cannot be read from {path}: {error}") from error
    given = given.to_dict() if hasattr(given, 'to_dict') else given
    if not isinstance(given, Mapping):
        raise TypeError(f"'{argument}' must be a mapping or a path (got {type(given).__name__})")
    return given
