"""Graphs from the data sets of PyG and OGB."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.datasets
from torch_geometric.data import Data, Dataset, HeteroData

from experiments.data.graph_parts import PARTS, GraphParts, Target, graph_parts
from experiments.data.hetero_graphs import homogeneous
from experiments.data.saved_graphs import allowing_graphs


def pyg_dataset(name: str, root: str, arguments: dict[str, Any] | None = None, seed: int = 0,
                target: Target | None = None, node_type: str | None = None,
                split: int = 0) -> GraphParts:
    """Read a data set of ``torch_geometric.datasets``, or of OGB by a name like ``ogbg-molhiv``.

    If ``root`` has no files, PyG downloads and processes them. The division into parts is the data
    set's own: its argument ``split``, OGB's indices, or masks of nodes. If there is none, the
    division is random.
    """
    arguments = dict(arguments or {})
    is_ogb = name.startswith(('ogbg-', 'ogbn-'))
    kind = None if is_ogb else getattr(torch_geometric.datasets, name, None)
    if not is_ogb and not (inspect.isclass(kind) and issubclass(kind, Dataset)):
        raise ValueError(f"'dataset' must be a class of torch_geometric.datasets or a name of OGB, "
                         f"such as ogbg-molhiv (got {name!r})")
    try:
        with allowing_graphs():
            parts = _of_ogb(name, root) if is_ogb else _of_pyg(kind, root, arguments)
    except ImportError as error:
        raise ImportError(f"'dataset' {name} needs a package that is not installed ({error}); "
                          f"install this package (for OGB: pip install ogb)") from error
    except Exception as error:  # the readers of data sets raise many types of errors
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(
            f"'root' must be the folder of {name} (got {root}: {reason:.200}); pass the folder to "
            f"which PyG downloads, or delete its subfolder 'processed' if another version of PyG "
            f"wrote 'processed'"
        ) from error
    about = ' '.join([name, *(str(value) for value in arguments.values())])
    graphs = {part: [homogeneous(graph, node_type) if isinstance(graph, HeteroData) else graph
                     for graph in some] for part, some in parts.items()}
    return graph_parts(about, graphs if len(graphs) > 1 else graphs['all'], target, seed=seed,
                       split=split)


def _of_pyg(kind: type[Dataset], root: str, arguments: dict[str, Any]
            ) -> dict[str, Sequence[Data]]:
    parameters = inspect.signature(kind).parameters
    given = {'root': root, **arguments} if 'root' in parameters else arguments
    default = parameters['split'].default if 'split' in parameters else None
    if 'split' in arguments or default not in ('train', inspect.Parameter.empty):
        return {'all': list(kind(**given))}  # Planetoid's 'public' is a mask
    # without this error, CSL would return the same graphs for each part
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*does not provide a standardized splitting')
        return {part: list(kind(split=part, **given)) for part in PARTS}


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
        return {'all': [graph]}
    from ogb.graphproppred import PygGraphPropPredDataset

    dataset = PygGraphPropPredDataset(name, root)
    indices = dataset.get_idx_split()
    return {part: list(dataset[indices[own]])
            for part, own in zip(PARTS, ('train', 'valid', 'test'))}
