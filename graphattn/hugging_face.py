"""Attention along graphs in Hugging Face's models."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from graphattn._checks import check_kind, check_size, is_float
from graphattn._tensors import is_autocast, is_one
from graphattn.functional.recursion import is_one_hop
from graphattn.graphs.graph import BipartiteGraph
from graphattn.layers.learned_teleport import check_diffusion, teleport_parameter
from graphattn.layers.padded import (
    PairRules,
    attend_padded,
    warn_of_zeros_and_ones,
)
from graphattn.ops import check_backend
from graphattn.patterns import Full, Pattern
from graphattn.placement.padded import PaddedTokens
from graphattn.sources import GraphSource, PatternSource, as_source
from graphattn.sources.base import copy_beside, place_beside

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ['Attachment', 'LazyMask', 'attach', 'detach', 'graph_attention']

NAME = 'graphattn'  # among transformers' implementations of attention
# For models that had 'eager' before; their own code adds masks to logits.
NAME_FOR_EAGER = 'graphattn_eager'
OLDEST = '5.17'  # earlier versions make masks and pass chosen keys in other ways
# Arguments of a model's attention that graphs do not support.
REFUSED = {
    'sinks': 'sink of its own for each query',
    'block_indices': 'blocks of keys',
    'cache': 'paged cache',
    'cu_seq_lens_q': 'packed sequences',
}
# Added to logits for padding: -10,000 in BERT's first code and in models derived from it.
PADDING_BELOW = -9_000
# Names of arguments with the hidden states of keys; the hidden states of queries come first.
OF_KEYS = ('key_value_states', 'encoder_hidden_states', 'cross_attention_states', 'key', 'keys',
           'k', 'key_tensor', 'context', 'context_hidden_states')
OF_CACHE = 'past_key_values', 'layer_past'
_LOOKS_CROSS = re.compile(r'cross|encdec|encoder_attn', re.IGNORECASE)


@dataclass
class Attachment:
    """State of a module of an attached model.

    Args:
        before (dict): The config's implementation of attention before, under ``''``, and those of
            nested configs, under their names.
        attends (bool): Whether the module attends along edges now.
        backend (str): Kernel for graphs.
        is_named (bool): Whether ``layers`` names it, so that cross-attention is replaced too.
        noticing (RemovableHandle, optional): Handle of the hook that sets the next two at each
            call.
        has_other_keys (bool): Whether keys were computed from other hidden states than queries.
        has_cache (bool): Whether it was called with a cache.
        hops (int or float): Number of hops that values travel.
        teleport (float or sequence of float): The teleport, or its initial value if it is learned.
    """

    before: dict[str, Any]
    attends: bool = False
    backend: str = 'auto'
    is_named: bool = False
    noticing: RemovableHandle | None = None
    has_other_keys: bool = False
    has_cache: bool = False
    hops: int | float = 1
    teleport: float | Sequence[float] = 0.

    @property
    def adds_masks(self) -> bool:
        """Return whether the previous attention adds masks to logits."""
        return self.before[''] == 'eager'


def attach(
    model: PreTrainedModel, along: GraphSource | Pattern | str | None, *,
    layers: Sequence[int | str] | None = None, backend: str = 'auto', hops: int | float = 1,
    teleport: float | Sequence[float] = 0., learn_teleport: bool = False,
) -> PreTrainedModel:
    """Replace the attention of a transformers model by attention along graphs, in place.

    The model keeps its queries, keys and values, rotary embeddings, caches and heads. It also keeps
    its masks: a query attends along an edge of the source only if the mask allows it. Padding, left
    or right, is removed first, so that patterns start at the first token of each sequence; the
    output for padding is 0.

    The model gets a copy of its config, because other models may share the original.

    Each attention module gets a copy of the source with new parameters as its submodule
    ``graph_source``, which is trained, saved and loaded with the model. To load, attach first. In
    families whose weights transformers renames on saving, such as ViT, save with
    ``save_pretrained(folder, save_original_format=False)``.

    ==========================  ====================================================================
    feature of the model        support
    ==========================  ====================================================================
    padding                     left, right or in between, by a mask of two dimensions, or of four
                                that is the same for all heads and queries, ``[batch, 1, 1, keys]``
    masks                       causal masks, windows and chunks, evaluated on the edges only; masks
                                of four dimensions, boolean or added to logits, read on the edges
    packed sequences            with ``position_ids``: separated by the model's mask, but a pattern
                                treats them as one sequence, for example for global tokens; with
                                ``cu_seq_lens_q``: an error
    ``position_bias``           read on the edges, with its gradient
    ``indices``                 define the edges (``BipartiteGraph.from_topk``); ``along`` is
                                ``None``
    ``torch.compile``           the same results, with a graph break at each attention
    continuous batching         not supported by transformers for other implementations of attention
    cache                       rows of the pattern from the decoded position on. Patterns whose
                                rows depend on the length, such as random keys, change as a sequence
                                grows; cached tokens then belong to shorter graphs
    ``output_attentions``       dense weights, 0 where there is no edge
    fewer heads of keys         not repeated, unless heads own a graph each
    ``softcap``, ``s_aux``      applied; ``sinks`` of each query: an error
    cross-attention             recognised in a call by separate hidden states for keys, or by
                                lengths that no cache explains. It is not replaced, with a warning,
                                unless ``layers`` names its module
    custom attention code       not replaced, with a warning; it gets the same masks as before
    ==========================  ====================================================================

    Args:
        model (PreTrainedModel): A model with attention that uses transformers'
            ``AttentionInterface``.
        along (GraphSource, Pattern, str or None): A source, a pattern, its expression
            (``'SlidingWindow(64) | GlobalTokens(1)'``) or the name of a preset (``'bigbird'``).
            ``None`` is for models that choose their own keys and pass ``indices``.
        layers (sequence, optional): Indices of self-attention modules in the order of
            ``model.modules()``, or names of attention modules. If omitted, all self-attention. In
            named cross-attention, query i of a pattern is at the position of key i.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.
        hops (int or float): Number of hops that values travel along the edges, as in
            :class:`graphattn.layers.GraphAttention`. Several hops, or a teleport, are not available
            with a cache or in cross-attention.
        teleport (float or sequence of float): Share of its own value that a token keeps at each
            hop, one for all hops or one for each.
        learn_teleport (bool): Whether each head of each attention module learns its own teleport,
            the sigmoid of the parameter ``graph_teleport_logit``; ``teleport`` is the initial
            value.

    Returns:
        The model.

    Raises:
        ImportError: transformers is missing or too old, or the backend lacks a package.
        TypeError: An argument is of the wrong type.
        ValueError: The model's attention cannot be replaced or is only cross-attention, a layer is
            unknown or attached already, the backend is unknown, the source requires another number
            of heads, or ``hops`` and ``teleport`` do not fit.

    Example:
        >>> import torch
        >>> from graphattn.hugging_face import attach
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> _ = attach(bert, 'SlidingWindow(4) | GlobalTokens(1)')
        >>> tokens = torch.randint(100, (2, 40))
        >>> padding = torch.arange(40) < torch.tensor([[40], [25]])
        >>> bert(tokens, attention_mask=padding).last_hidden_state.shape
        torch.Size([2, 40, 32])
    """
    _register()
    check_backend(backend)
    check_diffusion(hops, teleport, learn_teleport)
    source = None if along is None else _as_source(along)
    if source is None and not is_one_hop(hops, teleport):
        raise ValueError(f"'hops' must be 1, without teleport, if the model chooses the keys of "
                         f"its queries (got {hops} with 'along' None)")
    modules = _attention_modules(model)
    chosen = _choose(modules, layers)
    for name in chosen:
        _check_heads(source, name, modules[name], learn_teleport)
    if layers is None:
        _warn_of_rest(model, modules, len(modules) - len(chosen))
    _own_configs(model)
    for module in _configured(model):
        if not hasattr(module, 'graph_attachment'):
            module.graph_attachment = Attachment(_implementations(module.config))
    for name in chosen:
        module = modules[name]
        module.graph_attachment.attends, module.graph_attachment.backend = True, backend
        module.graph_attachment.hops, module.graph_attachment.teleport = hops, teleport
        module.graph_attachment.is_named = name in (layers or ())
        module.graph_attachment.noticing = module.register_forward_pre_hook(_notice_keys,
                                                                            with_kwargs=True)
        if source is not None:
            module.graph_source = copy_beside(source, module, model)
        if learn_teleport:
            module.graph_teleport_logit = teleport_parameter(teleport, _heads(module),
                                                             *place_beside(module, model))
    for module in _configured(model):
        module.config._attn_implementation = _along_graphs(module.graph_attachment.before)
    return model


def detach(model: PreTrainedModel) -> PreTrainedModel:
    """Restore the attention that a model had before :func:`attach`, and remove its sources.

    Args:
        model (PreTrainedModel): An attached model.

    Returns:
        The model.

    Raises:
        ValueError: The model is not attached.
    """
    check_kind('model', model, nn.Module)
    attached = [module for module in model.modules() if hasattr(module, 'graph_attachment')]
    if not attached:
        raise ValueError("'model' must be attached to be detached; see attach")
    for module in attached:  # outer modules first, because their configs set those of inner ones
        module.config._attn_implementation = module.graph_attachment.before
        if module.graph_attachment.noticing is not None:
            module.graph_attachment.noticing.remove()
        del module.graph_attachment
        if hasattr(module, 'graph_source'):
            del module.graph_source
        if hasattr(module, 'graph_teleport_logit'):
            del module.graph_teleport_logit
    return model


def _as_source(along: GraphSource | Pattern | str) -> GraphSource:
    if not isinstance(along, GraphSource | Pattern | str):
        raise TypeError(f"'along' must be a GraphSource, a Pattern, an expression of a pattern or "
                        f"None (got {type(along).__name__})")
    return as_source(along)


@cache
def _register() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"graphattn.hugging_face needs transformers: pip install "
                          f"'transformers>={OLDEST}'") from error
    from packaging.version import Version  # a dependency of transformers
    if Version(transformers.__version__).release < Version(OLDEST).release:
        raise ImportError(f"graphattn.hugging_face needs transformers {OLDEST} or later (got "
                          f"{transformers.__version__}): pip install -U "
                          f"'transformers>={OLDEST}'")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    for name, mask in ((NAME, lazy_mask), (NAME_FOR_EAGER, lazy_mask_of_logits)):
        AttentionInterface.register(name, graph_attention)
        AttentionMaskInterface.register(name, mask)


# Modules of a model ####################################################################


def _attention_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return by name the modules that look up their attention in transformers' interface."""
    from transformers import PreTrainedModel
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"'model' must be a transformers PreTrainedModel (got "
                        f"{type(model).__name__}); unwrap a wrapped model, for example with PEFT's "
                        f"get_base_model(); for torch's own modules use "
                        f"graphattn.layers.from_torch")
    found = {name: module for name, module in model.named_modules() if _asks(type(module))}
    if not found:
        raise ValueError(f"'model' must have attention that goes through transformers' "
                         f"AttentionInterface (got {type(model).__name__}, which has none); use a "
                         f"model that has, such as BERT or Llama")
    return found


