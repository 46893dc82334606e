"""Weights of Hugging Face's BERT and RoBERTa, copied into and out of this library's models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from graphattn._checks import check_bool, check_choice
from graphattn.functional.recursion import is_one_hop
from graphattn.layers import GraphAttention
from graphattn.models.classifiers import SequenceClassifier
from graphattn.models.encoder import Encoder
from graphattn.models.masked_language_model import MaskedLanguageModel
from graphattn.sources import GraphSource
from graphattn.utils.files import write_whole
from graphattn.utils.reading import read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from graphattn.patterns import Pattern

# Names of modules and parameters in this library, and in Hugging Face's BERT without its prefix
# 'bert.'. RoBERTa's names differ from BERT's only in the heads.
EMBEDDING_NAMES = {
    'encoder.token_embedding': 'embeddings.word_embeddings',
    'encoder.position_embedding': 'embeddings.position_embeddings',
    'encoder.segment_embedding': 'embeddings.token_type_embeddings',
    'encoder.norm': 'embeddings.LayerNorm',
}
LAYER_NAMES = {
    'attention.lin_query': 'attention.self.query',
    'attention.lin_key': 'attention.self.key',
    'attention.lin_value': 'attention.self.value',
    'attention.lin_out': 'attention.output.dense',
    'attention_norm': 'attention.output.LayerNorm',
    'feed_forward.0': 'intermediate.dense',
    'feed_forward.3': 'output.dense',
    'feed_forward_norm': 'output.LayerNorm',
}
# Settings of transformers that change the output and that this library's models do not have. Only
# these values, transformers' defaults, are accepted.
ONLY = {'position_embedding_type': 'absolute', 'is_decoder': False, 'add_cross_attention': False}
# This library's names of transformers' activations, and then transformers' default settings.
ACTIVATION_OF = {'gelu': 'gelu', 'gelu_python': 'gelu', 'gelu_new': 'gelu_new',
                 'gelu_pytorch_tanh': 'gelu_new', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}
DEFAULTS = {'hidden_size': 768, 'num_hidden_layers': 12, 'num_attention_heads': 12,
            'intermediate_size': 3072, 'hidden_act': 'gelu', 'hidden_dropout_prob': .1,
            'attention_probs_dropout_prob': .1, 'max_position_embeddings': 512,
            'type_vocab_size': 2, 'layer_norm_eps': 1e-12}


@dataclass(frozen=True)
class _Family:
    """Conventions of a family of Hugging Face models, BERT or RoBERTa: names in its checkpoints and
    configs.

    Args:
        name (str): Name of the family in error messages.
        model_types (tuple of str): Values of ``model_type`` in a ``config.json``.
        prefix (str): Prefix of the encoder's parameters in a model with a head, such as
            ``'bert.'``.
        language_model (str): Name of the module that computes the token logits.
        head_names (Mapping): For each class of models of this library, a mapping from its names of
            poolers and heads to the family's names.
        num_segments (int): The usual number of segments.
    """

    name: str
    model_types: tuple[str, ...]
    prefix: str
    language_model: str
    head_names: Mapping[type, Mapping[str, str]]
    num_segments: int


BERT = _Family('BERT', ('bert',), 'bert.', 'cls.predictions', {
    MaskedLanguageModel: {
        'pooler.linear': 'pooler.dense',
        'transform.0': 'cls.predictions.transform.dense',
        'transform.2': 'cls.predictions.transform.LayerNorm',
        'token_bias': 'cls.predictions.bias',
        'next_sentence': 'cls.seq_relationship',
    },
    SequenceClassifier: {
        'pooler.linear': 'pooler.dense',
        'head.1': 'classifier',
    },
}, num_segments=2)
ROBERTA = _Family('RoBERTa', ('roberta', 'xlm-roberta', 'camembert'), 'roberta.', 'lm_head', {
    MaskedLanguageModel: {
        'pooler.linear': 'pooler.dense',
        'transform.0': 'lm_head.dense',
        'transform.2': 'lm_head.layer_norm',
        'token_bias': 'lm_head.bias',
    },
    SequenceClassifier: {
        'pooler.linear': 'classifier.dense',
        'head.1': 'classifier.out_proj',
    },
}, num_segments=1)
POSITIONS = 'encoder.position_embedding.weight'


def encoder_of(
    config: Mapping[str, object] | PretrainedConfig | str | PathLike,
    source: GraphSource | Pattern | str | None, **options: object,
) -> Encoder:
    """Return an encoder with the sizes, activation, ``norm_eps`` and dropouts of a Hugging Face
    BERT or RoBERTa.

    Args:
        config (Mapping, transformers.PretrainedConfig or path): A config, the path of a
            ``config.json``, or the path of its folder. Missing entries have transformers' defaults,
            except for the size of the vocabulary, which is required.
        source (GraphSource, Pattern or str): As in :class:`Encoder`.
        **options: Arguments of :class:`Encoder` that override ``config``, such as ``max_length`` or
            ``hops``.

    Returns:
        Encoder with random weights. :func:`load_bert` or :func:`load_roberta` copies weights into a
        model with this encoder.

    Raises:
        TypeError, ValueError: ``config`` is not a config of a BERT or RoBERTa, or has a setting
            that an encoder does not support.

    Example:
        >>> from graphattn.models import MaskedLanguageModel, encoder_of, load_bert
        >>> from transformers import BertConfig, BertForPreTraining
        >>> bert = BertForPreTraining(BertConfig(vocab_size=100, hidden_size=32,
        ...                                      num_hidden_layers=2, num_attention_heads=4))
        >>> model = MaskedLanguageModel(encoder_of(bert.config, 'bigbird'))
        >>> load_bert(model, bert.state_dict(), bert.config)
        []
    """
    config = _as_mapping(config)
    _check_computed(config)
    family = next((family for family in (BERT, ROBERTA)
                   if config.get('model_type', 'bert') in family.model_types), None)
    if family is None:
        raise ValueError(f"'config' must be the config of a BERT or a RoBERTa (got "
                         f"model_type={config['model_type']!r})")
    if 'vocab_size' not in config:
        raise ValueError("'config' must have the entry 'vocab_size', the size of the vocabulary")
    given = {**DEFAULTS, **config}
    sizes = dict(
        num_tokens=given['vocab_size'], channels=given['hidden_size'],
        max_length=given['max_position_embeddings'] - _first_position(family, config),
        num_layers=given['num_hidden_layers'], heads=given['num_attention_heads'],
        hidden_channels=given['intermediate_size'], num_segments=given['type_vocab_size'],
        activation=ACTIVATION_OF[given['hidden_act']], norm_eps=given['layer_norm_eps'],
        dropout=given['hidden_dropout_prob'],
        attention_dropout=given['attention_probs_dropout_prob'], norm_first=False)
    return Encoder(source, **{**sizes, **options})


def load_bert(
    model: MaskedLanguageModel | SequenceClassifier,
    state_dict: Mapping[str, Tensor] | str | PathLike,
    config: Mapping[str, object] | PretrainedConfig | str | PathLike | None = None,
) -> list[str]:
    """Copy the weights of a Hugging Face BERT into a model.

    The encoder is loaded completely or not at all. Poolers and heads are loaded if the state dict
    has them. A classification head is loaded only if ``model`` has the same head as BERT:
    ``pooling='pooler'`` and no hidden layer. A model for shorter sequences gets the first rows of
    the position table. The parameters of sources do not change.

    Weights do not show the number of heads, the activation and ``norm_eps`` (1e-12 in BERT), so
    these settings are checked in ``config``. :func:`encoder_of` builds a matching encoder.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): The model to load weights into. Its
            encoder must be built with ``norm_first=False``, ``num_segments=2``, and the
            ``norm_eps`` and sizes of the checkpoint.
        state_dict (Mapping or path): State dict of ``BertModel``, ``BertForPreTraining``,
            ``BertForMaskedLM`` or ``BertForSequenceClassification``; or the path of a
            ``model.safetensors``, or of the folder of this file.
        config (Mapping, transformers.PretrainedConfig or path): Config of the checkpoint, as in its
            ``config.json``. If omitted, the config is read from the folder of the weights. Missing
            entries have transformers' defaults.

    Returns:
        The names of the model's parameters that were not loaded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes do not fit, or ``config`` has a setting that the model does not
            support. The model is unchanged then.

    Example:
        >>> from graphattn.models import Encoder, SequenceClassifier, load_bert
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> encoder = Encoder(PatternSource(SlidingWindow(2)), num_tokens=100, max_length=128,
        ...                   channels=32, heads=4, num_layers=2, hidden_channels=64,
        ...                   num_segments=2, norm_first=False, norm_eps=1e-12)
        >>> model = SequenceClassifier(encoder, 3, pooling='pooler')
        >>> load_bert(model, bert.state_dict(), bert.config)
        ['head.1.weight', 'head.1.bias']
    """
    return _load(BERT, model, state_dict, config)


def load_roberta(
    model: MaskedLanguageModel | SequenceClassifier,
    state_dict: Mapping[str, Tensor] | str | PathLike,
    config: Mapping[str, object] | PretrainedConfig | str | PathLike | None = None, *,
    tile_positions: bool = False,
) -> list[str]:
    """Copy the weights of a Hugging Face RoBERTa into a model.

    This function works as :func:`load_bert`, with these differences:

    - All tokens are in one segment.
    - The rows of the position table up to ``pad_token_id``, usually 1, belong to no token and are
      dropped. So RoBERTa-base has 512 positions.
    - RoBERTa's classification head is dropout, dense, tanh, dropout and linear on the first token.
      A classifier with ``pooling='pooler'`` has the same head; its ``pooler_dropout`` is the first
      dropout and its ``dropout`` the second.
    - A masked language model needs no ``next_sentence``.

    A BERT without a head has the same tensor names as a RoBERTa; ``model_type`` in ``config``
    distinguishes BERT and RoBERTa. XLM-RoBERTa and CamemBERT count as RoBERTa. ``norm_eps`` is 1e-5
    in RoBERTa-base.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): The model to load weights into. Its
            encoder must be built with ``norm_first=False``, ``num_segments=1``, and the
            ``norm_eps`` and sizes of the checkpoint.
        state_dict (Mapping or path): State dict of ``RobertaModel``, ``RobertaForMaskedLM`` or
            ``RobertaForSequenceClassification``, as in :func:`load_bert`.
        config (Mapping, transformers.PretrainedConfig or path): As in :func:`load_bert`.
        tile_positions (bool): Whether to repeat the position table of the checkpoint if the model
            is for longer sequences, as Longformer does: position i starts as position i modulo 512.
            If not set, a model for longer sequences raises an error.

    Returns:
        The names of the model's parameters that were not loaded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes do not fit, or ``config`` has a setting that the model does not
            support. The model is unchanged then.

    Source: Liu et al., "RoBERTa" (2019); Beltagy et al., "Longformer" (2020), Sec. 5, on the
    positions. Diffuser (2023) starts from RoBERTa and does not say how it gets 4,096 positions.

    Example:
        >>> from graphattn import patterns
        >>> from graphattn.models import Encoder, MaskedLanguageModel, load_roberta
        >>> from graphattn.sources import PatternSource
        >>> from transformers import RobertaConfig, RobertaForMaskedLM
        >>> roberta = RobertaForMaskedLM(RobertaConfig(
        ...     vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ...     intermediate_size=64, max_position_embeddings=514, type_vocab_size=1,
        ...     layer_norm_eps=1e-5))
        >>> encoder = Encoder(PatternSource(patterns.get('diffuser_repo')), num_tokens=100,
        ...                   max_length=4096, channels=32, heads=4, num_layers=2,
        ...                   hidden_channels=64, num_segments=1, norm_first=False)
        >>> model = MaskedLanguageModel(encoder, next_sentence=False)
        >>> load_roberta(model, roberta.state_dict(), roberta.config, tile_positions=True)
        []
    """
    check_bool(tile_positions=tile_positions)
    return _load(ROBERTA, model, state_dict, config, tile_positions)


def to_hugging_face(model: MaskedLanguageModel | SequenceClassifier, folder: str | PathLike, *,
                    family: Literal['bert', 'roberta'] = 'bert') -> None:
    """Write a model in the format of transformers: ``config.json`` and ``model.safetensors``.

    ``from_pretrained(folder)`` of ``BertForPreTraining``, ``BertForMaskedLM``,
    ``BertForSequenceClassification`` or of their RoBERTa counterparts reads the folder. The loaded
    model has the same weights, but full attention, because edges and parameters of sources are not
    saved. :func:`graphattn.hugging_face.attach` adds a source again.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): The model to write. It must be post-norm,
            with one hop, a vocabulary, segments and learned positions. A classifier must have
            ``pooling='pooler'`` and no hidden layer.
        folder (path): Folder that the two files are written to. It is created if it does not exist.
        family (str): ``'bert'`` or ``'roberta'``. A ``'roberta'`` has no sequence logits.

    Raises:
        TypeError: ``model`` is another kind of model.
        ValueError: ``model`` has a part or a setting that the family does not have.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from graphattn.models import Encoder, MaskedLanguageModel, to_hugging_face
        >>> from transformers import BertForPreTraining
        >>> model = MaskedLanguageModel(Encoder(
        ...     'SlidingWindow(2)', num_tokens=100, max_length=64, channels=32, heads=4,
        ...     num_layers=2, num_segments=2, norm_first=False))
        >>> with TemporaryDirectory() as folder:
        ...     to_hugging_face(model, folder)
        ...     bert = BertForPreTraining.from_pretrained(folder)
        >>> bert.config.num_hidden_layers
        2
    """
    from safetensors.torch import save_file

    check_choice('family', family, ('bert', 'roberta'))
    if not isinstance(folder, str | PathLike):
        raise TypeError(f"'folder' must be a str or a PathLike (got {type(folder).__name__})")
    family = BERT if family == 'bert' else ROBERTA
    _check_model(model)
    _check_post_norm(family, model)
    _check_written(family, model)
    state_dict, parameters = {}, model.state_dict()
    name_of = _their_names(family, model)
    _check_all_written(family, model, name_of)
    for name, their_name in name_of.items():
        is_encoder = their_name.startswith(('embeddings.', 'encoder.'))
        is_pooler = family is BERT and their_name.startswith('pooler.')
        prefix = family.prefix if is_encoder or is_pooler else ''
        state_dict[prefix + their_name] = parameters[name].contiguous()
    config = _config_of(family, model)
    positions = f'{family.prefix}embeddings.position_embeddings.weight'
    of_no_token = parameters[POSITIONS].new_zeros(_first_position(family, config),
                                                  model.encoder.channels)
    state_dict[positions] = torch.cat([of_no_token, state_dict[positions]])
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / 'config.json', lambda path: path.write_text(json.dumps(config, indent=2)))
    write_whole(folder / 'model.safetensors',
                lambda path: save_file(state_dict, path, metadata={'format': 'pt'}))


def _check_written(family: _Family, model: MaskedLanguageModel | SequenceClassifier) -> None:
    encoder = model.encoder
    attention = encoder.layers[0].attention
    if not isinstance(attention, GraphAttention):
        raise ValueError(f"'model' must have graph attention to be written as a {family.name} "
                         f"model (got {type(attention).__name__} as attention)")
    has_one_hop = attention.teleport_logit is None and is_one_hop(attention.attention.hops,
                                                                  attention.attention.teleport)
    is_classifier = isinstance(model, SequenceClassifier)
    head_is_whole = not is_classifier or model.pooler is not None and len(model.head) == 2
    has_own_activation = (isinstance(model, MaskedLanguageModel) and model.activation
                          != ('gelu' if family is ROBERTA else encoder.activation))
    for fits, must in (
            (has_one_hop, 'have one hop in each layer and no teleport'),
            (encoder.token_embedding is not None, 'have a vocabulary (num_tokens)'),
            (isinstance(encoder.position_embedding, nn.Embedding), 'have learned positions'),
            (encoder.segment_embedding is not None, 'have segments (num_segments)'),
            (attention.head_channels * encoder.heads == encoder.channels,
             'have heads of channels / heads channels'),
            (attention.num_kv_heads == encoder.heads, 'have its own keys in each head'),
            (head_is_whole, "have pooling='pooler' and no hidden layer"),
            (family is BERT or is_classifier or model.pooler is None,
             'have no sequence logits (next_sentence=False)'),
            (not has_own_activation, "have the family's activation before its token logits")):
        if not fits:
            raise ValueError(f"'model' must {must} to be written as a {family.name} model")


def _check_all_written(family: _Family, model: MaskedLanguageModel | SequenceClassifier,
                       name_of: Mapping[str, str]) -> None:
    of_sources = {parameter for module in model.modules() if isinstance(module, GraphSource)
                  for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        if name not in name_of and parameter not in of_sources:
            raise ValueError(f"'model' must have only the parameters of a {family.name} model to "
                             f"be written as one (got also {name!r}); merge adapters into the "
                             f"model first")


def _config_of(family: _Family, model: MaskedLanguageModel | SequenceClassifier) -> dict:
    encoder = model.encoder
    layer = encoder.layers[0]
    config = {
        'model_type': family.model_types[0], 'architectures': [_architecture(family, model)],
        'vocab_size': encoder.token_embedding.num_embeddings, 'hidden_size': encoder.channels,
        'num_hidden_layers': len(encoder.layers), 'num_attention_heads': encoder.heads,
        'intermediate_size': layer.feed_forward[0].out_features, 'hidden_act': encoder.activation,
        'hidden_dropout_prob': encoder.dropout.p,
        'attention_probs_dropout_prob': layer.attention.attention.dropout,
        'type_vocab_size': encoder.segment_embedding.num_embeddings,
        'layer_norm_eps': encoder.norm.eps, 'pad_token_id': 0 if family is BERT else 1}
    config['max_position_embeddings'] = (encoder.position_embedding.num_embeddings
                                         + _first_position(family, config))
    if isinstance(model, SequenceClassifier):
        config['num_labels'] = model.head[1].out_features
        config['id2label'] = {str(i): f'LABEL_{i}' for i in range(config.pop('num_labels'))}
    return config


def _architecture(family: _Family, model: MaskedLanguageModel | SequenceClassifier) -> str:
    name = 'Bert' if family is BERT else 'Roberta'
    if isinstance(model, SequenceClassifier):
        return f'{name}ForSequenceClassification'
    return f'{name}ForMaskedLM' if model.pooler is None else f'{name}ForPreTraining'


def _load(family: _Family, model: MaskedLanguageModel | SequenceClassifier,
          state_dict: Mapping[str, Tensor] | str | PathLike,
          config: Mapping[str, object] | PretrainedConfig | str | PathLike | None,
          tile_positions: bool = False) -> list[str]:
    _check_model(model)
    if isinstance(state_dict, str | PathLike):
        path = Path(state_dict)
        path = path / 'model.safetensors' if path.is_dir() else path
        state_dict, config = _read_weights(path), path.parent if config is None else config
    _check_arguments(family, state_dict)
    config = _as_mapping(config)
    _check_post_norm(family, model)
    _check_config(family, model, config)
    _check_plain(family, model)
    given = {_current_name(family, name): tensor for name, tensor in state_dict.items()}
    name_of = _their_names(family, model)
    _check_encoder_names(family, given, name_of)
    if isinstance(model, MaskedLanguageModel):
        _check_tied_decoder(family, given)
    parameters = model.state_dict()
    loaded = {name: given[their_name] for name, their_name in name_of.items()
              if their_name in given}
    loaded[POSITIONS] = _positions(family, loaded[POSITIONS][_first_position(family, config):],
                                   parameters[POSITIONS].size(0), tile_positions)
    for name, tensor in loaded.items():
        if tensor.shape != parameters[name].shape:
            raise ValueError(f"'state_dict' must have {name_of[name]!r} of shape "
                             f"{tuple(parameters[name].shape)}, the shape in 'model' (got shape "
                             f"{tuple(tensor.shape)}); build 'model' with the sizes of the "
                             f"checkpoint")
    model.load_state_dict(loaded, strict=False)
    return [name for name in parameters if name not in loaded]


def _positions(family: _Family, table: Tensor, max_length: int, tile: bool) -> Tensor:
    num_known = table.size(0)
    if tile and 0 < num_known < max_length:
        table = table.repeat(-(-max_length // num_known), 1)
    if table.size(0) < max_length:
        hint = ', or set tile_positions=True' if family is ROBERTA else ''
        raise ValueError(f"'state_dict' must have at least {max_length} positions, the "
                         f"'max_length' of 'model' (got {num_known}); build 'model' with "
                         f"max_length={num_known} or less{hint}")
    return table[:max_length]


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"'state_dict' cannot be read from {path}: {error}") from error


def _check_model(model: object) -> None:
    if not isinstance(model, MaskedLanguageModel | SequenceClassifier):
        raise TypeError(f"'model' must be a MaskedLanguageModel or a SequenceClassifier (got "
                        f"{type(model).__name__})")


def _check_post_norm(family: _Family, model: MaskedLanguageModel | SequenceClassifier) -> None:
    if model.encoder.norm_first:
        raise ValueError(f"'model' must be post-norm like {family.name} (got a pre-norm model); "
                         f"build the Encoder of 'model' with norm_first=False")


def _check_arguments(family: _Family, state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"'state_dict' must be a mapping from names to tensors, or the path of "
                        f"model.safetensors or of its folder (got {type(state_dict).__name__})")
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"'state_dict' must be a mapping from names to tensors (got {name!r} "
                            f"and {type(tensor).__name__})")
    for other, load in ((BERT, 'load_bert'), (ROBERTA, 'load_roberta')):
        if other is not family and any(name.startswith(other.prefix) for name in state_dict):
            raise ValueError(f"'state_dict' must contain the tensors of a {family.name} model (got "
                             f"the names of a {other.name} model); call {load} instead")


def _as_mapping(config: object) -> Mapping[str, object]:
    if isinstance(config, str | PathLike):
        path = Path(config)
        path = path / 'config.json' if path.is_dir() else path
        try:
            config = read_json(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"'config' cannot be read from {path}: {error}") from error
    if hasattr(config, 'to_dict'):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(f"'config' must be a mapping with the entries of a config.json, a "
                        f"PretrainedConfig or a path (got {type(config).__name__})")
    return config


def _check_config(family: _Family, model: MaskedLanguageModel | SequenceClassifier,
                  config: Mapping[str, object]) -> None:
    kind = config.get('model_type', family.model_types[0])
    if kind not in family.model_types:
        other = ROBERTA if family is BERT else BERT
        hint = f'; use load_{other.name.lower()}' if kind in other.model_types else ''
        raise ValueError(f"'config' must be the config of a {family.name} (got "
                         f"model_type={kind!r}){hint}")
    _check_computed(config)
    encoder = model.encoder
    theirs = config.get('hidden_act', 'gelu')
    head = model.activation if isinstance(model, MaskedLanguageModel) else encoder.activation
    of_head = 'gelu' if family is ROBERTA else ACTIVATION_OF[theirs]
    for name, ours, wanted in (('encoder', encoder.activation, ACTIVATION_OF[theirs]),
                               ('MaskedLanguageModel', head, of_head)):
        if ours != wanted and (name == 'encoder' or isinstance(model, MaskedLanguageModel)):
            raise ValueError(f"'config' must have hidden_act={ours!r}, the activation of the "
                             f"{name} of 'model' (got {theirs!r}); build 'model' with "
                             f"activation={wanted!r}")
    for name, default, argument, ours in (
            ('num_attention_heads', 12, 'heads', encoder.heads),
            ('layer_norm_eps', 1e-12, 'norm_eps', encoder.norm.eps)):
        if (theirs := config.get(name, default)) != ours:
            raise ValueError(f"'config' must have {name}={ours!r}, the value of the encoder of "
                             f"'model' (got {theirs!r}); build the Encoder with "
                             f"{argument}={theirs!r}")


def _check_computed(config: Mapping[str, object]) -> None:
    for name, ours in ONLY.items():
        if (theirs := config.get(name, ours)) != ours:
            raise ValueError(f"'config' must have {name}={ours!r}, because 'model' supports no "
                             f"other value (got {theirs!r}); load another checkpoint")
    activation = config.get('hidden_act', 'gelu')
    if activation not in ACTIVATION_OF:
        known = ', '.join(map(repr, ACTIVATION_OF))
        raise ValueError(f"'config' must have hidden_act {known}, because 'model' supports no "
                         f"other activation (got {activation!r}); load another checkpoint")


def _first_position(family: _Family, config: Mapping[str, object]) -> int:
    """Return the row of the pre-trained position table that belongs to the first token. In
    RoBERTa's table, the rows up to ``pad_token_id`` come first and belong to no token."""
    if family is BERT:
        return 0
    padding = config.get('pad_token_id', 1)
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"'config' must have an int of at least 0 as 'pad_token_id', because "
                         f"positions are counted from this id (got {padding!r})")
    return padding + 1


