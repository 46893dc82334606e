"""Weights of Hugging Face's BERT and RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphattn._checks import check_bool
from graphattn.models.classifiers import SequenceClassifier
from graphattn.models.masked_language_model import MaskedLanguageModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Names of modules and parameters here, and in Hugging Face's BERT without its prefix 'bert.'.
# RoBERTa has the same but for the heads.
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
# What the numbers depend on and our models have no choice of. It is what transformers takes where
# a config.json is silent.
ONLY = {'hidden_act': 'gelu', 'position_embedding_type': 'absolute', 'is_decoder': False,
        'add_cross_attention': False}


@dataclass(frozen=True)
class _Family:
    """What tells the checkpoints of one family from those of another.

    Args:
        name (str): What it is called.
        model_types (tuple): Its members, as a config.json calls them.
        prefix (str): Stands before the names of the encoder of a model with a head.
        language_model (str): Name of the module of the token logits.
        head_names (Mapping): As ``EMBEDDING_NAMES``, for each of our models.
        num_segments (int): As a rule.
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


def load_bert(
    model: MaskedLanguageModel | SequenceClassifier, state_dict: Mapping[str, Tensor],
    config: Mapping[str, object] | PretrainedConfig,
) -> list[str]:
    """Copies the weights of a Hugging Face BERT into a model.

    The encoder is loaded completely or not at all. Poolers and heads are loaded if the state dict
    has them; a classifier only into one that is built as BERT's, with ``pooling='pooler'`` and no
    hidden layer. A model for shorter sequences takes the first positions. Sources are left alone.

    The number of heads, the activation and ``norm_eps`` (1e-12 in BERT) leave no trace in the
    weights; they are checked in ``config``.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): Its encoder is built with
            ``norm_first=False``, ``num_segments=2``, ``norm_eps`` and the sizes of the checkpoint.
        state_dict (Mapping): Of ``BertModel``, ``BertForPreTraining``, ``BertForMaskedLM`` or
            ``BertForSequenceClassification``. To read a file: ``safetensors.torch.load_file``.
        config (Mapping or transformers.PretrainedConfig): That of the checkpoint, as in its
            ``config.json``. What it leaves out has transformers' default.

    Returns:
        The names of the model's parameters that were not loaded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes do not fit, or ``config`` tells of what the model does not
            compute. The model is unchanged then.

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
    model: MaskedLanguageModel | SequenceClassifier, state_dict: Mapping[str, Tensor],
    config: Mapping[str, object] | PretrainedConfig, *, tile_positions: bool = False,
) -> list[str]:
    """Copies the weights of a Hugging Face RoBERTa into a model.

    As :func:`load_bert`, with these differences. There is one segment, whose vector all tokens
    have. The rows of the position table up to ``pad_token_id``, which is 1 as a rule, are those of
    no token and dropped, so RoBERTa-base knows 512 positions. A classifier takes the
    classification head (dropout, dense, tanh, dropout, linear, on the first token) as
    ``pooling='pooler'``, with ``pooler_dropout`` and ``dropout`` for the two dropouts. A masked
    language model has no use for ``next_sentence``.

    A bare BERT has tensors of the same names; ``model_type`` in ``config`` tells them apart.
    XLM-RoBERTa and CamemBERT are RoBERTas. ``norm_eps`` is 1e-5 in RoBERTa-base.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): Its encoder is built with
            ``norm_first=False``, ``num_segments=1``, ``norm_eps`` and the sizes of the checkpoint.
        state_dict (Mapping): Of ``RobertaModel``, ``RobertaForMaskedLM`` or
            ``RobertaForSequenceClassification``.
        config (Mapping or transformers.PretrainedConfig): As :func:`load_bert`.
        tile_positions (bool): A model for longer sequences than the checkpoint's repeats the
            positions until there are enough, as Longformer does: position i starts as i modulo
            512. Otherwise such a model is refused.

    Returns:
        The names of the model's parameters that were not loaded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes do not fit, or ``config`` tells of what the model does not
            compute. The model is unchanged then.

    Source: Liu et al., "RoBERTa" (2019); Beltagy et al., "Longformer" (2020), Sec. 5, on the
    positions. Diffuser (2023) starts from RoBERTa and leaves open how it comes to 4,096 positions.

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


def _load(family: _Family, model: MaskedLanguageModel | SequenceClassifier,
          state_dict: Mapping[str, Tensor], config: Mapping[str, object] | PretrainedConfig,
          tile_positions: bool = False) -> list[str]:
    config = _as_mapping(config)
    _check_arguments(family, model, state_dict)
    _check_config(family, model, config)
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
            raise ValueError(f"'state_dict' holds {name_of[name]!r} of shape "
                             f"{tuple(tensor.shape)}, but 'model' needs "
                             f"{tuple(parameters[name].shape)}; build it with the same sizes")
    model.load_state_dict(loaded, strict=False)
    return [name for name in parameters if name not in loaded]


