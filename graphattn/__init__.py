"""Attention heads as message passing over bipartite graphs of keys and queries."""

from importlib import import_module

from graphattn.graphs.graph import BipartiteGraph

__version__ = '0.2.0'

_HOME = {
    'Encoder': 'graphattn.models',
    'attach': 'graphattn.hugging_face',
    'edge_attention': 'graphattn.functional',
    **dict.fromkeys(('GraphAttention', 'GraphTransformerConv', 'MultiheadAttention'),
                    'graphattn.layers'),
    **dict.fromkeys(('BlockModelSource', 'LearnedMaskSource', 'PatternSource'),
                    'graphattn.sources'),
}

__all__ = [
    'BipartiteGraph', 'BlockModelSource', 'Encoder', 'GraphAttention', 'GraphTransformerConv',
    'LearnedMaskSource', 'MultiheadAttention', 'PatternSource', 'attach', 'edge_attention',
]


def __getattr__(name: str) -> object:
    # Layers are imported on first use, because they import PyG, which takes seconds. Graphs do not
    # need PyG.
    if name not in _HOME:
        raise AttributeError(f"module 'graphattn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
