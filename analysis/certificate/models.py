"""Graphs of the heads of an attached model."""

from __future__ import annotations

from os import PathLike

import torch

from graphattn import BipartiteGraph
from graphattn.hugging_face import load_attached
from graphattn.sources import PatternSource


def graphs_of_heads(folder: str | PathLike, length: int) -> list[list[BipartiteGraph]]:
    """Return the graphs of all heads that attend along patterns, in a saved model: a list for each
    layer, which has a graph for each head.

    Args:
        folder: The folder of :func:`graphattn.hugging_face.save_attached`.
        length (int): Number of tokens. Graphs of models that generate are causal.

    Raises:
        ValueError: The folder is no such folder, or a source depends on the tokens.
    """
    model = load_attached(folder)
    ptr, layers = torch.tensor([0, length]), []
    is_causal = model.can_generate() and not model.config.is_encoder_decoder
    for name, module in model.named_modules():
        source = getattr(module, 'graph_source', None)
        if source is None:
            continue
        if not isinstance(source, PatternSource):
            raise ValueError(f"'folder' must contain a model with patterns, whose graphs do not "
                             f"depend on the tokens (got {type(source).__name__} in {name})")
        source = source.causal() if is_causal else source
        layers.append(source.graph(ptr).unbatch())  # a segment for each head
    return layers