def _positions(family: _Family, table: Tensor, max_length: int, tile: bool) -> Tensor:
    num_known = table.size(0)
    if tile and 0 < num_known < max_length:
        table = table.repeat(-(-max_length // num_known), 1)
    if table.size(0) < max_length:
        hint = ', or set tile_positions=True' if family is ROBERTA else ''
        raise ValueError(f"'state_dict' holds {num_known} positions, but 'model' is for sequences "
                         f"of {max_length} tokens; build it with a smaller max_length{hint}")
    return table[:max_length]


def _check_arguments(family: _Family, model: object, state_dict: object) -> None:
    if not isinstance(model, MaskedLanguageModel | SequenceClassifier):
        raise TypeError(f"'model' must be a MaskedLanguageModel or a SequenceClassifier (got "
                        f"{type(model).__name__})")
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"'state_dict' must map names to tensors (got "
                        f"{type(state_dict).__name__}); read a file by "
                        f"safetensors.torch.load_file")
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(f"'state_dict' must map names to tensors (got {name!r} and "
                            f"{type(tensor).__name__})")
    if model.encoder.norm_first:
        raise ValueError(f"'model' must be post-norm as {family.name}; build its encoder with "
                         f"norm_first=False")
    for other, load in ((BERT, 'load_bert'), (ROBERTA, 'load_roberta')):
        if other is not family and any(name.startswith(other.prefix) for name in state_dict):
            raise ValueError(f"'state_dict' must be of a {family.name} (got the names of a "
                             f"{other.name}); use {load}")


def _as_mapping(config: object) -> Mapping[str, object]:
    if hasattr(config, 'to_dict'):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(f"'config' must map names to values, as a config.json, or be a "
                        f"PretrainedConfig (got {type(config).__name__}); read a file by json.load")
    return config


def _check_config(family: _Family, model: MaskedLanguageModel | SequenceClassifier,
                  config: Mapping[str, object]) -> None:
    kind = config.get('model_type', family.model_types[0])
    if kind not in family.model_types:
        other = ROBERTA if family is BERT else BERT
        hint = f'; use load_{other.name.lower()}' if kind in other.model_types else ''
        raise ValueError(f"'config' must be of a {family.name} (got model_type={kind!r}){hint}")
    for name, ours in ONLY.items():
        if (theirs := config.get(name, ours)) != ours:
            raise ValueError(f"'config' must have {name}={ours!r}, for 'model' computes nothing "
                             f"else (got {theirs!r}); load another checkpoint")
    encoder = model.encoder
    for name, default, argument, ours in (
            ('num_attention_heads', 12, 'heads', encoder.heads),
            ('layer_norm_eps', 1e-12, 'norm_eps', encoder.norm.eps)):
        if (theirs := config.get(name, default)) != ours:
            raise ValueError(f"'config' must have {name}={ours!r}, as the encoder of 'model' (got "
                             f"{theirs!r}); build it with {argument}={theirs!r}")


def _first_position(family: _Family, config: Mapping[str, object]) -> int:
    """Row of the position table that the first token has; RoBERTa's follows that of padding."""
    if family is BERT:
        return 0
    padding = config.get('pad_token_id', 1)
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"'config' must have the number of the padding as pad_token_id, from "
                         f"which positions are counted (got {padding!r})")
    return padding + 1


def _current_name(family: _Family, name: str) -> str:
    """The name without prefix, as today's transformers write it."""
    name = name.removeprefix(family.prefix)
    if name == f'{family.language_model}.decoder.bias':  # tied to the other
        return f'{family.language_model}.bias'
    # The first checkpoints, bert-base-uncased among them, kept TensorFlow's names.
    return name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta',
                                                                       'LayerNorm.bias')


def _their_names(family: _Family,
                 model: MaskedLanguageModel | SequenceClassifier) -> dict[str, str]:
    """From the names of the model's parameters to those of the family's, where there are such."""
    kind = SequenceClassifier if isinstance(model, SequenceClassifier) else MaskedLanguageModel
    names = EMBEDDING_NAMES | family.head_names[kind]
    for layer in range(len(model.encoder.layers)):
        names |= {f'encoder.layers.{layer}.{name}': f'encoder.layer.{layer}.{their_name}'
                  for name, their_name in LAYER_NAMES.items()}
    if isinstance(model, SequenceClassifier) and (model.pooler is None or len(model.head) != 2):
        del names['head.1']
    name_of = {}
    for name in model.state_dict():
        module, _, parameter = name.rpartition('.')
        if name in names:
            name_of[name] = names[name]
        elif module in names:
            name_of[name] = f'{names[module]}.{parameter}'
    return name_of


def _check_encoder_names(family: _Family, given: Mapping[str, Tensor],
                         name_of: Mapping[str, str]) -> None:
    wanted = [their_name for name, their_name in name_of.items() if name.startswith('encoder.')]
    lacking = [name for name in wanted if name not in given]
    if lacking:
        raise ValueError(f"'state_dict' lacks {lacking[0]!r} and {len(lacking) - 1} more of the "
                         f"{len(wanted)} tensors that the encoder needs; it must be of a "
                         f"{family.name} with as many layers")
    surplus = [name for name in given if name.startswith(('embeddings.', 'encoder.'))
               and name not in wanted and name != 'embeddings.position_ids']
    if surplus:
        raise ValueError(f"'state_dict' holds {surplus[0]!r} and {len(surplus) - 1} more tensors "
                         f"that 'model' has no place for; build its encoder with as many layers, "
                         f"and num_segments={family.num_segments}")


def _check_tied_decoder(family: _Family, given: Mapping[str, Tensor]) -> None:
    name = f'{family.language_model}.decoder.weight'
    if name in given and not torch.equal(given[name], given['embeddings.word_embeddings.weight']):
        raise ValueError(f"'state_dict' holds a decoder that is not tied to the token embeddings, "
                         f"as {name!r} is in {family.name}")
