"""The heads of an attached model, as a table."""

from __future__ import annotations

from torch import nn

from graphattn._checks import check_kind
from graphattn.hugging_face.modules import attention_modules
from graphattn.hugging_face.state import check_unchanged
from graphattn.sources import ContentClusterSource, PatternSource

__all__ = ['attachment']


class _Table(list):
    def __repr__(self) -> str:
        cells = [['layer', 'heads', 'along', 'hops'], *([*map(str, row.values())] for row in self)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        return '\n'.join('  '.join(map(str.ljust, line, widths)).rstrip() for line in cells)


def attachment(model: nn.Module) -> list[dict[str, object]]:
    """Return what the heads of a model attend along, as a list that prints as a table.

    Args:
        model (PreTrainedModel): A model, attached or not.

    Returns:
        list of dict: For the heads of a layer that attend along the same edges: the name of the
        layer, the numbers of the heads or ``'all'``, their pattern or source, and the hops.

    Raises:
        TypeError, ValueError: ``model`` has no attention to attach, or was changed after
            :func:`attach`, so that it would not attend along its graphs.

    Example:
        >>> from graphattn.hugging_face import attach, attachment
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> attachment(attach(bert, 'SlidingWindow(4)', layers=[0], heads=[1, 2]))
        layer                           heads  along                          hops
        encoder.layer.0.attention.self  0, 3   not attached, Full() by edges  1
        encoder.layer.0.attention.self  1, 2   SlidingWindow(radius=4)        1
        encoder.layer.1.attention.self  all    not attached, sdpa             1
    """
    check_kind('model', model, nn.Module)
    check_unchanged(model)
    return _Table({'layer': name, 'heads': heads, 'along': along, 'hops': getattr(
        getattr(module, 'graph_attachment', None), 'hops', 1)}
        for name, module in attention_modules(model).items()
        for along, heads in _heads_of(module).items())


def _heads_of(module: nn.Module) -> dict[str, str]:
    state, source = (getattr(module, f'graph_{name}', None) for name in ('attachment', 'source'))
    if state is None or not state.attends:
        own = module.config._attn_implementation if state is None else state.before['']
        return {f'not attached, {own}': 'all'}
    if source is None:
        return {'keys that the model chooses': 'all'}
    if not isinstance(source, PatternSource | ContentClusterSource):
        return {f'{type(source).__name__}({source.extra_repr()})': 'all'}
    if not source.per_head:
        return {str(source.patterns[0]): 'all'}
    heads: dict[str, list[str]] = {}
    for head, pattern in enumerate(source.patterns):
        is_attached = state.heads is None or head in state.heads
        along = str(pattern) if is_attached else 'not attached, Full() by edges'
        heads.setdefault(along, []).append(str(head))
    return {along: ', '.join(each) for along, each in heads.items()}
