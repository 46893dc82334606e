"""Objectives: the loss of a training step, and its metrics."""

from experiments.objectives.base import Training
from experiments.objectives.classification import Classification
from experiments.objectives.density_estimation import DensityEstimation
from experiments.objectives.document_classification import DocumentClassification
from experiments.objectives.fine_tuning import FineTuning
from experiments.objectives.language_modelling import LanguageModelling
from experiments.objectives.multiple_choice import MultipleChoice
from experiments.objectives.question_answering import QuestionAnswering
from experiments.objectives.self_pretraining import SelfPretraining

__all__ = ['Classification', 'DensityEstimation', 'DocumentClassification', 'FineTuning',
           'LanguageModelling', 'MultipleChoice', 'QuestionAnswering', 'SelfPretraining',
           'Training']
