"""Graphs of the heads of an attached model."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from graphattn import BipartiteGraph
from graphattn.hugging_face import load_attached
from graphattn.sources import GraphSource, PatternSource
from graphattn.utils.reading import read_array


def graphs_of_heads(model: nn.Module | str | PathLike, length: int,
                    tokens: Tensor | None = None) -> list[list[BipartiteGraph]]:
    """Return the graphs along which the heads of a model attend, as a list for each layer.

    The list of a layer has a graph for each head, or a single graph if all heads share it. Layers
    with full attention are left out.

    Args:
        model: An attached model, or the folder of
            :func:`graphattn.hugging_face.save_attached`.
        length (int): Number of tokens. Graphs of models that generate are causal.
        tokens (Tensor, optional): Ids of at least ``length`` tokens. They are needed only for
            graphs that depend on the tokens, such as those of clusters and block models.

    Raises:
        ValueError: The folder does not contain an attached model; graphs depend on tokens, but
            ``tokens`` is missing or too short; or a source returns a soft mask instead of a graph.
    """
    model = model if isinstance(model, nn.Module) else load_attached(model)
    sources = {name: module.graph_source for name, module in model.named_modules()
               if getattr(module, 'graph_source', None) is not None}
    asked = {name: source for name, source in sources.items()
             if not isinstance(source, PatternSource)}
    graphs = _graphs_of_tokens(model, asked, length, tokens) if asked else {}
    ptr = torch.tensor([0, length])
    every = [graphs[name] if name in asked else source.graph(ptr)
             for name, source in sources.items()]
    if model.can_generate() and not model.config.is_encoder_decoder:
        every = [graph.causal() for graph in every]
    return [graph.unbatch() for graph in every]  # a segment for each head


def read_ids(path: Path, length: int) -> Tensor:
    """Read ids of tokens from an ``.npy`` file, integers ``[sequences, tokens]`` with -1 for
    padding. Return the first ``length`` tokens of the first sequence with at least ``length``
    tokens.

    Raises:
        ValueError: The file is missing or has other contents, or all sequences are too short.
    """
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
    source. To build them, ``model`` reads the tokens once."""
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
