"""Reach, mixing and direction of the graphs of a model's heads, reach over all layers, and
conditions of universal approximation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from analysis.graphs import check_positive, symmetrize
from analysis.hamiltonian import hamiltonian_path
from analysis.result import Result
from analysis.spectrum import Laplacian
from analysis.universality import has_self_loops, layers_to_reach_all
from analysis.walk import square_graph, uniform_attention
from graphattn import BipartiteGraph
from graphattn.utils.reading import read_array

if TYPE_CHECKING:
    from graphattn.sources import GraphSource

__all__ = ['Certificate', 'certificate', 'graphs_of_heads']

MAX_TOKENS = 4096  # whose spectra are computed densely
MAX_HOPS = 512
MAX_PATH_TOKENS = 1024  # among which a Hamiltonian path is searched for
YES, NO, NOT_DECIDED = 'yes', 'no', 'not decided'


@dataclass(frozen=True)
class Certificate(Result):
    """Measures of the graphs along which the heads of a model attend: of each head, and of all
    layers together.

    Arrays whose names end in ``_of_head`` have an entry for each head, layer by layer. The allowed
    pairs are all pairs of tokens, or those with an earlier key if all edges are causal.
    """

    num_tokens: int
    num_layers: int
    num_heads: int  #: In all layers.
    density: float  #: Share of the allowed pairs that are edges.
    layers_to_reach_all: int | None  #: ``None`` if not within the model's layers.
    reached: float  #: Share of the allowed pairs that a path over all layers connects.
    unread: int  #: Number of tokens that no other token reads, in any head.
    self_loops: bool  #: Whether each token attends to itself in every layer, in some head.
    hamiltonian_path: str  #: In the edges of all layers: 'yes', 'no' or 'not decided'.
    layers_with_path: int  #: Number of layers whose own edges are known to have such a path.
    #: Whether Yun et al.'s conditions hold for the unions over heads: 'yes', 'no', 'not decided'.
    universal: str
    density_of_head: np.ndarray
    hops_of_head: np.ndarray  #: Until the head's graph alone reaches what it can; NaN above 512.
    reached_of_head: np.ndarray  #: Share of the allowed pairs that its paths connect in the end.
    gap_of_head: np.ndarray  #: Second eigenvalue of the normalised Laplacian, edges both ways.
    sigma_of_head: np.ndarray  #: Second singular value of uniform attention along the edges.
    one_way_of_head: np.ndarray  #: Share of its edges between tokens whose reverse is no edge.


def certificate(layers: Sequence[Sequence[BipartiteGraph]], *,
                time_limit: float = 10.) -> Certificate:
    r"""Measure which tokens can exchange information along the graphs of a model, whatever its
    weights.

    Information moves along any edge of any head of a layer, and stays in place by the residual
    connection. After layer l, the pairs of a token and a token that it has read are

    .. math::
        R_l = (I \vee A_l) R_{l - 1}, \qquad A_l = \bigvee_h A_{l h}, \qquad R_0 = I

    The measures compare these pairs with the allowed pairs. All pairs are allowed, or only those
    with an earlier key if every edge is causal.

    Yun et al. prove that transformers along graphs approximate all functions of sequences under
    three conditions: self-loops in each layer, a Hamiltonian path in the union of all layers, and
    every token reads every other token after some number of layers, which apply the graphs in turn.
    With self-loops, the third condition is that the union of all layers is strongly connected. In
    the theorem all heads of a layer attend along one graph. Here the graph of a layer is the union
    :math:`A_l` over its heads, so a 'yes' is about models whose heads all attend along this union.
    The result ``universal`` is 'no' if this proof does not apply. The proof never applies if all
    edges are causal, because no token then reads later tokens.

    Args:
        layers: The graphs of the heads of each layer. All have the same number n of queries and of
            keys, at most 4,096.
        time_limit (float): Seconds for all searches for Hamiltonian paths. Half of the time is for
            the union of all layers. With more than 1,024 tokens there is no search, and the answer
            is 'not decided'.

    Raises:
        TypeError, ValueError: There are no graphs, they differ in their numbers of tokens or have
            more than 4,096 tokens, or ``time_limit`` is not positive.

    Source: Yun et al., "O(n) connections are expressive enough" (2020), Assumption 1.

    Example:
        >>> from graphattn.patterns import GlobalTokens, SlidingWindow
        >>> heads = [SlidingWindow(1).build(9), GlobalTokens(1).build(9)]
        >>> found = certificate([heads, heads])
        >>> found.layers_to_reach_all, found.unread, found.hamiltonian_path, found.universal
        (2, 0, 'yes', 'yes')
    """
    check_positive('time_limit', time_limit)
    graphs = [[square_graph(graph) for graph in heads] for heads in layers]
    every = [graph for heads in graphs for graph in heads]
    if not every:
        raise ValueError("'layers' must contain at least one graph (got none)")
    n = every[0].num_queries
    if n > MAX_TOKENS or any(graph.num_queries != n for graph in every):
        sizes = sorted({graph.num_queries for graph in every})
        raise ValueError(f"'layers' must contain graphs of the same number of tokens, at most "
                         f"{MAX_TOKENS} (got {', '.join(map(str, sizes))} tokens)")
    is_causal = all(bool((graph.key <= graph.query).all()) for graph in every)
    pairs = n * (n + 1) // 2 if is_causal else n * n
    joined = [reduce(or_, heads) for heads in graphs]
    _, reach, _ = layers_to_reach_all([graph.with_self_loops() for graph in joined], len(joined))
    # Reach is a share of all pairs, and stays as it is once it repeats itself.
    whole = pairs / n**2
    enough = np.flatnonzero(reach >= whole * (1 - 1e-12))
    read = np.zeros(n, dtype=bool)
    for graph in every:
        read[graph.key[graph.key != graph.query].numpy()] = True
    alone = [_of_head(graph, whole) for graph in every]
    self_loops = all(has_self_loops(graph) for graph in joined)
    union = reduce(or_, joined)
    path = _path(union, time_limit / 2)
    own_paths = [] if path == NO else [_path(graph, time_limit / 2 / len(joined))
                                       for graph in joined]
    reaches_all = connected_components(union.to_scipy(), connection='strong')[0] == 1
    return Certificate(
        num_tokens=n, num_layers=len(graphs), num_heads=len(every),
        density=sum(graph.num_edges for graph in every) / (pairs * len(every)),
        layers_to_reach_all=int(enough[0]) + 1 if len(enough) else None,
        reached=float(reach[-1] / whole), unread=int((~read).sum()), self_loops=self_loops,
        hamiltonian_path=path, layers_with_path=own_paths.count(YES),
        universal=path if self_loops and reaches_all else NO,
        density_of_head=np.array([graph.num_edges / pairs for graph in every]),
        **{f'{name}_of_head': np.array([head[name] for head in alone]) for name in alone[0]})


def _path(graph: BipartiteGraph, seconds: float) -> str:
    if graph.num_queries > MAX_PATH_TOKENS:
        return NOT_DECIDED
    exists = hamiltonian_path(graph, time_limit=seconds).exists
    return NOT_DECIDED if exists is None else YES if exists else NO


def _of_head(graph: BipartiteGraph, whole: float) -> dict[str, float]:
    _, reach, _ = layers_to_reach_all([graph.with_self_loops()], MAX_HOPS)
    settled = reach == reach[-1]
    hops = float(settled.argmax()) + 1
    eigenvalues = Laplacian(symmetrize(graph.to_scipy(), 'union')).all().values
    attention = uniform_attention(graph, keyless='stay').toarray()
    between = graph.without_self_loops()
    both_ways = between & between.transpose()
    return {'hops': np.nan if len(reach) == MAX_HOPS and not settled[-2:].all() else hops,
            'reached': float(reach[-1] / whole), 'gap': _second(eigenvalues),
            'sigma': _second(np.linalg.svd(attention, compute_uv=False)),
            'one_way': 1 - both_ways.num_edges / max(between.num_edges, 1)}


def _second(values: np.ndarray) -> float:
    return float(values[1]) if len(values) > 1 else 0.


def graphs_of_heads(model: nn.Module | str | PathLike, length: int,
                    tokens: Tensor | None = None) -> list[list[BipartiteGraph]]:
    """Return the graphs along which the heads of a model attend, as a list for each layer.

    The list of a layer has a graph for each head, or a single graph if all heads share it. Layers
    with full attention are left out.

    Args:
        model: An attached model, or the folder of
            :func:`graphattn.hugging_face.save_attached`.
        length (int): Number of tokens.
        tokens (Tensor, optional): Ids of at least ``length`` tokens. They are needed only for
            graphs that depend on the tokens, such as those of clusters and block models.

    Raises:
        ValueError: The folder does not contain an attached model; an encoder and a decoder are both
            attached; graphs depend on tokens, but ``tokens`` is missing or too short; or a source
            returns a soft mask instead of a graph.
    """
    # imported here, because they import torch_geometric and transformers
    from graphattn.hugging_face import load_attached
    from graphattn.sources import PatternSource
    model = model if isinstance(model, nn.Module) else load_attached(model)
    modules = {name: module for name, module in model.named_modules()
               if getattr(module, 'graph_source', None) is not None}
    sources = {name: module.graph_source for name, module in modules.items()}
    parts = {part for name in sources for part in name.split('.')}
    if {'encoder', 'decoder'} <= parts:
        raise ValueError(f"'model' must be an encoder or a decoder (got {type(model).__name__}, "
                         f"whose tokens pass through one of both); pass model.get_encoder() or "
                         f"model.get_decoder()")
    asked = {name: source for name, source in sources.items()
             if not isinstance(source, PatternSource)}
    graphs = _graphs_of_tokens(model, asked, length, tokens) if asked else {}
    ptr = torch.tensor([0, length])
    every = [graphs[name] if name in asked else source.graph(ptr)
             for name, source in sources.items()]
    return [[_allowed(of_head, module) for of_head in graph.unbatch()]  # a segment for each head
            for graph, module in zip(every, modules.values())]


def _allowed(graph: BipartiteGraph, module: nn.Module) -> BipartiteGraph:
    """Return the edges that the masks of the model leave to an attention module."""
    if getattr(module, 'is_causal', True):  # as transformers reads it
        graph = graph.causal()
    of_all = None if hasattr(module.config, 'layer_types') else getattr(module.config,
                                                                        'sliding_window', None)
    window = getattr(module, 'sliding_window', of_all)
    return graph if window is None else graph.select_edges(
        (graph.query - graph.key).abs() < window)


def read_ids(path: Path, length: int) -> Tensor:
    """Read ids of tokens from an ``.npy`` file, integers ``[sequences, tokens]`` with -1 for
    padding."""
    try:
        ids = read_array(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"'tokens' must be an .npy file of ids (got {path}: {error})") from error
    if ids.dtype.kind not in 'iu' or ids.ndim != 2:
        raise ValueError(f"'tokens' must have integers of shape [sequences, tokens] (got "
                         f"{ids.dtype} of shape {ids.shape} in {path})")
    long_enough = np.flatnonzero((ids[:, :length] >= 0).sum(1) >= length)
    if not len(long_enough):
        raise ValueError(f"'tokens' must have a sequence of {length} tokens (got at most "
                         f"{(ids >= 0).sum(1).max(initial=0)} in {path}); pass a smaller '--n'")
    return torch.from_numpy(ids[long_enough[0], :length].astype(np.int64))


@torch.no_grad()
def _graphs_of_tokens(model: nn.Module, sources: dict[str, GraphSource], length: int,
                      tokens: Tensor | None) -> dict[str, BipartiteGraph]:
    """Return the graphs that ``sources`` build from the first ``length`` tokens, by the name of the
    source."""
    if tokens is None or len(tokens) < length:
        name, source = next(iter(sources.items()))
        given = 'None' if tokens is None else f'{len(tokens)} tokens'
        raise ValueError(f"'tokens' must be ids of at least {length} tokens, because the graphs of "
                         f"{type(source).__name__} in {name} depend on the tokens (got {given})")
    graphs: dict[str, BipartiteGraph] = {}
    hooks = [source.register_forward_hook(
        lambda _, args, graph, name=name: graphs.setdefault(name, graph))
        for name, source in sources.items()]
    was_training = model.training
    options = {'use_cache': False} if getattr(model.config, 'use_cache', None) else {}
    try:
        model.eval()(input_ids=tokens[None, :length], **options)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    for name, graph in graphs.items():
        if not isinstance(graph, BipartiteGraph):
            raise ValueError(f"'model' must have sources of graphs (got {type(graph).__name__} of "
                             f"{type(sources[name]).__name__} in {name}); freeze soft masks")
    return graphs
