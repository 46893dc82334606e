"""Graphs from the data sets of PyG and OGB."""

import copy
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.datasets
from torch_geometric.data import Data, Dataset, HeteroData
from torch_geometric.utils import index_to_mask

from experiments.data.batch import NO_LABEL
from experiments.data.graph_parts import (
    MASKS,
    PARTS,
    GraphParts,
    Target,
    allowing_graphs,
    graph_parts,
)


def pyg_dataset(name: str, root: str, arguments: dict[str, Any] | None = None, seed: int = 0,
                target: Target | None = None, node_type: str | None = None,
                split: int = 0) -> GraphParts:
    """Read a data set of ``torch_geometric.datasets``, or of OGB by a name like ``ogbg-molhiv``."""
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
        from ogb.nodeproppred import PygNodePropPredDataset as OgbDataset
    else:
        from ogb.graphproppred import PygGraphPropPredDataset as OgbDataset

    dataset = OgbDataset(name, root)
    indices = dataset.get_idx_split()
    own = {part: indices[given] for part, given in zip(PARTS, ('train', 'valid', 'test'))}
    if name.startswith('ogbg-'):
        return {part: list(dataset[some]) for part, some in own.items()}
    graph = dataset[0]
    graph.y = graph.y.flatten() if graph.y.size(1) == 1 else graph.y
    for part, some in own.items():
        graph[f'{part}_mask'] = index_to_mask(some, graph.num_nodes)
    return {'all': [graph]}


def homogeneous(graph: HeteroData, node_type: str | None = None) -> Data:
    """Convert a heterogeneous graph to one whose features are those of each type in columns of
    their own, the types of nodes, and the types of edges; nodes of ``node_type`` have targets."""
    graph, kinds = copy.copy(graph), graph.node_types
    with_targets = [kind for kind in kinds if 'y' in graph[kind]]
    if node_type is None and len(with_targets) == 1:
        node_type, = with_targets
    if node_type not in with_targets:
        raise ValueError(f"'node_type' must be one of the types with targets, "
                         f"{', '.join(with_targets) or 'but no type has any'} (got "
                         f"{node_type})")
    x = torch.block_diag(*(graph[kind].x.float() if 'x' in graph[kind]
                           else torch.zeros(graph[kind].num_nodes, 0) for kind in kinds))
    targets = [name for name in ('y', *MASKS) if name in graph[node_type]]
    left_out = []
    for kind, store in zip(graph.metadata()[0] + graph.metadata()[1], graph.stores[1:]):
        used = ('x', 'edge_index', 'num_nodes', *(targets if kind == node_type else ()))
        for name in [name for name in store.keys() if name not in used]:
            left_out.append(f'{name} of {kind if isinstance(kind, str) else kind[1]}')
            del store[name]
    if left_out:
        warnings.warn(f"left out of the heterogeneous graph: {', '.join(left_out)}", stacklevel=2)
    data = graph.to_homogeneous(node_attrs=targets, edge_attrs=[])
    if not data.y.is_floating_point():  # PyG writes NaN or -1 where no target is
        data.y[data.node_type != kinds.index(node_type)] = NO_LABEL
    data.x = torch.cat([x, F.one_hot(data.node_type, len(kinds))], dim=1)
    data.edge_attr = data.edge_type.unsqueeze(1)
    del data.node_type, data.edge_type
    return data
