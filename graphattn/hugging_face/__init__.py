"""Attention along graphs in Hugging Face's models."""

from graphattn.hugging_face.attaching import attach, attached, detach
from graphattn.hugging_face.fitting import Fit, fit, fit_to_loss, head_costs
from graphattn.hugging_face.modules import attachment
from graphattn.hugging_face.profiling import Profile, profile
from graphattn.hugging_face.saving import load_attached, save_attached
from graphattn.hugging_face.sharding import TokenModel

__all__ = ['Fit', 'Profile', 'TokenModel', 'attach', 'attached', 'attachment', 'detach', 'fit',
           'fit_to_loss', 'head_costs', 'load_attached', 'profile', 'save_attached']
