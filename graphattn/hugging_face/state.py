"""State of an attached module, and the heads of an attached model as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphattn._checks import check_kind
from graphattn.functional.drive import Teleport
from graphattn.hugging_face.modules import along_graphs, attention_modules
from graphattn.sources import ContentClusterSource, PatternSource

__all__ = ['Attachment', 'attachment', 'check_unchanged', 'diffusion_of']


@dataclass
class Attachment:
    """The state of one module of a model to which graphs are attached."""

    # Implementations of attention, such as 'sdpa', before: that of the module's config under '',
    # and those of nested configs under their names.
    before: dict[str, Any]
    attends: bool = False  # along edges, now
    backend: str = 'auto'
    is_named: bool = False  # by 'layers'; cross-attention is replaced only then
    noticing: tuple[RemovableHandle, ...] = ()  # forward hooks that record facts about each call
    layers: dict[str, nn.Module] = field(default_factory=dict, repr=False)  # inside, that attend
    has_other_keys: bool = False  # than the hidden states of queries, in the present call
    has_cache: bool = False  # in the present call
    has_decoded: bool = False  # a call has continued a cache, so a warning was issued if due
    heads: tuple[int, ...] | None = None  # that attend along the source; others to all keys
    watch: Callable[..., Tensor] | None = None  # called in place of layers.padded.attend_padded
    hops: int | float = 1
    teleport: float | Sequence[float] = 0.  # the initial value if it is learned

    @property
    def adds_masks(self) -> bool:
        """Return whether the original attention of the module adds masks to logits."""
        return self.before[''] == 'eager'

    def check(self, module: nn.Module) -> None:
        """Raise an error if ``module``, whose state this is, would attend otherwise than before."""
        if self.attends and module.config._attn_implementation != along_graphs(self.before['']):
            raise _changed(f'{type(module).__name__} has the attn_implementation '
                           f'{module.config._attn_implementation!r}')
        for name, layer in self.layers.items():
            now = module
            for part in name.split('.') if name else ():
                now = getattr(now, part, None)
            # A copy of a layer is attached too, and a layer may be left out, or detached.
            if now is not None and now is not layer and not hasattr(now, 'graph_attachment'):
                raise _changed(f'{name!r} is another module without a graph')


def _changed(how: str) -> ValueError:
    return ValueError(f"'model' must attend along its graphs, but was changed after attach (got a "
                      f"model in which {how}); call detach(model), and attach it again")


def check_unchanged(model: nn.Module) -> None:
    """Raise a ``ValueError`` if a forward pass of ``model`` would not attend along its graphs."""
    for module in model.modules():
        if hasattr(module, 'graph_attachment'):
            module.graph_attachment.check(module)


def diffusion_of(module: nn.Module) -> tuple[int | float, Teleport]:
    """Return the hops and the teleport of an attached module."""
    attachment, logit = module.graph_attachment, getattr(module, 'graph_teleport_logit', None)
    return attachment.hops, attachment.teleport if logit is None else logit.sigmoid()


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
