"""PATTERN and CLUSTER, tasks on graphs of stochastic block models."""

from __future__ import annotations

from typing import Literal

from experiments.data.block_model_graphs import block_model_graphs
from experiments.data.graph_parts import GraphParts, graph_parts
from experiments.tasks.graphs.base import GraphTask


class BlockModelGraphs(GraphTask):
    """The nodes of PATTERN or of CLUSTER, with their classes.

    In PATTERN, the class is whether a node is in a planted pattern. In CLUSTER, it is the community
    of the node.

    Args:
        dataset (str): ``'PATTERN'`` or ``'CLUSTER'``.
        seed (int): Seed of the graphs, which are drawn from the published distribution.
        num_graphs (tuple of int, optional): Numbers of graphs for training, validation and test. If
            omitted, the published numbers.
        **kwargs: Arguments of :class:`GraphTask`.
    """

    def __init__(self, dataset: Literal['PATTERN', 'CLUSTER'] = 'PATTERN', seed: int = 0,
                 num_graphs: tuple[int, int, int] | None = None, **kwargs):
        super().__init__(**kwargs)
        self.dataset, self.seed, self.num_graphs = dataset, seed, num_graphs

    def read(self) -> GraphParts:
        graphs = block_model_graphs(self.dataset, self.seed, self.cache, self.num_graphs)
        return graph_parts(f'{self.dataset}, drawn from its distribution', graphs, 'classes',
                           'node')
