"""Where the graphs of a question come from: objects, patterns, files, and trained models."""

from __future__ import annotations

import zipfile
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from graphattn import BipartiteGraph
from graphattn._reading import check_arrays, check_unpacked, read_lines, read_yaml
from graphattn.patterns import parse

if TYPE_CHECKING:
    from lightning import LightningDataModule

MOST_TOKENS = 2**24
GraphLike = BipartiteGraph | Tensor | sp.sparray | sp.spmatrix | nx.Graph


def as_graph(graph: GraphLike) -> BipartiteGraph:
    """A graph from whatever the constructors of :class:`~graphattn.BipartiteGraph` take.

    Args:
        graph: A BipartiteGraph, a bool mask ``[query, key]``, a scipy sparse array
            ``[query, key]``, or a networkx graph.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(graph, BipartiteGraph):
        return graph
    if isinstance(graph, Tensor):
        return BipartiteGraph.from_mask(graph)
    if sp.issparse(graph):
        return BipartiteGraph.from_scipy(graph)
    if isinstance(graph, nx.Graph):
        return BipartiteGraph.from_networkx(graph)
    raise TypeError(f"'graph' must be a BipartiteGraph, a bool mask, a scipy sparse array or a "
                    f"networkx graph (got {type(graph).__name__})")


def graph_of_pattern(expression: str, n: int, seed: int = 0) -> BipartiteGraph:
    """The graph on ``n`` tokens of a preset's name or an expression for
    :func:`graphattn.patterns.parse`.

    Raises:
        ValueError, TypeError: The expression is none, or a parameter is wrong.
    """
    pattern = parse(expression)
    if n < pattern.fewest_tokens:
        raise ValueError(f"'n' must be at least {pattern.fewest_tokens} for {expression} (got {n})")
    return pattern.build(n, seed=seed)


def read_graph(path: str | Path) -> BipartiteGraph:
    """The graph in a file.

    Args:
        path: By its ending: ``.npz``, a scipy sparse array ``[query, key]`` as
            ``scipy.sparse.save_npz`` writes it; ``.graphml``, a networkx graph; anything else, a
            list of edges, ``key query`` in numbers from 0 on each line, ``#`` before comments.

    Raises:
        ValueError: There is no such file, or no graph in it, or it has too many tokens.
    """
    path = Path(path)
    try:
        if path.suffix == '.npz':
            return BipartiteGraph.from_scipy(_read_matrix(path))
        if path.suffix == '.graphml':
            return BipartiteGraph.from_networkx(nx.read_graphml(path))
        return _read_edges(path)
    except Exception as error:  # whatever reading zip, arrays and XML raises
        raise ValueError(f"'graph' cannot be read: {path} ({error})") from error


def sampled_graphs(
    checkpoint: str | Path, example: int = 0, samples: int = 8, seed: int = 0,
) -> dict[str, list[BipartiteGraph]]:
    """What each head of a trained model samples for one example of its test set.

    Args:
        checkpoint: A checkpoint of ``experiments.train``, in its run's folder: the config.yaml
            there names the model and the data.
        example (int): Which sequence of the test set.
        samples (int): Number of graphs of each head.
        seed (int): Seed of the draws.

    Returns:
        A dict from ``'layer 0, head 1'`` and the like to ``samples`` graphs.

    Raises:
        ValueError: The checkpoint cannot be read, its heads do not sample their graphs, or the
            test set has no such example.
    """
    model, data = _load_run(Path(checkpoint))
    tokens = _example(data, example)
    sequences = torch.arange(samples + 1) * tokens.numel()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        _, layers = model(tokens.repeat(samples), sequences, generator=generator,
                          return_graphs=True)
    graphs = {}
    for layer, graph in enumerate(layers):
        if graph.num_blocks == samples:  # one graph for all heads: a fixed pattern
            continue
        blocks = [_block(graph, block) for block in range(graph.num_blocks)]
        graphs |= {f'layer {layer}, head {first // samples}': blocks[first:first + samples]
                   for first in range(0, len(blocks), samples)}
    if not graphs:
        raise ValueError(f"'checkpoint' holds a model whose heads do not sample their graphs: "
                         f"{checkpoint}; give its pattern with --pattern")
    return graphs


def _read_matrix(path: Path) -> sp.sparray | sp.spmatrix:
    check_arrays(path)
    matrix = sp.load_npz(path)
    if max(matrix.shape) > MOST_TOKENS:
        raise ValueError(f'{max(matrix.shape):,} tokens, and at most {MOST_TOKENS:,} are read')
    return matrix


def _read_edges(path: Path) -> BipartiteGraph:
    ids = array('q')
    for number, line in read_lines(path):
        entries = line.partition('#')[0].split()
        if not entries:
            continue
        if len(entries) != 2 or not all(entry.isdecimal() for entry in entries):
            raise ValueError(f'line {number} is not a key and a query: {line[:60]!r}')
        pair = [int(entry) for entry in entries if len(entry) < 20]
        if len(pair) < 2 or max(pair) >= MOST_TOKENS:
            raise ValueError(f'line {number} has a number that is not below {MOST_TOKENS:,}: '
                             f'{line[:60]!r}')
        ids.extend(pair)
    if not ids:
        raise ValueError('it holds no edges')
    edge_index = torch.from_numpy(np.array(ids).reshape(-1, 2).T.copy())
    return BipartiteGraph.from_edge_index(edge_index, int(edge_index.max()) + 1)


def _load_run(checkpoint: Path) -> tuple[nn.Module, LightningDataModule]:
    from jsonargparse import ArgumentParser
    from lightning import LightningDataModule

    config_path = checkpoint.parent.parent / 'config.yaml'
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument('--model', type=nn.Module)
    parser.add_argument('--data', type=LightningDataModule)
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            check_unpacked(archive, most=checkpoint.stat().st_size)  # torch packs nothing
        saved = torch.load(checkpoint, weights_only=True, map_location='cpu')['state_dict']
        config = read_yaml(config_path)
        run = parser.instantiate(parser.parse_object(
            {'model': config['model']['init_args']['model'], 'data': config['data']}))
        run.model.load_state_dict({name.removeprefix('model.'): value
                                   for name, value in saved.items()})
    except Exception as error:  # what unpickling, YAML, and the classes it names may raise
        raise ValueError(f"'checkpoint' cannot be read: {checkpoint} with {config_path} "
                         f"({error})") from error
    return run.model.eval(), run.data


def _example(data: LightningDataModule, example: int) -> Tensor:
    data.prepare_data()
    data.setup('test')
    first = 0
    for tokens, ptr, _ in data.test_dataloader():
        last = first + ptr.numel() - 1
        if first <= example < last:
            begin, end = ptr[example - first:example - first + 2].tolist()
            return tokens[begin:end]
        first = last
    raise ValueError(f"'example' must be from 0 to {first - 1}, the test set (got {example})")


def _block(graph: BipartiteGraph, block: int) -> BipartiteGraph:
    first_query, last_query = graph.query_ptr[block:block + 2].tolist()
    first_key, last_key = graph.key_ptr[block:block + 2].tolist()
    edges = slice(int(graph.indptr[first_query]), int(graph.indptr[last_query]))
    edge_index = torch.stack([graph.key[edges] - first_key, graph.query[edges] - first_query])
    return BipartiteGraph(edge_index, last_query - first_query, last_key - first_key,
                          validate=False)