def _current_name(family: _Family, name: str) -> str:
    """Convert the name of a parameter in a checkpoint, which may be old, to the name that current
    versions of transformers use. The prefix of the encoder, such as ``'bert.'``, is removed."""
    name = name.removeprefix(family.prefix)
    if name == f'{family.language_model}.decoder.bias':  # tied to the bias of the head
        return f'{family.language_model}.bias'
    # Early checkpoints such as bert-base-uncased have TensorFlow's names.
    return name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta',
                                                                       'LayerNorm.bias')


def _check_plain(family: _Family, model: MaskedLanguageModel | SequenceClassifier) -> None:
    """Raise a ``ValueError`` if ``model`` has parameters of adapters, such as those of PEFT, inside
    a module whose weights are to be loaded."""
    modules = _their_modules(family, model)
    for name in model.state_dict():
        module = next((module for module in modules if name.startswith(f'{module}.')), name)
        if name not in (module, f'{module}.weight', f'{module}.bias'):
            raise ValueError(f"'model' must have no adapters when weights are loaded (got "
                             f"{name!r}); load the weights before adding adapters, or merge the "
                             f"adapters first")


def _their_names(family: _Family,
                 model: MaskedLanguageModel | SequenceClassifier) -> dict[str, str]:
    """Return a dict from the names of the parameters of ``model`` to their names in Hugging Face's
    ``family``. Parameters that the family does not have are left out."""
    names, name_of = _their_modules(family, model), {}
    for name in model.state_dict():
        module, _, parameter = name.rpartition('.')
        if name in names:
            name_of[name] = names[name]
        elif module in names:
            name_of[name] = f'{names[module]}.{parameter}'
    return name_of


