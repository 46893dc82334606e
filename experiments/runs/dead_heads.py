"""Heads that attend along no edges of their own."""

from __future__ import annotations

from torch import nn

from graphattn.layers import GraphAttention
from graphattn.sources import BlockModelSource, LearnedMaskSource

KEPT = 0.1
LEARNED = BlockModelSource, LearnedMaskSource


def heads_without_edges(model: nn.Module, density: dict[str, float]) -> list[str]:
    r"""Return the names of the heads that have lost nearly all of their edges, beside those of
    exploration.

    In a block model with exploration :math:`\delta`, their density without exploration is at most
    :math:`0.1 \, \delta`; in a learned mask, they keep no pair. Fixed edges count as kept.
    """
    learned = [module for module in model.modules() if isinstance(module, LEARNED)]
    # The source of each layer. Attached models have other layers, and one kind of sources.
    sources = [next((part for part in layer.source.modules() if isinstance(part, LEARNED)), None)
               for layer in model.modules()
               if isinstance(layer, GraphAttention) and layer.source is not None] or learned
    return [place for place, value in density.items()
            if learned and _is_lost(sources, place, value)]


def _is_lost(sources: list[BlockModelSource | LearnedMaskSource | None], place: str,
             density: float) -> bool:
    # Layers or heads that share a graph have one name and one source in common.
    layer, head = (int(name.removeprefix(kind)) if name.startswith(kind) else 0
                   for kind, name in zip(('layer', 'head'), place.split('/')))
    source = sources[layer]
    if isinstance(source, BlockModelSource):
        return density <= KEPT * source.exploration
    return (source is not None and source.mode != 'soft'
            and not bool((source.logit[head] > 0).any()))
