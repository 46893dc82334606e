"""Heads that have lost their edges."""

from __future__ import annotations

from torch import nn

from graphattn.sources import BlockModelSource, LearnedMaskSource

KEPT = 0.1


def heads_without_edges(model: nn.Module, density: dict[str, float]) -> list[str]:
    r"""Return the heads that keep (almost) no edges but those that training draws to explore.

    Of a block model these are the heads whose density without exploration is at most
    :math:`0.1 \, \delta`, so that in training at least ten of eleven edges are drawn blindly; with
    :math:`\delta = 0` the empty ones. For a learned mask, heads without a value that is on. Fixed
    edges count as kept, and heads of patterns lose nothing.

    Args:
        model (nn.Module): What is trained; its layers have sources of one kind, or share one.
        density (dict): By place, ``layer0/head1``, as outside of training, where nothing explores.

    Returns:
        list of the places.
    """
    sources = [module for module in model.modules()
               if isinstance(module, BlockModelSource | LearnedMaskSource)]
    return [place for place, value in density.items()
            if sources and _is_lost(sources, place, value)]


def _is_lost(sources: list[BlockModelSource | LearnedMaskSource], place: str,
             density: float) -> bool:
    # All layers, or all heads, that have their graph in common are called so and have one source.
    layer, head = (int(name.removeprefix(kind)) if name.startswith(kind) else 0
                   for kind, name in zip(('layer', 'head'), place.split('/')))
    source = sources[layer]
    if isinstance(source, BlockModelSource):
        return density <= KEPT * source.exploration
    return source.mode != 'soft' and not bool((source.logit[head] > 0).any())
