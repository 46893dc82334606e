"""Tasks on the user's own graphs."""

from __future__ import annotations

from pathlib import Path

from experiments.data.graph_parts import GraphParts, Target
from experiments.data.graph_tables import own_graphs
from experiments.tasks.graphs.base import GraphTask


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