@cache
def _asks(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, '__code__', None)
    names = () if code is None else code.co_names
    # Code that looks up names by getattr only does not find registered implementations.
    return 'ALL_ATTENTION_FUNCTIONS' in names and ('get_interface' in names
                                                   or 'getattr' not in names)


def _configured(model: PreTrainedModel) -> list[nn.Module]:
    """Return all modules with a config that names an implementation of attention, outer ones
    first."""
    from transformers import PreTrainedModel
    return [module for module in model.modules()
            if isinstance(module, PreTrainedModel) or _asks(type(module))]


def _own_configs(model: PreTrainedModel) -> None:
    """Copy the configs, because other models may share them; sharing within the model is kept."""
    from transformers import PreTrainedConfig
    copied: dict[int, object] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, copied))


def _implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the implementations of a config and its nested configs, in the form of its setter."""
    inner = {name: getattr(config, name, None) for name in config.sub_configs}
    return {'': config._attn_implementation, **{
        name: _implementations(part) for name, part in inner.items() if part is not None}}


def _along_graphs(before: dict[str, Any]) -> dict[str, Any]:
    return {name: _along_graphs(part) if isinstance(part, dict) else
            NAME_FOR_EAGER if part == 'eager' else NAME for name, part in before.items()}


def _looks_cross(name: str, module: nn.Module) -> bool:
    """Return whether a module is probably cross-attention; only its calls are certain."""
    return bool(getattr(module, 'is_cross_attention', False)
                or _LOOKS_CROSS.search(f'{name.rpartition(".")[2]} {type(module).__name__}')
                or 'crossattention' in name)


def _warn_of_rest(model: PreTrainedModel, modules: dict[str, nn.Module], num_cross: int) -> None:
    if num_cross:
        warnings.warn(f"{num_cross} modules of cross-attention are not replaced, because positions "
                      f"in two sequences do not correspond; name them in 'layers' to attach them",
                      stacklevel=3)
    kinds = _with_own_attention(model, modules)
    if kinds:
        warnings.warn(f"{', '.join(kinds)} are not replaced, because their attention does not go "
                      f"through transformers' AttentionInterface", stacklevel=3)


def _with_own_attention(model: PreTrainedModel, modules: dict[str, nn.Module]) -> list[str]:
    """Return the names of attention classes that only have custom code."""
    around = {part for name in modules for part in accumulate(name.split('.'), '{}.{}'.format)}
    kinds = {type(module).__name__ for name, module in model.named_modules()
             if name not in around and modules.keys().isdisjoint(
                 accumulate(name.split('.'), '{}.{}'.format))}
    return sorted(kind for kind in kinds if 'Attention' in kind)


def _choose(modules: dict[str, nn.Module], layers: Sequence[int | str] | None) -> list[str]:
    own = [name for name, module in modules.items() if not _looks_cross(name, module)]
    if layers is None:
        layers = own
        if not own:
            raise ValueError(f"'model' must have self-attention that goes through transformers' "
                             f"AttentionInterface (got only cross-attention: "
                             f"{', '.join(modules)}); name modules in 'layers' to attach them")
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(f"'layers' must be a sequence of indices or names of modules (got "
                        f"{type(layers).__name__})")
    chosen = []
    for layer in layers:
        if not isinstance(layer, str):
            check_size('layers', layer, at_most=len(own) - 1)
            layer = own[layer]
        if layer not in modules:
            raise ValueError(f"'layers' names an unknown module of attention (got {layer!r}); use "
                             f"{', '.join(modules)}")
        if layer in chosen:
            raise ValueError(f"'layers' must name each module once (got {layer!r} twice)")
        if getattr(getattr(modules[layer], 'graph_attachment', None), 'attends', False):
            raise ValueError(f"'layers' must not be attached yet ({layer!r} is); detach the model "
                             f"first")
        chosen.append(layer)
    return chosen


def _heads(module: nn.Module) -> int | None:
    """Return the number of heads of a module, if its config has it."""
    return getattr(module.config, 'num_attention_heads', None)


def _check_heads(source: GraphSource | None, name: str, module: nn.Module,
                 learn_teleport: bool) -> None:
    heads = _heads(module)
    if learn_teleport and heads is None:
        raise ValueError(f"'learn_teleport' must be False for {name!r}, because its config has no "
                         f"'num_attention_heads'")
    if source is None or source.heads is None:
        return
    if heads not in (None, source.heads):
        raise ValueError(f"'along' must be for {heads} heads like {name!r} (got a source for "
                         f"{source.heads})")


# Functions that transformers calls ####################################################

_COPIES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default,
           torch.ops.aten.clone.default, torch.ops.aten._to_copy.default}


class LazyMask(Tensor):
    """A mask that keeps transformers' arguments for making it instead of its values.

    Graph attention evaluates it on edges only. The values ``[batch, 1, query, key]`` are computed
    once other code reads them, such as the indexers of models that choose their own keys, or
    attention that is not attached. They are those of the model's previous implementation, 'sdpa' or
    'eager': bool, or added to logits. Copies, as checkpoints make them, and masks moved to another
    device stay lazy, because the values alone do not distinguish padding from other masking.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, *, batch_size: int, q_length: int, kv_length: int, q_offset: int = 0,
                kv_offset: int = 0, implementation: str = 'sdpa', **how: Any):
        shape = batch_size, 1, q_length, kv_length
        dtype = how.get('dtype', torch.float) if implementation == 'eager' else torch.bool
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype,
                                             device=how.get('device', 'cpu'))
        mask.how = {**how, 'batch_size': batch_size, 'q_length': q_length, 'kv_length': kv_length,
                    'q_offset': int(q_offset), 'kv_offset': kv_offset}
        mask.implementation = implementation
        mask.made: dict[str, Any] = {}
        return mask

    def __init__(self, **how: Any):
        pass  # Tensor.__init__ takes no arguments

    @classmethod
    def __torch_dispatch__(cls, func: Callable, types: Sequence[type], args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func in _COPIES and (kwargs or {}).get('dtype') in (None, args[0].dtype):
            return args[0]._copied((kwargs or {}).get('device'))
        return func(*tree_map_only(cls, cls.dense, args),
                    **tree_map_only(cls, cls.dense, kwargs or {}))

    def __repr__(self) -> str:
        return f'{type(self).__name__}{tuple(self.shape)}'

    def _copied(self, device: torch.device | None) -> LazyMask:
        if device is None or device == self.device:
            copied = LazyMask(implementation=self.implementation, **self.how)
            copied.made = self.made
            return copied
        return LazyMask(implementation=self.implementation, **tree_map_only(
            Tensor, lambda x: x.to(device), self.how) | {'device': device})

    def for_queries(self, num_queries: int) -> LazyMask:
        """Extend a mask of one query to all queries if it only masks padding."""
        if not self.is_bidirectional or self.size(2) != 1 != num_queries:
            return self
        return LazyMask(implementation=self.implementation, **self.how | {'q_length': num_queries})

    def dense(self) -> Tensor:
        """Return its values."""
        make = partial(self.made_for, self.implementation, allow_is_causal_skip=False,
                       allow_is_bidirectional_skip=False)
        if not self.how.get('use_vmap', False):
            return make()
        with ThreadPoolExecutor(1) as thread:  # torch.vmap cannot be called within a dispatch
            return thread.submit(make).result()

    def made_for(self, implementation: str, **options: bool) -> Any:
        """Return the mask that transformers makes for another implementation of attention."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        name = f'{implementation} {options}'
        if name not in self.made:
            make = ALL_MASK_ATTENTION_FUNCTIONS.get(implementation)
            self.made[name] = None if make is None else make(**{**self.how, **options})
        return self.made[name]

    def tokens(self, same_tokens: bool) -> PaddedTokens:
        """Return which slots hold tokens, computed once."""
        name = f'tokens {same_tokens}'
        if name not in self.made:
            self.made[name] = self._tokens(same_tokens, self.padding())
        return self.made[name]

    def slots(self) -> PaddedTokens:
        """Return all slots, as if each were a token."""
        return self._tokens(False, None)

    def _tokens(self, same_tokens: bool, is_token: Tensor | None) -> PaddedTokens:
        how, first_query = self.how, self.how['q_offset']
        if same_tokens and self.is_bidirectional and how.get('attention_mask') is not None:
            # An encoder with keys before its tokens, as in prefix tuning: only the padding mask
            # counts them.
            first_query = how['attention_mask'].size(-1) - how['q_length']
        return PaddedTokens(how['batch_size'], how['q_length'], how['kv_length'], self.device,
                            is_token, first_query, how['kv_offset'], same_tokens)

    @property
    def is_bidirectional(self) -> bool:
        """Return whether the mask excludes nothing but padding."""
        from transformers.masking_utils import bidirectional_mask_function
        return self.how.get('mask_function') is bidirectional_mask_function

    def padding(self) -> Tensor | None:
        """Return which positions hold a token, bool ``[batch, positions]``, or None if all do."""
        is_token = self.how.get('attention_mask')
        if is_token is None or bool(is_token.all()):
            return None
        positions = self.how['kv_offset'] + self.how['kv_length']
        is_token = is_token.bool()
        return nn.functional.pad(is_token, (0, max(positions - is_token.size(1), 0)))

    def rules(self) -> PairRules:
        """Return the rules of the mask other than padding."""
        from transformers.masking_utils import causal_mask_function
        says = self.how.get('mask_function', causal_mask_function)
        if self.is_bidirectional or says is causal_mask_function:
            return PairRules(causal=not self.is_bidirectional)
        return PairRules(allows=self._on_edges(says))

    def rules_with_padding(self) -> PairRules:
        """Return the rules of the mask, including padding."""
        rules, is_token = self.rules(), self.padding()
        if is_token is None:
            return rules
        allows = rules.allows or (lambda sequence, query, key: torch.ones_like(key, dtype=bool))
        return rules._replace(allows=lambda sequence, query, key: (
            is_token[sequence, key] & allows(sequence, query, key)))

    def _on_edges(self, says: Callable) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        def allows(sequence: Tensor, query: Tensor, key: Tensor) -> Tensor:
            where = sequence, torch.zeros_like(sequence), query, key
            if not self.how.get('use_vmap', False):
                return says(*where).expand(key.shape)
            with TransformGetItemToIndex():  # a user's function of one pair
                return torch.vmap(says)(*where)
        return allows


@torch.compiler.disable(reason='a mask without values cannot be traced')
def lazy_mask(**how: Any) -> LazyMask:
    """Make a mask; transformers calls this in place of its own functions."""
    return LazyMask(**how)


@torch.compiler.disable(reason='a mask without values cannot be traced')
def lazy_mask_of_logits(**how: Any) -> LazyMask:
    """Make a mask for code that adds it to logits."""
    return LazyMask(implementation='eager', **how)


@torch.compiler.disable(reason='the arguments of a module are recorded for the attention in it')
def _notice_keys(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    """Record before each call whether keys come from other hidden states than queries."""
    given = dict(zip(_arguments(type(module)), args)) | kwargs
    of_queries = next((x for x in given.values() if isinstance(x, Tensor)), None)
    attachment = module.graph_attachment
    attachment.has_other_keys = any(isinstance(given.get(name), Tensor) and not is_one(
        given[name], of_queries) for name in OF_KEYS)
    attachment.has_cache = any(given.get(name) is not None for name in OF_CACHE)


@cache
def _arguments(kind: type[nn.Module]) -> list[str]:
    return list(inspect.signature(kind.forward).parameters)[1:]


def _is_cross(attachment: Attachment, query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Return whether this is cross-attention: keys come from other hidden states, or have another
    length that neither a cache nor the mask explains."""
    is_told = attachment.has_cache or isinstance(mask, LazyMask)
    return attachment.has_other_keys or not is_told and query.size(2) != key.size(2)


@torch.compiler.disable(reason='the edges depend on which slots are tokens')
def graph_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0., scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the signature of transformers' ``AttentionInterface``.

    Args:
        module (nn.Module): The calling module.
        query (Tensor): ``[batch, heads, num_queries, channels]``.
        key (Tensor): ``[batch, num_kv_heads, num_keys, channels]``.
        value (Tensor): ``[batch, num_kv_heads, num_keys, value_channels]``.
        attention_mask (Tensor, optional): A :class:`LazyMask`, or a user's mask ``[batch, heads,
            num_queries, num_keys]``, where each of the first three sizes may be 1.
        dropout (float): Dropout on the weights.
        scaling (float, optional): Factor of the dot products.
        is_causal (bool, optional): Without a mask, whether to attend to no later key.
        position_bias (Tensor, optional): Added to logits, ``[batch or 1, heads, num_queries,
            num_keys]``.
        **options: Further arguments of the model, see :func:`attach`.

    Returns:
        Tensor ``[batch, num_queries, heads, value_channels]``, and the weights if requested, else
        ``None``.
    """
    attachment = getattr(module, 'graph_attachment', None)
    if attachment is None:
        raise ValueError(f"'attn_implementation' is {NAME!r}, but {type(module).__name__} has no "
                         f"graph to attend along; call graphattn.hugging_face.attach(model, along)")
    indices = options.pop('indices', None)
    is_cross = _is_cross(attachment, query, key, attention_mask)
    is_left = is_cross and attachment.attends and not attachment.is_named
    if is_left:
        _warn_of_cross(type(module).__name__)
    if indices is None and (is_left or not attachment.attends):
        return _as_before(module, attachment.before[''], (query, key, value), attention_mask,
                          dropout=dropout, scaling=scaling, is_causal=is_causal,
                          position_bias=position_bias, **options)
    _check_options(options, module, attention_mask, key)
    is_causal = not attachment.adds_masks and _is_causal(module, is_causal, attention_mask)
    attention_mask = _meant(attention_mask, query, key, is_causal, is_cross)
    source = getattr(module, 'graph_source', None)
    tokens, rules = _tokens_and_rules(attention_mask, query, key, is_cross, indices is not None)
    if position_bias is not None:
        rules = rules._replace(tables=(*rules.tables, position_bias))
    if indices is not None:
        along = _graph_of(indices, source, tokens)
    else:
        along = _source_for(source, module, is_cross, query)
    query, key, value = (_as_autocast(x).transpose(1, 2) for x in (query, key, value))
    logit = getattr(module, 'graph_teleport_logit', None)
    return attend_padded(query, key, value, along, tokens, rules, scale=scaling,
                         softcap=options.get('softcap'), sink=options.get('s_aux'),
                         dropout_p=dropout, hops=attachment.hops,
                         teleport=attachment.teleport if logit is None else logit.sigmoid(),
                         return_attention_weights=bool(options.get('output_attentions')),
                         backend=attachment.backend)


def _warn_of_cross(kind: str) -> None:
    warnings.warn(f"cross-attention of {kind} is not replaced, because positions in two sequences "
                  f"do not correspond; name its modules in 'layers' to attach it", stacklevel=3)


def _as_autocast(x: Tensor) -> Tensor:
    """Cast to the dtype of SDPA under autocast, because rotary embeddings change the dtype of
    queries and keys."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if is_autocast(x) else x


