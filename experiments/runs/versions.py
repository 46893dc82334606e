"""Versions of packages that affect the results of a run."""

import platform

import lightning as L
import torch
import torch_geometric

import graphattn


def versions() -> dict[str, str]:
    return {'python': platform.python_version(), 'graphattn': graphattn.__version__,
            'torch': torch.__version__, 'lightning': L.__version__,
            'torch_geometric': torch_geometric.__version__}
