"""Surgery on dense Hugging Face models: data, losses, adaptation and the report."""

from experiments.surgery.adaptation import Adaptation, adapt
from experiments.surgery.losses import loss_of, mean_loss
from experiments.surgery.tokens import drawn_tokens, read_tokens

__all__ = ['Adaptation', 'adapt', 'drawn_tokens', 'loss_of', 'mean_loss', 'read_tokens']
