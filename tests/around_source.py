"""A module around a source, as an adapter that trains a copy of it."""

from torch import nn


class AroundSource(nn.Module):
    """Has what the source has but its type, as PEFT's ``modules_to_save`` puts it around one."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__('source'), name)

    def forward(self, *args, **kwargs):
        return self.source(*args, **kwargs)
