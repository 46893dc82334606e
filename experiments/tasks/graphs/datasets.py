"""Tasks on the data sets of PyG and OGB."""

from __future__ import annotations

from typing import Any

from experiments.data.graph_parts import GraphParts, Target
from experiments.data.pyg_datasets import pyg_dataset
from experiments.tasks.graphs.base import GraphTask


class PyGGraphs(GraphTask):
    """A data set by its name in PyG or OGB.

    The division into parts is the data set's own: its argument ``split``, OGB's indices, or masks
    of nodes. If there is none, the division is random.

    Args:
        dataset (str): A class of ``torch_geometric.datasets``, or a name such as ``ogbg-molhiv``.
        root (str): The folder of the data set. If the folder has no files, PyG downloads the data
            set.
        arguments (dict, optional): Further arguments of the data set's class.
        seed (int): Seed of the division into parts, if the data set has none and it is random.
        target (str, optional): ``'classes'``, ``'labels'`` or ``'values'``; if omitted, the kind is
            inferred from the targets.
        node_type (str, optional): The type of the nodes with targets, for heterogeneous graphs.
        split (int): Index of the division, if masks contain several.
        **kwargs: Arguments of :class:`GraphTask`.
    """

    def __init__(self, dataset: str, root: str, arguments: dict[str, Any] | None = None,
                 seed: int = 0, target: Target | None = None, node_type: str | None = None,
                 split: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.dataset, self.root, self.arguments = dataset, root, arguments
        self.seed, self.target, self.node_type, self.split = seed, target, node_type, split

    def read(self) -> GraphParts:
        return pyg_dataset(self.dataset, self.root, self.arguments, self.seed, self.target,
                           self.node_type, self.split)
