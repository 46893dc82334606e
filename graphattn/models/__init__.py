"""Encoders, the heads that tasks need, and weights from Hugging Face."""

from graphattn.models.causal_language_model import CausalLanguageModel
from graphattn.models.classifiers import (
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from graphattn.models.encoder import Encoder
from graphattn.models.hugging_face import load_bert, load_roberta
from graphattn.models.masked_language_model import MaskedLanguageModel
from graphattn.models.pooler import Pooler

__all__ = ['CausalLanguageModel', 'Encoder', 'MaskedLanguageModel', 'PairClassifier', 'Pooler',
           'SequenceClassifier', 'TokenClassifier', 'load_bert', 'load_roberta']
