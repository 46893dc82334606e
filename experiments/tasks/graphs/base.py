"""Base class of tasks on PyG graphs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from hashlib import blake2b
from pathlib import Path

import lightning as L
import torch
from jsonargparse import Namespace
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import NeighborLoader
from torch_geometric.transforms import BaseTransform, Compose
from tqdm import tqdm

from experiments.data.graph_parts import GraphParts
from experiments.data.sequences import check_at_least
from experiments.tasks.batch_stream import ResumableLoader, ShuffledEpochs, each_once
from experiments.tasks.own_data import MODEL
from graphattn.utils.files import write_whole


class GraphTask(L.LightningDataModule, ABC):
    """Batches of graphs, or the seeds of one graph and samples of their neighbours.

    Args:
        batch_size (int): Graphs per step and process, or seeds.
        pre_transforms (list of BaseTransform, optional): Applied to each graph once, such as
            encodings; the results are cached on disk.
        transforms (list of BaseTransform, optional): Applied to training graphs whenever they are
            loaded, such as :class:`graphattn.transforms.RandomSignFlip`.
        num_neighbors (list of int, optional): Neighbours of each node in each hop from the seeds,
            for one large graph (PyG's ``NeighborLoader``). Without it, each step takes the whole
            graph.
        num_workers (int): Processes that load batches.
        cache (Path): The folder of all caches.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(self, batch_size: int = 32, pre_transforms: list[BaseTransform] | None = None,
                 transforms: list[BaseTransform] | None = None,
                 num_neighbors: list[int] | None = None, num_workers: int = 0,
                 cache: Path = Path('data/cache')):
        super().__init__()
        check_at_least(1, batch_size=batch_size)
        check_at_least(0, num_workers=num_workers)
        self.batch_size, self.num_workers, self.cache = batch_size, num_workers, Path(cache)
        self.pre_transforms, self.transforms = pre_transforms or [], transforms or []
        self.num_neighbors = num_neighbors
        self.graphs: GraphParts | None = None
        self.data: dict[str, InMemoryDataset] = {}
        self.classes: list[str] | None = None

    @abstractmethod
    def read(self) -> GraphParts:
        """Return the graphs of all parts. Subclasses implement this method."""

    def fill_options(self, options: Namespace) -> None:
        """Write the sizes that follow from the graphs into the options of a run."""
        parts = self._read()
        sizes = {'features': parts.features_of('x'), 'out_channels': parts.out_channels,
                 'edge_features': parts.features_of('edge_attr'), 'level': parts.level}
        for name, size in sizes.items():
            if f'{MODEL}.{name}' in options:
                options[f'{MODEL}.{name}'] = size
        if 'model.init_args.target' in options:
            options['model.init_args.target'] = parts.target
        if parts.classes is not None and 'data.init_args.classes' in options:
            options['data.init_args.classes'] = list(parts.classes)

    def setup(self, stage: str | None = None) -> None:
        if self.data:
            return
        parts = self._read()
        if self.num_neighbors is not None and (parts.level != 'node' or len(parts.graphs) > 1):
            raise ValueError(f"'num_neighbors' requires one graph with targets for nodes (got "
                             f"{len(parts.graphs)} graphs with targets for each {parts.level})")
        done: dict[tuple[int, ...], InMemoryDataset] = {}
        for part, graphs in parts.parts.items():
            same = tuple(map(id, graphs))
            if same not in done:
                done[same] = self._transformed(part, graphs)
            self.data[part] = copy.copy(done[same])
        self.data['train'].transform = Compose(self.transforms)

    def train_dataloader(self) -> DataLoader:
        if self.num_neighbors is not None:
            return self._neighbors('train')
        part = self.data['train']
        return ResumableLoader(part, self.batch_size, collate_fn=Batch.from_data_list,
                               sampler=ShuffledEpochs(part, self.batch_size, self.trainer),
                               **self._workers())

    def val_dataloader(self) -> DataLoader:
        return self._in_order('val')

    def test_dataloader(self) -> DataLoader:
        return self._in_order('test')

    def _in_order(self, part: str) -> DataLoader:
        if self.num_neighbors is not None:
            return self._neighbors(part)
        data = self.data[part]
        return DataLoader(data, 2 * self.batch_size, sampler=each_once(data, self.trainer),
                          collate_fn=Batch.from_data_list, **self._workers())

    def _neighbors(self, part: str) -> NeighborLoader:
        graph = self.data[part][0]
        mask = graph[f'{part}_mask'] if f'{part}_mask' in graph else None
        seeds = torch.arange(graph.num_nodes) if mask is None else mask.nonzero().flatten()
        order = (ShuffledEpochs(seeds, self.batch_size, self.trainer) if part == 'train'
                 else each_once(seeds, self.trainer))
        return _ResumableNeighbors(graph, self.num_neighbors, seeds, batch_size=self.batch_size,
                                   sampler=order, **self._workers())

    def _workers(self) -> dict[str, object]:
        return {'num_workers': self.num_workers, 'persistent_workers': self.num_workers > 0}

    def _read(self) -> GraphParts:
        if self.graphs is None:
            self.graphs = self.read()
            self.classes = None if self.graphs.classes is None else list(self.graphs.classes)
        return self.graphs

    def _transformed(self, part: str, graphs: list[Data]) -> InMemoryDataset:
        if not self.pre_transforms:
            return _stored(graphs)
        whole = blake2b('\n'.join(map(_description, self.pre_transforms)).encode(), digest_size=8)
        for graph in graphs:
            for name, value in sorted(graph.to_dict().items()):
                whole.update(f'{name} {value.dtype} {tuple(value.shape)}'.encode() if isinstance(
                    value, Tensor) else f'{name} {value}'.encode())
                if isinstance(value, Tensor):
                    whole.update(value.contiguous().numpy().tobytes())
        path = self.cache / f'graphs-{whole.hexdigest()}.pt'
        if path.exists():
            try:
                return _stored(torch.load(path, weights_only=True))
            except Exception:  # a damaged file is computed again
                path.unlink(missing_ok=True)
        transform = Compose(self.pre_transforms)
        done = [transform(copy.copy(graph)) for graph in tqdm(graphs, f'transforming {part}',
                                                              disable=None)]
        write_whole(path, lambda temporary: torch.save(done, temporary))
        return _stored(done)


class _ResumableNeighbors(ResumableLoader, NeighborLoader):
    """A NeighborLoader whose sampler resumes within an epoch."""


def _stored(graphs: list[Data]) -> InMemoryDataset:
    """Return graphs joined in few tensors, which workers share."""
    dataset = InMemoryDataset()
    dataset.data, dataset.slices = InMemoryDataset.collate(graphs)
    return dataset


def _description(transform: BaseTransform) -> str:
    kind = type(transform)
    return f'{kind.__module__}.{kind.__qualname__}({sorted(vars(transform).items())})'
