"""The steps of the command ``sparsify``, which makes dense Hugging Face models attend along graphs:
data, losses, training and the report."""

from experiments.surgery.adaptation import Adaptation, adapt, check_lora, with_adapters
from experiments.surgery.losses import loss_of, mean_loss
from experiments.surgery.tokens import drawn_tokens, read_tokens

__all__ = ['Adaptation', 'adapt', 'check_lora', 'drawn_tokens', 'loss_of', 'mean_loss',
           'read_tokens', 'with_adapters']