def _as_before(module: nn.Module, implementation: str, inputs: tuple[Tensor, Tensor, Tensor],
               mask: Tensor | None, **options: Any) -> tuple[Tensor, Tensor | None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    if isinstance(mask, LazyMask):
        made = mask.made_for(implementation)
        if made is None:  # the module does not know that the mask was skipped
            options['is_causal'] = _is_causal(module, options['is_causal'], mask)
        mask = made
    own = inspect.unwrap(type(module).forward).__globals__.get('eager_attention_forward')
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own)
    options = {name: value for name, value in options.items() if value is not None}
    return attend(module, *inputs, mask, **options)


def _check_options(options: dict[str, Any], module: nn.Module, mask: Tensor | None,
                   key: Tensor) -> None:
    kind = type(module).__name__
    for name, meaning in REFUSED.items():
        if options.get(name) is not None:
            raise ValueError(f"{name!r} must be None, because attention along graphs has no "
                             f"{meaning} (got {name!r} of {kind}); omit its modules from 'layers'")
    window = options.get('sliding_window')
    if mask is None and window is not None and window < key.size(2):
        raise ValueError(f"'sliding_window' must come with the model's mask, which defines the "
                         f"window (got {window} and no mask of {kind}); omit its modules from "
                         f"'layers', or attach them to a SlidingWindow and set sliding_window to "
                         f"None in the config")


