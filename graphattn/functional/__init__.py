"""Functions for attention along edges. They check their arguments and choose a backend."""

from graphattn.functional.attention import (
    attention_weights,
    edge_attention,
    edge_feature_attention,
    pair_attention,
)
from graphattn.functional.diffusion import attention_diffusion, heat_teleport
from graphattn.functional.probability import edge_probability

__all__ = ['attention_diffusion', 'attention_weights', 'edge_attention',
           'edge_feature_attention', 'edge_probability', 'heat_teleport', 'pair_attention']