def _their_modules(family: _Family,
                   model: MaskedLanguageModel | SequenceClassifier) -> dict[str, str]:
    """Return a dict from the names of the modules of ``model`` to their names in Hugging Face's
    ``family``. Modules that the family does not have are left out."""
    kind = SequenceClassifier if isinstance(model, SequenceClassifier) else MaskedLanguageModel
    names = EMBEDDING_NAMES | family.head_names[kind]
    for layer in range(len(model.encoder.layers)):
        names |= {f'encoder.layers.{layer}.{name}': f'encoder.layer.{layer}.{their_name}'
                  for name, their_name in LAYER_NAMES.items()}
    if isinstance(model, SequenceClassifier) and (model.pooler is None or len(model.head) != 2):
        del names['head.1']
    return names


def _check_encoder_names(family: _Family, given: Mapping[str, Tensor],
                         name_of: Mapping[str, str]) -> None:
    wanted = [their_name for name, their_name in name_of.items() if name.startswith('encoder.')]
    lacking = [name for name in wanted if name not in given]
    if lacking:
        raise ValueError(f"'state_dict' must have the {len(wanted)} tensors of the encoder (got "
                         f"none named {lacking[0]!r}, and {len(lacking) - 1} more are missing); "
                         f"load a {family.name} checkpoint with the number of layers of 'model'")
    surplus = [name for name in given if name.startswith(('embeddings.', 'encoder.'))
               and name not in wanted and name != 'embeddings.position_ids']
    if surplus:
        raise ValueError(f"'state_dict' must have no tensors that the encoder of 'model' lacks "
                         f"(got {surplus[0]!r} and {len(surplus) - 1} more); build the encoder "
                         f"with the number of layers of the checkpoint and "
                         f"num_segments={family.num_segments}")


def _check_tied_decoder(family: _Family, given: Mapping[str, Tensor]) -> None:
    name = f'{family.language_model}.decoder.weight'
    if name in given and not torch.equal(given[name], given['embeddings.word_embeddings.weight']):
        raise ValueError(f"'state_dict' must have {name!r} equal to the token embeddings, because "
                         f"{family.name} ties these weights (got other values); load another "
                         f"checkpoint")
