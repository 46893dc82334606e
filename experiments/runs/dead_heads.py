"""Heads without edges of their own."""

from __future__ import annotations

from torch import nn

from graphattn.sources import BlockModelSource, LearnedMaskSource

KEPT = 0.1


def heads_without_edges(model: nn.Module, density: dict[str, float]) -> list[str]:
    r"""Return the heads that keep (almost) no edges except for exploration.

    For a block model, these are the heads whose density without exploration is at most
    :math:`0.1 \, \delta`, so that in training at least ten of eleven edges are drawn by
    exploration; with :math:`\delta = 0`, they are the empty heads. For a learned mask, they are the
    heads without a value that is on. Fixed edges count as kept; heads of patterns are never dead.

    Args:
        model (nn.Module): The trained model; its layers have sources of one kind, or share one.
        density (dict): The density of each head in evaluation, without exploration, by names such
            as ``layer0/head1``.

    Returns:
        list of str: The names of the dead heads.
    """
    sources = [module for module in model.modules()
               if isinstance(module, BlockModelSource | LearnedMaskSource)]
    return [place for place, value in density.items()
            if sources and _is_lost(sources, place, value)]


def _is_lost(sources: list[BlockModelSource | LearnedMaskSource], place: str,
             density: float) -> bool:
    # Layers or heads that share a graph have one common name and one source.
    layer, head = (int(name.removeprefix(kind)) if name.startswith(kind) else 0
                   for kind, name in zip(('layer', 'head'), place.split('/')))
    source = sources[layer]
    if isinstance(source, BlockModelSource):
        return density <= KEPT * source.exploration
    return source.mode != 'soft' and not bool((source.logit[head] > 0).any())
