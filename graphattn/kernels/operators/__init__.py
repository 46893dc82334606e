"""The operators that kernels are made of: what they take and give, and their gradients.

Whatever is the same on every device is written here once, for autograd, ``torch.compile`` and
tensors without numbers. A device brings its implementation with
``torch.library.register_kernel``, as :mod:`graphattn.kernels.cpu` does. Arguments arrive validated.
"""

from graphattn.kernels.operators.attention import edge_attention, edge_dot
from graphattn.kernels.operators.diffusion import (
    attention_diffusion,
    attention_weights,
    diffused_attention,
    sum_to_keys,
    weighted_sum,
)

__all__ = ['attention_diffusion', 'attention_weights', 'diffused_attention', 'edge_attention',
           'edge_dot', 'sum_to_keys', 'weighted_sum']
