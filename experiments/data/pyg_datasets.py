"""Data sets of PyG and OGB."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.datasets
from torch_geometric.data import Data, Dataset, HeteroData

from experiments.data.graph_parts import PARTS, GraphParts, Target, divided_graphs, graph_parts
from experiments.data.hetero_graphs import homogeneous


def pyg_dataset(name: str, root: str, arguments: dict[str, Any] | None = None, seed: int = 0,
                target: Target | None = None, node_type: str | None = None,
                split: int = 0) -> GraphParts:
    """Read a data set of ``torch_geometric.datasets`` or, by names such as ``ogbg-molhiv``, of OGB.

    PyG downloads and processes the files if ``root`` has none. The division is the data set's: its
    argument ``split``, OGB's indices, or masks of nodes; without any of these it is random.

    Args:
        name (str): The class, such as ``'ZINC'`` or ``'LRGBDataset'``.
        root (str): The folder of the data set.
        arguments (dict, optional): Further arguments, such as ``{'name': 'Peptides-func'}``.
        seed (int): Seed of a random division.
        target (str, optional): ``'classes'``, ``'labels'`` or ``'values'``; if omitted, what the
            targets look like.
        node_type (str, optional): The nodes with targets, in heterogeneous graphs.
        split (int): Which of several divisions by masks.

    Raises:
        ValueError: The data set is unknown, or its files cannot be read; one line that names it.
    """
    arguments = dict(arguments or {})
    is_ogb = name.startswith(('ogbg-', 'ogbn-'))
    kind = None if is_ogb else getattr(torch_geometric.datasets, name, None)
    if not is_ogb and not (inspect.isclass(kind) and issubclass(kind, Dataset)):
        raise ValueError(f"'dataset' must be a class of torch_geometric.datasets or a name of OGB, "
                         f"such as ogbg-molhiv (got {name!r})")
    try:
        parts = _of_ogb(name, root) if is_ogb else _of_pyg(kind, root, arguments)
    except ImportError:
        raise
    except Exception as error:  # the readers of data sets raise anything
        raise ValueError(
            f"'root' cannot be read as {name} (got {root}: {type(error).__name__}: {error}); give "
            f"the folder that PyG downloads to, or delete its folder 'processed' if another "
            f"version of PyG wrote it") from error
    graphs = {part: [homogeneous(graph, node_type) if isinstance(graph, HeteroData) else graph
                     for graph in graphs] for part, graphs in parts.items()}
    if len(graphs) == 1:
        graphs = _divided(graphs['all'], seed, split)
    about = ' '.join([name, *(str(value) for value in arguments.values())])
    return graph_parts(about, graphs, target)


def _of_pyg(kind: type[Dataset], root: str, arguments: dict[str, Any]
            ) -> dict[str, Sequence[Data]]:
    parameters = inspect.signature(kind).parameters
    if 'split' in parameters and 'split' not in arguments and (
            parameters['split'].default in ('train', 'public', inspect.Parameter.empty)):
        if parameters['split'].default != 'public':  # Planetoid's split is a mask
            return {part: list(kind(root, split=part, **arguments)) for part in PARTS}
    return {'all': list(kind(root, **arguments))}


def _of_ogb(name: str, root: str) -> dict[str, Sequence[Data]]:
    if name.startswith('ogbn-'):
        from ogb.nodeproppred import PygNodePropPredDataset

        dataset = PygNodePropPredDataset(name, root)
        graph = dataset[0]
        graph.y = graph.y.flatten() if graph.y.size(1) == 1 else graph.y
        for part, own in zip(PARTS, ('train', 'valid', 'test')):
            mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
            mask[dataset.get_idx_split()[own]] = True
            graph[f'{part}_mask'] = mask
        return {part: [graph] for part in PARTS}
    from ogb.graphproppred import PygGraphPropPredDataset

    dataset = PygGraphPropPredDataset(name, root)
    indices = dataset.get_idx_split()
    return {part: list(dataset[indices[own]])
            for part, own in zip(PARTS, ('train', 'valid', 'test'))}


def _divided(graphs: Sequence[Data], seed: int, split: int) -> dict[str, list[Data]]:
    if len(graphs) > 1 or 'train_mask' not in graphs[0]:
        return divided_graphs(graphs, seed)
    graph, = graphs
    for part in PARTS:
        mask = graph[f'{part}_mask']
        if mask.dim() == 2 and not 0 <= split < mask.size(1):
            raise ValueError(f"'split' must be from 0 to {mask.size(1) - 1} (got {split})")
        graph[f'{part}_mask'] = mask[:, split] if mask.dim() == 2 else mask
    return {part: [graph] for part in PARTS}
