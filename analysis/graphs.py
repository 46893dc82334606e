"""Graphs from objects, patterns and trained models; :mod:`analysis.graph_files` reads files."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from graphattn import BipartiteGraph
from graphattn.patterns import parse
from graphattn.utils.reading import check_unpacked, read_yaml
from graphattn.utils.trust import importing_only

if TYPE_CHECKING:
    from lightning import LightningDataModule

MAX_TOKENS = 2**24
GraphLike = BipartiteGraph | Tensor | sp.sparray | sp.spmatrix | nx.Graph


def as_graph(graph: GraphLike) -> BipartiteGraph:
    """Convert any input of :class:`~graphattn.BipartiteGraph`'s constructors to a graph.

    Args:
        graph: A BipartiteGraph, a bool mask ``[query, key]``, a scipy sparse array
            ``[query, key]``, or a networkx graph. Each node of a networkx graph is a token, with a
            warning if nodes have the attribute ``bipartite``; use
            :meth:`graphattn.BipartiteGraph.from_networkx` for parts as keys and queries.

    Raises:
        TypeError: ``graph`` is none of these.
        ValueError: ``graph`` is a batch of several graphs.
    """
    if isinstance(graph, BipartiteGraph):
        if graph.num_segments > 1:
            raise ValueError(f"'graph' must be a single graph (got {graph.num_segments} segments); "
                             f"measure each segment of graph.unbatch(), and show all by "
                             f"analysis.result.table")
        return graph
    if isinstance(graph, Tensor):
        return BipartiteGraph.from_mask(graph)
    if sp.issparse(graph):
        return BipartiteGraph.from_scipy(graph)
    if isinstance(graph, nx.Graph):
        return BipartiteGraph.from_networkx(_of_tokens(graph))
    raise TypeError(f"'graph' must be a BipartiteGraph, a bool mask, a scipy sparse array or a "
                    f"networkx graph (got {type(graph).__name__})")


def _of_tokens(graph: nx.Graph) -> nx.Graph:
    """Return a networkx graph without the attribute ``bipartite``."""
    if not any(part is not None for _, part in graph.nodes(data='bipartite')):
        return graph
    warnings.warn("each node of 'graph' is read as a token, although nodes have the attribute "
                  "bipartite; use BipartiteGraph.from_networkx(graph) for parts as keys and "
                  "queries",
                  stacklevel=3)
    plain = nx.DiGraph() if graph.is_directed() else nx.Graph()
    plain.add_nodes_from(graph)
    plain.add_edges_from(graph.edges())
    return plain


def graph_of_pattern(expression: str, n: int, seed: int = 0) -> BipartiteGraph:
    """Build a preset, or an expression of :func:`graphattn.patterns.parse`, on ``n`` tokens.

    Raises:
        ValueError, TypeError: The expression or a parameter is invalid.
    """
    pattern = parse(expression)
    if n < pattern.min_tokens:
        raise ValueError(f"'n' must be at least {pattern.min_tokens} for {expression} (got {n})")
    return pattern.build(n, seed=seed)


def sampled_graphs(
    checkpoint: str | Path, example: int = 0, samples: int = 8, seed: int = 0,
    trust: Iterable[str] = (),
) -> dict[str, list[BipartiteGraph]]:
    """Sample the graph of each head of a trained model for one example of its test set.

    Args:
        checkpoint: A checkpoint of ``experiments.train``, within its run's folder, whose
            config.yaml names the model and the data.
        example (int): Index of a sequence of the test set.
        samples (int): Number of graphs per head.
        seed (int): Seed of the draws.
        trust (iterable of str): Packages whose classes the config.yaml may name, besides graphattn,
            experiments and torch.nn.

    Returns:
        A dict from labels such as ``'layer 0, head 1'`` to ``samples`` graphs.

    Raises:
        ValueError: The checkpoint cannot be read, its heads do not sample their graphs, or the
            test set has no such example.
    """
    model, data = _load_run(Path(checkpoint), trust)
    tokens = _example(data, example)
    sequences = torch.arange(samples + 1) * tokens.numel()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        _, layers = model(tokens.repeat(samples), sequences, generator=generator,
                          return_graphs=True)
    graphs = {}
    for layer, graph in enumerate(layers):
        if graph.num_segments == samples:  # a fixed pattern, shared by all heads
            continue
        segments = graph.unbatch()
        graphs |= {f'layer {layer}, head {first // samples}': segments[first:first + samples]
                   for first in range(0, len(segments), samples)}
    if not graphs:
        raise ValueError(f"'checkpoint' must hold a model whose heads sample their graphs (got "
                         f"{checkpoint}); give its pattern by --pattern instead")
    return graphs


def _load_run(checkpoint: Path, trust: Iterable[str]) -> tuple[nn.Module, LightningDataModule]:
    from jsonargparse import ArgumentParser
    from lightning import LightningDataModule

    config_path = checkpoint.parent.parent / 'config.yaml'
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument('--model', type=nn.Module)
    parser.add_argument('--data', type=LightningDataModule)
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            check_unpacked(archive, max_bytes=checkpoint.stat().st_size)  # torch does not compress
        saved = torch.load(checkpoint, weights_only=True, map_location='cpu')['state_dict']
        config = read_yaml(config_path)
        with importing_only(trust):
            run = parser.instantiate(parser.parse_object(
                {'model': config['model']['init_args']['model'], 'data': config['data']}))
        run.model.load_state_dict({name.removeprefix('model.'): value
                                   for name, value in saved.items()})
    except Exception as error:  # unpickling, YAML and the named classes raise many types
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
    raise ValueError(f"'example' must be an index of the test set, from 0 to {first - 1} (got "
                     f"{example})")
