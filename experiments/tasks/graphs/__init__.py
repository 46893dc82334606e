"""Tasks on PyG graphs: classes, labels or values, of graphs or of their nodes."""

from experiments.tasks.graphs.base import GraphTask
from experiments.tasks.graphs.block_models import BlockModelGraphs
from experiments.tasks.graphs.datasets import PyGGraphs
from experiments.tasks.graphs.own import OwnGraphs

__all__ = ['BlockModelGraphs', 'GraphTask', 'OwnGraphs', 'PyGGraphs']
