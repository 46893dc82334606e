"""Samplers, which draw edges from probabilities, with models of random graphs and gradient
estimators."""

from graphattn.ops.sample.factor_model import FactorModel
from graphattn.samplers.bernoulli import sample_bernoulli
from graphattn.samplers.fastrg import sample_fastrg
from graphattn.samplers.straight_through import density_penalty, straight_through

__all__ = [
    'FactorModel',
    'density_penalty',
    'sample_bernoulli',
    'sample_fastrg',
    'straight_through',
]
