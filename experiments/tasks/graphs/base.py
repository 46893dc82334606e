"""The base class of tasks on PyG graphs."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import NeighborLoader
from torch_geometric.transforms import BaseTransform, Compose
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from tqdm import tqdm

from experiments.data.graph_parts import GraphParts
from experiments.data.sequences import check_at_least
from experiments.runs.versions import versions
from experiments.tasks.batch_stream import ResumableLoader, ShuffledEpochs, each_once
from experiments.tasks.own_sequences import MODEL
from graphattn.utils.files import write_whole


class GraphTask(L.LightningDataModule, ABC):
    """Base class of tasks on PyG graphs.

    A batch consists of graphs, or of sampled neighbourhoods of one large graph.

    Args:
        batch_size (int): Number of graphs per step and process. With ``num_neighbors``, it is the
            number of seeds, the nodes whose outputs are learned.
        pre_transforms (list of BaseTransform, optional): Transforms that are applied to each graph
            once, such as encodings. The results are cached on disk.
        transforms (list of BaseTransform, optional): Transforms that are applied to a training
            graph whenever it is loaded, such as :class:`graphattn.transforms.RandomSignFlip`.
        num_neighbors (list of int, optional): Number of sampled neighbours of each node in each hop
            from the seeds, for one large graph (PyG's ``NeighborLoader``). If omitted, each step
            uses the whole graph.
        num_workers (int): Number of processes that load batches.
        cache (Path): The folder of all caches.
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
        """Return the graphs of all parts of the task. Subclasses implement this method."""

    def fill_options(self, options: Namespace) -> None:
        """Write the sizes that follow from the graphs, such as the number of classes, into the
        options of a run."""
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
        if self.num_neighbors is not None:
            _check_samples_neighbors(parts)
        done: dict[tuple[int, ...], InMemoryDataset] = {}
        for part, graphs in parts.parts.items():
            same = tuple(map(id, graphs))
            if same not in done:
                done[same] = self._transformed(part, graphs)
            self.data[part] = copy.copy(done[same])
        self.data['train'].transform = Compose(self.transforms)

    def train_dataloader(self) -> DataLoader:
        places, collate = self._examples('train')
        return ResumableLoader(places, self.batch_size, collate_fn=collate,
                               sampler=_NumberedEpochs(places, self.batch_size, self.trainer),
                               **self._workers())

    def val_dataloader(self) -> DataLoader:
        return self._in_order('val')

    def test_dataloader(self) -> DataLoader:
        return self._in_order('test')

    def _in_order(self, part: str) -> DataLoader:
        places, collate = self._examples(part)
        return DataLoader(places, 2 * self.batch_size, sampler=each_once(places, self.trainer),
                          collate_fn=collate, **self._workers())

    def _examples(self, part: str) -> tuple[_Places, Callable[[list], Data]]:
        """Return the examples of a part, indices of graphs or of nodes of one graph, and a function
        that makes a batch of some."""
        data = self.data[part]
        if self.num_neighbors is None:
            take, size = partial(_joined, data), len(data)
        else:
            # The loader's own order is not used, because it could not be resumed.
            seeds = data.get(0)[f'{part}_mask'].nonzero().flatten()
            take, size = NeighborLoader(data.get(0), self.num_neighbors, seeds,
                                        transform=data.transform), len(seeds)
        return _Places(size), partial(_drawn, take, int(os.environ.get('PL_GLOBAL_SEED', 0)))

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
        key = cache_key(graphs, self.pre_transforms)
        path = self.cache / f'graphs-{key}.pt'
        if key is not None and (done := _read(path)) is not None:
            return _stored(done)
        transform = Compose(self.pre_transforms)
        with _seeded(0):
            done = [transform(copy.copy(graph)) for graph in tqdm(graphs, f'transforming {part}',
                                                                  disable=None)]
        if key is not None:
            write_whole(path, partial(_write, done))
        return _stored(done)


# Cache ###############################################################################


DIGEST = 16  # bytes


def cache_key(graphs: list[Data], transforms: list[BaseTransform]) -> str | None:
    """Return a digest of the graphs, the transforms and their code, and versions of packages, or
    ``None`` if a transform cannot be pickled or has no source file."""
    try:
        whole = blake2b(pickle.dumps(transforms), digest_size=DIGEST)
        for transform in transforms:
            whole.update(Path(inspect.getfile(type(transform))).read_bytes())
    except (AttributeError, OSError, TypeError, pickle.PicklingError):
        return None
    whole.update(str(sorted(versions().items())).encode())
    for number, graph in enumerate(graphs):
        for name, value in sorted(graph.to_dict().items()):
            whole.update(f'\0{number} {name} '.encode())
            if isinstance(value, Tensor) and value.layout == torch.strided:
                whole.update(f'{value.dtype} {tuple(value.shape)} '.encode())
                whole.update(value.contiguous().view(-1).view(torch.uint8).numpy())
            else:
                whole.update(pickle.dumps(value))
    return whole.hexdigest()


def _write(graphs: list[Data], path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([graph.to_dict() for graph in graphs], buffer)
    content = buffer.getbuffer()
    with path.open('wb') as file:
        # torch.load does not detect changed bits.
        file.write(blake2b(content, digest_size=DIGEST).digest())
        file.write(content)


def _read(path: Path) -> list[Data] | None:
    """Read the graphs in a file. Return ``None`` if the file is missing or damaged."""
    if not path.exists():
        return None
    content = memoryview(path.read_bytes())
    if content[:DIGEST] != blake2b(content[DIGEST:], digest_size=DIGEST).digest():
        return None
    graphs = torch.load(io.BytesIO(content[DIGEST:]), weights_only=True)
    return [Data.from_dict(graph) for graph in graphs]


def _stored(graphs: list[Data]) -> InMemoryDataset:
    """Return a data set that joins all graphs in a few tensors, which data-loading workers
    share."""
    dataset = InMemoryDataset()
    dataset.data, dataset.slices = InMemoryDataset.collate(graphs)
    return dataset


# Batches #############################################################################


class _Places(Dataset):
    """A data set of indices, of which :func:`_drawn` makes a batch of graphs or nodes."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: Any) -> Any:
        return place


class _NumberedEpochs(ShuffledEpochs):
    """A sampler of pairs of an epoch and an index, by which transforms differ."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.epoch, place) for place in super().__iter__())


def _drawn(take: Callable[[list[int]], Data], seed: int, places: list) -> Data:
    """Return a batch of graphs or neighbourhoods, which depends on ``places`` and ``seed``."""
    numbers = np.reshape(places, (len(places), -1))
    with _seeded(seed, *numbers.flatten().tolist()):
        return take(numbers[:, -1].tolist())


def _joined(graphs: InMemoryDataset, places: list[int]) -> Batch:
    return Batch.from_data_list([graphs[place] for place in places])


@contextmanager
def _seeded(*entropy: int) -> Iterator[None]:
    """Return a context in which torch, NumPy and Python draw by ``entropy``, and then as before."""
    seeds = np.random.SeedSequence(entropy).generate_state(3).tolist()
    with isolate_rng(include_cuda=False):
        torch.default_generator.manual_seed(seeds[0])
        np.random.seed(seeds[1])
        random.seed(seeds[2])
        yield


def _check_samples_neighbors(parts: GraphParts) -> None:
    if parts.level != 'node' or len(parts.graphs) > 1:
        raise ValueError(f"'num_neighbors' requires one graph with targets for nodes (got "
                         f"{len(parts.graphs)} graphs with targets for each {parts.level}); omit "
                         f"'num_neighbors'")
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise ImportError("'num_neighbors' requires torch-sparse or pyg-lib; install one of "
                          "them, for example by pip install torch-sparse")
