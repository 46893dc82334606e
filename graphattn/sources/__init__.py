"""Where a layer's edges come from: the one seam between tokens and graphs."""

from graphattn.sources.base import GraphSource
from graphattn.sources.block_model import BlockModelSource
from graphattn.sources.learned_mask import LearnedMaskSource
from graphattn.sources.pattern_source import PatternSource, as_source
from graphattn.sources.structure_source import StructureSource

__all__ = ['BlockModelSource', 'GraphSource', 'LearnedMaskSource', 'PatternSource',
           'StructureSource', 'as_source']
