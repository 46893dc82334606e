"""Encoders and the heads that tasks need."""

from graphattn.models.classifiers import SequenceClassifier, TokenClassifier
from graphattn.models.encoder import Encoder

__all__ = ['Encoder', 'SequenceClassifier', 'TokenClassifier']
