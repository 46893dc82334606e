"""The user's own graphs."""

from __future__ import annotations

from pathlib import Path

from experiments.data.graph_parts import GraphParts, Target
from experiments.data.graph_tables import own_graphs
from experiments.tasks.graphs.base import GraphTask


class OwnGraphs(GraphTask):
    """Graphs from a ``.pt`` or GraphML file, or from CSV tables of nodes and edges, see
    :func:`experiments.data.graph_tables.own_graphs`.

    Args:
        path (str): The file or folder.
        target (str, optional): ``'classes'``, ``'labels'`` or ``'values'``; if omitted, what the
            targets look like.
        undirected (bool): Add the reverse of each edge of GraphML and CSV, unless it is there.
        seed (int): Seed of a random division.
        classes (list of str, optional): The names of the classes in order; if omitted, read from
            the files.
        split (int): Which of several divisions by masks, in ``.pt``.
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
