"""Attention along graphs in Hugging Face's models."""

from graphattn.hugging_face.attaching import attach, detach
from graphattn.hugging_face.attachment import Attachment
from graphattn.hugging_face.attention import graph_attention
from graphattn.hugging_face.lazy_mask import LazyMask

__all__ = ['Attachment', 'LazyMask', 'attach', 'detach', 'graph_attention']
