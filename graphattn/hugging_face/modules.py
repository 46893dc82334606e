"""Modules of a transformers model that ask for an implementation of attention, their heads, and
their state while they are attached."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from graphattn._checks import check_kind, check_size
from graphattn.functional.drive import Teleport
from graphattn.patterns import Full, Pattern
from graphattn.sources import (
    ContentClusterSource,
    GraphSource,
    HeadClusters,
    PatternSource,
)
from graphattn.sources.content_clusters import source_of_each

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NAME = 'graphattn'  # among transformers' implementations of attention
# For models that had 'eager' before; their own code adds masks to logits.
NAME_FOR_EAGER = 'graphattn_eager'
OF_HEADS = PatternSource | ContentClusterSource  # which list what each head attends along
_LOOKS_CROSS = re.compile(r'cross|encdec|encoder_attn', re.IGNORECASE)


def attention_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the modules that look up their attention in AttentionInterface, by name."""
    from transformers import PreTrainedModel
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"'model' must be a PreTrainedModel of transformers (got "
                        f"{type(model).__name__}); unwrap a PEFT model by get_base_model(), and "
                        f"convert modules of torch by graphattn.layers.from_torch")
    found = {name: module for name, module in model.named_modules() if _asks(type(module))}
    if not found:
        raise ValueError(f"'model' must have attention that calls transformers' AttentionInterface "
                         f"(got {type(model).__name__}, whose attention does not); use another "
                         f"model, such as BERT or Llama")
    return found


@cache
def _asks(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, '__code__', None)
    names = () if code is None else code.co_names
    # Code that looks up names by getattr only does not find registered implementations.
    return 'ALL_ATTENTION_FUNCTIONS' in names and ('get_interface' in names
                                                   or 'getattr' not in names)


def configured(model: PreTrainedModel) -> list[nn.Module]:
    """Return all modules whose config names an implementation of attention, outer ones first."""
    from transformers import PreTrainedModel
    return [module for module in model.modules()
            if isinstance(module, PreTrainedModel) or _asks(type(module))]


def own_configs(model: PreTrainedModel) -> None:
    """Give a model its own copies of its configs, which other models may share."""
    from transformers import PreTrainedConfig
    copied: dict[int, object] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, copied))


def implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the implementation of attention in a config under ``''``, and of nested configs."""
    # The setter config._attn_implementation accepts this form.
    inner = {name: getattr(config, name, None) for name in config.sub_configs}
    return {'': config._attn_implementation, **{
        name: implementations(part) for name, part in inner.items() if part is not None}}


def along_graphs(before: dict[str, Any] | str) -> dict[str, Any] | str:
    if isinstance(before, dict):
        return {name: along_graphs(part) for name, part in before.items()}
    return NAME_FOR_EAGER if before == 'eager' else NAME


def _looks_cross(name: str, module: nn.Module) -> bool:
    # Only a call can show it with certainty.
    return bool(getattr(module, 'is_cross_attention', False)
                or _LOOKS_CROSS.search(f'{name.rpartition(".")[2]} {type(module).__name__}')
                or 'crossattention' in name)


def warn_of_rest(model: PreTrainedModel, modules: dict[str, nn.Module], num_cross: int) -> None:
    if num_cross:
        warnings.warn(f"{num_cross} modules of cross-attention are not replaced, because positions "
                      f"in two sequences do not correspond; name them in 'layers' to attach them",
                      stacklevel=3)
    around = {part for name in modules for part in accumulate(name.split('.'), '{}.{}'.format)}
    kinds = {type(module).__name__ for name, module in model.named_modules()
             if name not in around and modules.keys().isdisjoint(
                 accumulate(name.split('.'), '{}.{}'.format))}
    if kinds := sorted(kind for kind in kinds if 'Attention' in kind):
        warnings.warn(f"{', '.join(kinds)} are not replaced, because their attention does not go "
                      f"through transformers' AttentionInterface", stacklevel=3)


def choose(modules: dict[str, nn.Module], layers: Sequence[int | str] | None) -> list[str]:
    """Return the names of the modules that ``layers`` lists, or of all self-attention."""
    own = [name for name, module in modules.items() if not _looks_cross(name, module)]
    if layers is None:
        layers = own
        if not own:
            raise ValueError(f"'model' must have self-attention that calls transformers' "
                             f"AttentionInterface (got only cross-attention: "
                             f"{', '.join(modules)}); to attach cross-attention, name its modules "
                             f"in 'layers'")
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(f"'layers' must be a sequence of indices or names of modules, such as [0, "
                        f"1] (got {type(layers).__name__})")
    chosen = []
    for layer in layers:
        if not isinstance(layer, str):
            check_size('layers', layer, at_most=len(own) - 1)
            layer = own[layer]
        if layer not in modules:
            raise ValueError(f"'layers' must contain names or indices of attention modules (got "
                             f"{layer!r}); use {', '.join(modules)}")
        if layer in chosen:
            raise ValueError(f"'layers' must contain each module only once (got {layer!r} twice)")
        chosen.append(layer)
    return chosen


def heads_of(module: nn.Module) -> int | None:
    try:
        return getattr(module.config, 'num_attention_heads', None)
    except RuntimeError:  # of a config of layers that differ in it
        return getattr(module, 'num_heads', None)


def check_heads(source: GraphSource | None, name: str, module: nn.Module,
                learn_teleport: bool) -> None:
    """Raise an error unless the module has as many heads as ``source``."""
    heads = heads_of(module)
    if learn_teleport and heads is None:
        raise ValueError(f"'learn_teleport' must be False for {name!r}, because the number of its "
                         f"heads is unknown (its config has no 'num_attention_heads')")
    if source is None or source.heads is None:
        return
    if heads not in (None, source.heads):
        raise ValueError(f"'along' must be a source for {heads} heads, the heads of {name!r} (got "
                         f"a source for {source.heads} heads)")


def check_head_numbers(heads: Sequence[int], name: str, module: nn.Module) -> tuple[int, ...]:
    """Return numbers of heads of a module as a tuple, or raise an error."""
    if isinstance(heads, str) or not isinstance(heads, Sequence):
        raise TypeError(f"'heads' must be a sequence of ints, such as [0, 2] (got "
                        f"{type(heads).__name__})")
    if heads_of(module) is None:
        raise ValueError(f"'heads' must be None for {name!r}, because its config has no "
                         f"'num_attention_heads'; omit 'heads' to attach the whole layer")
    for head in heads:
        check_size('heads', head, at_most=heads_of(module) - 1)
    if not heads or len(set(heads)) < len(heads):
        raise ValueError(f"'heads' must contain at least one head, and each head only once (got "
                         f"{list(heads)})")
    return tuple(map(int, heads))


def source_of_heads(source: GraphSource | None, heads: tuple[int, ...], module: nn.Module,
                    before: OF_HEADS | None) -> OF_HEADS:
    """Return a source in which the other heads attend along ``before``, or to all keys."""
    if not _lists_heads(source):
        raise ValueError(f"'along' must be one pattern, or a sequence of patterns with one for "
                         f"each head in 'heads' (got {type(source).__name__}, which has the "
                         f"edges of all heads already); omit 'heads'")
    if source.heads not in (None, len(heads)):
        raise ValueError(f"'along' must be one pattern, or {len(heads)} patterns, one for each "
                         f"head in 'heads' (got {source.heads} patterns)")
    patterns = [Full()] * heads_of(module) if before is None else [*before.patterns]
    if before is not None and _draws(before.patterns) and _draws(source.patterns) and (
            before.seed != source.seed):
        raise ValueError(f"'along' must have the seed {before.seed}, as the heads that are already "
                         f"attached (got the seed {source.seed})")
    seed = source.seed if before is None or _draws(source.patterns) else before.seed
    given = source.patterns if source.per_head else source.patterns * len(heads)
    for head, pattern in zip(heads, given):
        patterns[head] = pattern
    return source_of_each(patterns, seed)


def without_heads(source: GraphSource, heads: tuple[int, ...], module: nn.Module) -> OF_HEADS:
    """Return a source that differs from ``source`` only in that ``heads`` attend to all keys."""
    is_shared = isinstance(source, PatternSource) and not source.per_head
    if not _lists_heads(source) or is_shared and _draws(source.patterns):
        raise ValueError(f"'heads' must be None, because {source} is a source for all heads of the "
                         f"layer; omit 'heads' to detach the whole layer")
    patterns = [*source.patterns] * (heads_of(module) if is_shared else 1)
    for head in heads:
        patterns[head] = Full()
    return source_of_each(patterns, source.seed)


def _lists_heads(source: GraphSource | None) -> bool:
    is_causal = getattr(source, 'is_causal', False)  # which is said of all heads together
    return isinstance(source, OF_HEADS) and not is_causal


def _draws(patterns: Sequence[Pattern | HeadClusters]) -> bool:
    return any(pattern.is_random for pattern in patterns)


# The state of attached modules ########################################################


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
    if not isinstance(source, OF_HEADS):
        return {f'{type(source).__name__}({source.extra_repr()})': 'all'}
    if not source.per_head:
        return {str(source.patterns[0]): 'all'}
    heads: dict[str, list[str]] = {}
    for head, pattern in enumerate(source.patterns):
        is_attached = state.heads is None or head in state.heads
        along = str(pattern) if is_attached else 'not attached, Full() by edges'
        heads.setdefault(along, []).append(str(head))
    return {along: ', '.join(each) for along, each in heads.items()}
