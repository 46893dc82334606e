"""Tasks on PATTERN and CLUSTER, on the data sets of PyG and OGB, and on the user's own graphs."""

from pathlib import Path
from typing import Any, Literal

from experiments.data.block_model_graphs import block_model_graphs
from experiments.data.graph_parts import GraphParts, Target, graph_parts
from experiments.data.graph_tables import own_graphs
from experiments.data.pyg_datasets import pyg_dataset
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


class OwnGraphs(GraphTask):
    """Graphs from a ``.pt`` or GraphML file, or from CSV tables of nodes and edges.

    The guide to own data describes the formats.

    Args:
        path (str): The file or folder.
        target (str, optional): ``'classes'``, ``'labels'`` or ``'values'``; if omitted, the kind is
            inferred from the targets.
        undirected (bool): Whether to add the reverse of each edge of GraphML and CSV files that
            lack it.
        seed (int): Seed of the division into parts, if it is random.
        classes (list of str, optional): The names of the classes in order. If omitted, the names
            are read from the files.
        split (int): Index of the division, if the masks of a ``.pt`` file contain several.
        **kwargs: Arguments of :class:`GraphTask`.
    """

    def __init__(self, path: str, target: Target | None = None, undirected: bool = True,
                 seed: int = 0, classes: list[str] | None = None, split: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.path, self.target, self.undirected = path, target, undirected
        self.seed, self.classes, self.split = seed, classes, split

    def read(self) -> GraphParts:
        return own_graphs(Path(self.path), self.target, self.undirected, self.seed, self.classes,
                          self.split)
