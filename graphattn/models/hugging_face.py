"""Weights of Hugging Face's BERT."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from graphattn.models.classifiers import SequenceClassifier
from graphattn.models.masked_language_model import MaskedLanguageModel

# Names of modules and parameters here, and in Hugging Face's BERT without its prefix 'bert.'.
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
HEAD_NAMES = {
    'pooler.linear': 'pooler.dense',
    'transform.0': 'cls.predictions.transform.dense',
    'transform.2': 'cls.predictions.transform.LayerNorm',
    'token_bias': 'cls.predictions.bias',
    'next_sentence': 'cls.seq_relationship',
    'head.1': 'classifier',
}


def load_bert(
    model: MaskedLanguageModel | SequenceClassifier, state_dict: Mapping[str, Tensor],
) -> list[str]:
    """Copies the weights of a Hugging Face BERT into a model.

    The encoder is loaded completely or not at all. Poolers and heads are loaded if the state dict
    has them; a classifier only into one that is built as BERT's, with ``pooling='pooler'`` and no
    hidden layer. A model for shorter sequences takes the first positions. Sources are left alone.

    The number of heads and ``norm_eps`` (1e-12 in BERT) leave no trace in the weights, so they
    cannot be checked.

    Args:
        model (MaskedLanguageModel or SequenceClassifier): Its encoder is built with
            ``norm_first=False``, ``num_segments=2`` and the checkpoint's sizes.
        state_dict (Mapping): Of ``BertModel``, ``BertForPreTraining``, ``BertForMaskedLM`` or
            ``BertForSequenceClassification``. To read a file: ``safetensors.torch.load_file``.

    Returns:
        The names of the model's parameters that were not loaded.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: Names or shapes do not fit. The model is unchanged then.

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
        >>> load_bert(model, bert.state_dict())
        ['head.1.weight', 'head.1.bias']
    """
    _check_arguments(model, state_dict)
    given = {_current_name(name): tensor for name, tensor in state_dict.items()}
    name_of = _bert_names(model)
    _check_encoder_names(given, name_of)
    if isinstance(model, MaskedLanguageModel):
        _check_tied_decoder(given)
    parameters = model.state_dict()
    loaded = {name: given[bert_name] for name, bert_name in name_of.items() if bert_name in given}
    position = 'encoder.position_embedding.weight'
    loaded[position] = loaded[position][:parameters[position].size(0)]
    for name, tensor in loaded.items():
        if tensor.shape != parameters[name].shape:
            raise ValueError(f"'state_dict' holds {name_of[name]!r} of shape "
                             f"{tuple(tensor.shape)}, but 'model' needs "
                             f"{tuple(parameters[name].shape)}; build it with the same sizes")
    model.load_state_dict(loaded, strict=False)
    return [name for name in parameters if name not in loaded]


def _check_arguments(model: object, state_dict: object) -> None:
    if not isinstance(model, MaskedLanguageModel | SequenceClassifier):
        raise TypeError(f"'model' must be a MaskedLanguageModel or a SequenceClassifier (got "
                        f"{type(model).__name__})")
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"'state_dict' must map names to tensors (got "
                        f"{type(state_dict).__name__}); read a file by "
                        f"safetensors.torch.load_file")
    if model.encoder.norm_first:
        raise ValueError("'model' must be post-norm as BERT; build its encoder with "
                         "norm_first=False")


def _current_name(name: str) -> str:
    """The name without prefix, as today's transformers write it."""
    name = name.removeprefix('bert.')
    if name == 'cls.predictions.decoder.bias':  # tied to the other
        return 'cls.predictions.bias'
    # The first checkpoints, bert-base-uncased among them, kept TensorFlow's names.
    return name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta',
                                                                       'LayerNorm.bias')


def _bert_names(model: MaskedLanguageModel | SequenceClassifier) -> dict[str, str]:
    """From the names of the model's parameters to those of BERT's, where there are such."""
    names = EMBEDDING_NAMES | HEAD_NAMES
    for layer in range(len(model.encoder.layers)):
        names |= {f'encoder.layers.{layer}.{name}': f'encoder.layer.{layer}.{bert_name}'
                  for name, bert_name in LAYER_NAMES.items()}
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


def _check_encoder_names(given: Mapping[str, Tensor], name_of: Mapping[str, str]) -> None:
    wanted = [bert_name for name, bert_name in name_of.items() if name.startswith('encoder.')]
    lacking = [name for name in wanted if name not in given]
    if lacking:
        raise ValueError(f"'state_dict' lacks {lacking[0]!r} and {len(lacking) - 1} more of the "
                         f"{len(wanted)} tensors that the encoder needs; it must be of a BERT "
                         f"with as many layers")
    surplus = [name for name in given if name.startswith(('embeddings.', 'encoder.'))
               and name not in wanted and name != 'embeddings.position_ids']
    if surplus:
        raise ValueError(f"'state_dict' holds {surplus[0]!r} and {len(surplus) - 1} more tensors "
                         f"that 'model' has no place for; build its encoder with as many layers, "
                         f"and num_segments=2")


def _check_tied_decoder(given: Mapping[str, Tensor]) -> None:
    decoder = given.get('cls.predictions.decoder.weight')
    if decoder is not None and not torch.equal(decoder, given['embeddings.word_embeddings.weight']):
        raise ValueError("'state_dict' holds a decoder that is not tied to the token embeddings, "
                         "as 'cls.predictions.decoder.weight' is in BERT")
