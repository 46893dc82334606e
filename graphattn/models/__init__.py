"""Encoders, graph transformers, task heads, and weights from Hugging Face."""

from graphattn.models.classifiers import (
    CausalLanguageModel,
    MultipleChoiceModel,
    PairClassifier,
    Pooler,
    SequenceClassifier,
    TokenClassifier,
)
from graphattn.models.encoder import Encoder
from graphattn.models.graph_transformer import FeatureEncoder, GraphTransformer
from graphattn.models.hugging_face import encoder_of, load_bert, load_roberta, to_hugging_face
from graphattn.models.masked_language_model import MaskedLanguageModel
from graphattn.models.span_model import SpanModel, best_spans

__all__ = ['CausalLanguageModel', 'Encoder', 'FeatureEncoder', 'GraphTransformer',
           'MaskedLanguageModel', 'MultipleChoiceModel', 'PairClassifier', 'Pooler',
           'SequenceClassifier', 'SpanModel', 'TokenClassifier', 'best_spans',
           'encoder_of', 'load_bert', 'load_roberta', 'to_hugging_face']