def _is_causal(module: nn.Module, is_causal: bool | None, mask: Tensor | None) -> bool:
    """Return whether attention is causal without a mask. Modules that get a mask pass False, so
    their attribute ``is_causal`` decides."""
    if is_causal is None or mask is not None and not is_causal:
        return getattr(module, 'is_causal', is_causal is None)
    return is_causal


def _meant(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool,
           is_cross: bool) -> Tensor:
    """Return the mask, or the implied mask if it is missing or has another shape."""
    if mask is None or _lacks_prefix(mask, key) or _is_left_to_module(mask, is_causal):
        return _unmasked(query, key, is_causal, is_cross)
    return mask.for_queries(query.size(2)) if isinstance(mask, LazyMask) else mask


def _unmasked(query: Tensor, key: Tensor, is_causal: bool, is_cross: bool) -> LazyMask:
    """Return the implied mask of a model that passes none: no padding, and causal from the first
    key on unless there is one query."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
    (batch, _, num_queries, _), num_keys = query.shape, key.size(2)
    is_causal &= num_queries > 1 and not is_cross
    before = 0 if is_causal or is_cross else num_keys - num_queries
    says = causal_mask_function if is_causal else bidirectional_mask_function
    return LazyMask(batch_size=batch, q_length=num_queries, kv_length=num_keys, q_offset=before,
                    mask_function=says, device=query.device)


def _is_left_to_module(mask: Tensor, is_causal: bool) -> bool:
    """Return whether transformers would have made no mask and relied on the module."""
    return (isinstance(mask, LazyMask) and mask.implementation == 'sdpa'
            and mask.is_bidirectional == is_causal and mask.padding() is None
            and mask.made_for('sdpa') is None)


def _lacks_prefix(mask: Tensor, key: Tensor) -> bool:
    """Return whether the mask of an encoder without padding omits the keys before its tokens."""
    return (isinstance(mask, LazyMask) and mask.is_bidirectional and mask.size(3) < key.size(2)
            and mask.how.get('attention_mask') is None)


def _tokens_and_rules(mask: Tensor, query: Tensor, key: Tensor, is_cross: bool,
                      has_indices: bool) -> tuple[PaddedTokens, PairRules]:
    if not isinstance(mask, LazyMask):
        _check_mask(mask, query, key)
        num_queries, num_keys = query.size(2), key.size(2)
        first = 0 if is_cross else num_keys - num_queries
        same_tokens, is_token = not (is_cross or has_indices), None
        tables = mask.expand(-1, -1, num_queries, -1),
        if same_tokens and mask.shape[1:3] == (1, 1) and num_queries > 1:
            is_token, says_more = _padding(mask[:, 0, 0].expand(len(query), -1))
            tables = tables if says_more else ()
        tokens = PaddedTokens(len(query), num_queries, num_keys, query.device, is_token, first,
                              same_tokens=same_tokens)
        return tokens, PairRules(tables=tables)
    _check_padding(mask, query, key, not is_cross)
    if has_indices:
        return mask.slots(), mask.rules_with_padding()
    return mask.tokens(not is_cross), mask.rules()


def _check_mask(mask: Tensor, query: Tensor, key: Tensor) -> None:
    (batch, heads, num_queries, _), num_keys = query.shape, key.size(2)
    fits = mask.dim() == 4 and all(size in sizes for size, sizes in zip(mask.shape, (
        (1, batch), (1, heads), (1, num_queries), (num_keys,))))
    if not fits or not (mask.dtype == torch.bool or is_float(mask.dtype)):
        raise ValueError(f"'attention_mask' must be [batch, length], or "
                         f"{[batch, heads, num_queries, num_keys]}, where the first three may be "
                         f"1: boolean, True = attend, or floating and added to logits (got "
                         f"{mask.dtype} of shape {tuple(mask.shape)})")
    warn_of_zeros_and_ones('attention_mask', mask)


def _padding(mask: Tensor) -> tuple[Tensor | None, bool]:
    """Return which keys are tokens, None if all are, and whether a mask of keys also changes the
    logits of tokens."""
    is_token = mask if mask.dtype == torch.bool else ~(mask < PADDING_BELOW)
    says_more = mask.dtype != torch.bool and (mask.requires_grad or bool(mask[is_token].any()))
    return None if bool(is_token.all()) else is_token, says_more


def _check_padding(mask: LazyMask, query: Tensor, key: Tensor, same_tokens: bool) -> None:
    """Raise unless the mask marks each key as token or padding; keys that a cache has not filled
    yet are padding."""
    is_token, lengths = mask.how.get('attention_mask'), (query.size(2), key.size(2))
    if is_token is None and mask.shape[2:] != lengths:
        raise ValueError(f"the model's mask must have the {lengths[0]} queries and {lengths[1]} "
                         f"keys of its attention (got {mask.size(2)} and {mask.size(3)}); omit its "
                         f"modules from 'layers'")
    if is_token is None:
        return
    length = mask.how['q_offset'] + mask.how['q_length'] if same_tokens else key.size(2)
    fits = is_token.dim() == 2 and len(is_token) == len(key) and is_token.size(1) >= length
    if not fits or mask.size(3) != key.size(2):
        raise ValueError(f"'attention_mask' must be {[len(key), length]}, 1 at tokens and 0 at "
                         f"padding, or of four dimensions (got shape {tuple(is_token.shape)})")


def _graph_of(indices: Tensor, source: GraphSource | None, tokens: PaddedTokens) -> BipartiteGraph:
    if source is not None:
        raise ValueError(f"'along' must be None for a model that chooses its own keys and passes "
                         f"them as 'indices' (got {source})")
    return BipartiteGraph.from_topk(indices, tokens.num_keys)


def _source_for(source: GraphSource | None, module: nn.Module, is_cross: bool,
                query: Tensor) -> GraphSource:
    if source is None:
        raise ValueError(f"'along' must be a pattern or a source for {type(module).__name__}, "
                         f"which passes no edges as 'indices' (got None)")
    is_full = isinstance(source, PatternSource) and set(source.patterns) == {Full()}
    if is_cross and query.size(2) == 1 and not is_full:
        raise ValueError("'along' must be Full() for cross-attention with one query at a time, "
                         "because the position of the query is unknown; generate with "
                         "use_cache=False, or omit these modules from 'layers'")
    return source
