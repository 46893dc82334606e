"""Tasks on PyG graphs: classes, labels or values, of graphs or of their nodes."""

from experiments.tasks.graphs.base import GraphTask
from experiments.tasks.graphs.tasks import BlockModelGraphs, OwnGraphs, PyGGraphs

__all__ = ['BlockModelGraphs', 'GraphTask', 'OwnGraphs', 'PyGGraphs']
