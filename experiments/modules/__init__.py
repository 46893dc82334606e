"""Lightning modules: the loss of a training step, and the metrics."""

from experiments.modules.base import Training
from experiments.modules.classification import Classification
from experiments.modules.density_estimation import DensityEstimation
from experiments.modules.document_classification import DocumentClassification
from experiments.modules.fine_tuning import FineTuning
from experiments.modules.graph_prediction import GraphPrediction
from experiments.modules.language_modelling import LanguageModelling
from experiments.modules.multiple_choice import MultipleChoice
from experiments.modules.question_answering import QuestionAnswering
from experiments.modules.self_pretraining import SelfPretraining

__all__ = ['Classification', 'DensityEstimation', 'DocumentClassification', 'FineTuning',
           'GraphPrediction', 'LanguageModelling', 'MultipleChoice',
           'QuestionAnswering', 'SelfPretraining', 'Training']
