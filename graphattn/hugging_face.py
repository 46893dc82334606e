"""Hugging Face's models on our graphs."""

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
# The same for models that had 'eager' before, whose own code adds masks to logits.
NAME_FOR_EAGER = 'graphattn_eager'
OLDEST = '5.17'  # before it masks are made, and chosen keys handed over, in other ways
# What a model may hand over to say more of its attention than graphs can do.
REFUSED = {
    'softcap': 'bound on the logits',
    's_aux': "sinks, which take part of each query's weight",
    'sinks': "sinks, which take part of each query's weight",
    'block_indices': 'blocks of keys',
    'cache': 'paged cache',
    'cu_seq_lens_q': 'packed sequences',
}
# Of what is added to logits: BERT's first code barred padding by -10,000, and its kin still do.
PADDING_BELOW = -9_000
# Arguments of attention modules that are hidden states of keys; those of queries come first.
OF_KEYS = ('key_value_states', 'encoder_hidden_states', 'cross_attention_states', 'key', 'keys',
           'k', 'key_tensor', 'context', 'context_hidden_states')
OF_CACHE = 'past_key_values', 'layer_past'
_LOOKS_CROSS = re.compile(r'cross|encdec|encoder_attn', re.IGNORECASE)


@dataclass
class Attachment:
    """State of a module of an attached model.

    Args:
        before (dict): The implementation of attention that its config named, under ``''``, and
            those that the configs in it named, under their names.
        attends (bool): Whether it attends along edges now.
        backend (str): Its kernel.
        is_named (bool): Whether it does so between two sequences, too.
        noticing (RemovableHandle, optional): Of the hook that notices the following at each call.
        has_other_keys (bool): Whether it was called with other hidden states for its keys.
        has_cache (bool): Whether it was called with a cache.
        hops (int or float): How many hops values travel in it.
        teleport (float or sequence of float): Where the teleport begins, if that is learned.
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
        """Return whether the attention before only knows masks that are added to logits."""
        return self.before[''] == 'eager'


def attach(
    model: PreTrainedModel, along: GraphSource | Pattern | str | None, *,
    layers: Sequence[int | str] | None = None, backend: str = 'auto', hops: int | float = 1,
    teleport: float | Sequence[float] = 0., learn_teleport: bool = False,
) -> PreTrainedModel:
    """Let the attention of a transformers model flow along graphs, in place.

    Queries, keys and values, rotary embeddings, caches and heads stay the model's own. Its masks
    stay too, as far as they are more than padding: an edge is followed if the source has it and
    the mask lets it through. Padding is taken out on whichever side it stands, so that a pattern
    sees every sequence from its first token on; the output for padding is 0.

    The model's config becomes a copy, for another model may have been made of the same.

    A source becomes a submodule of each attention module, ``graph_source``, with parameters of
    its own, drawn anew: they train, save and load with the model. To load, attach first. Families
    whose weights transformers renames when it saves them, such as ViT, are saved for that by
    ``save_pretrained(folder, save_original_format=False)``.

    ==========================  ====================================================================
    of the model                what is done
    ==========================  ====================================================================
    padding                     left, right or in between, by a mask of two dimensions, or of four
                                that is the same for all heads and queries, ``[batch, 1, 1, keys]``
    masks                       causal, windows and chunks on the edges alone; of four dimensions,
                                boolean or added to logits, by looking them up
    packed sequences            by ``position_ids``: kept apart by the model's mask, while a pattern
                                has its places, such as global tokens, in all of them together; by
                                ``cu_seq_lens_q``: refused
    ``position_bias``           looked up on the edges, with its gradient
    ``indices``                 are the edges (``BipartiteGraph.from_topk``); ``along`` is ``None``
    ``torch.compile``           the same numbers; compiled code breaks at each attention
    continuous batching         is refused by transformers, which knows the names that it takes
    cache                       rows of the pattern from the position on that is decoded. Patterns
                                whose rows depend on the length, as random keys do, change as a
                                sequence grows; then cached tokens are those of shorter graphs
    ``output_attentions``       dense weights, 0 where there is no edge
    fewer heads of keys         are not repeated, unless heads own a graph each
    ``softcap``, ``s_aux``      refused
    two sequences               attention between them is told by its call: by hidden states of its
                                own for the keys, or by lengths that no cache accounts for. It stays
                                as it is, with a warning, unless ``layers`` names its module
    attention of its own code   stays as it is, with a warning, and is given the masks that it was
                                given before
    ==========================  ====================================================================

    Args:
        model (PreTrainedModel): With attention that goes through transformers'
            ``AttentionInterface``.
        along (GraphSource, Pattern, str or None): What to attend along: a source, a pattern, its
            expression (``'SlidingWindow(64) | GlobalTokens(1)'``) or the name of a preset
            (``'bigbird'``). ``None`` is for models that choose their own keys and hand over
            ``indices``.
        layers (sequence, optional): Numbers of self-attention modules, counted from 0 in the order
            of ``model.modules()``, or names of attention modules. If omitted, all self-attention.
            Attention between two sequences that is named goes along a pattern in which query i sits
            at key position i.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.
        hops (int or float): How many hops values travel along the edges, as in
            :class:`graphattn.layers.GraphAttention`. With more than one, or with a teleport,
            queries behind a cache and those of another sequence are refused.
        teleport (float or sequence of float): Share of its own value that a token keeps at each
            hop, one for all hops or one for each.
        learn_teleport (bool): Every head of each attention module learns a teleport of its own, the
            sigmoid of its parameter ``graph_teleport_logit``; ``teleport`` is where it begins.

    Returns:
        The model.

    Raises:
        ImportError: transformers is missing or too old, or the backend lacks a package.
        TypeError: An argument is of the wrong type.
        ValueError: The model's attention cannot be replaced or is between two sequences alone, a
            layer is unknown or attached already, the backend is unknown, the source is for another
            number of heads, or ``hops`` and ``teleport`` do not fit.

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
        raise ValueError(f"'hops' must be 1, without a teleport, for a model that chooses the keys "
                         f"of its queries (got {hops} with 'along' None)")
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
    """Give a model back the attention that it had before :func:`attach`, and drop its sources.

    Args:
        model (PreTrainedModel): As :func:`attach` has left it.

    Returns:
        The model.

    Raises:
        ValueError: It is not attached.
    """
    check_kind('model', model, nn.Module)
    attached = [module for module in model.modules() if hasattr(module, 'graph_attachment')]
    if not attached:
        raise ValueError("'model' must be attached to be detached; see attach")
    for module in attached:  # outer ones first, whose configs set those of inner ones
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
        raise TypeError(f"'along' must be a GraphSource, a Pattern, the expression of one or None "
                        f"(got {type(along).__name__})")
    return as_source(along)


@cache
def _register() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"graphattn.hugging_face needs transformers: pip install "
                          f"'transformers>={OLDEST}'") from error
    from packaging.version import Version  # which transformers brings
    if Version(transformers.__version__).release < Version(OLDEST).release:
        raise ImportError(f"graphattn.hugging_face needs transformers {OLDEST} or later (got "
                          f"{transformers.__version__}): pip install -U "
                          f"'transformers>={OLDEST}'")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    for name, mask in ((NAME, lazy_mask), (NAME_FOR_EAGER, lazy_mask_of_logits)):
        AttentionInterface.register(name, graph_attention)
        AttentionMaskInterface.register(name, mask)


# What a model consists of ##############################################################


def _attention_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the modules that ask transformers for an implementation of attention, by their
    names."""
    from transformers import PreTrainedModel
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"'model' must be a transformers PreTrainedModel (got "
                        f"{type(model).__name__}); of one that is wrapped, give what is inside, as "
                        f"PEFT's get_base_model() does; for torch's own modules there is "
                        f"graphattn.layers.from_torch")
    found = {name: module for name, module in model.named_modules() if _asks(type(module))}
    if not found:
        raise ValueError(f"'model' must have attention that goes through transformers' "
                         f"AttentionInterface, and {type(model).__name__} has none that does; load "
                         f"the weights into a model that has, such as BERT or Llama")
    return found


@cache
def _asks(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, '__code__', None)
    names = () if code is None else code.co_names
    # What getattr looks up there is never found.
    return 'ALL_ATTENTION_FUNCTIONS' in names and ('get_interface' in names
                                                   or 'getattr' not in names)


def _configured(model: PreTrainedModel) -> list[nn.Module]:
    """Return all whose config names an implementation of attention, outer ones first."""
    from transformers import PreTrainedModel
    return [module for module in model.modules()
            if isinstance(module, PreTrainedModel) or _asks(type(module))]


def _own_configs(model: PreTrainedModel) -> None:
    """Copy the configs, because other models may share them; modules that share one still do."""
    from transformers import PreTrainedConfig
    copied: dict[int, object] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                setattr(module, name, copy.deepcopy(value, copied))


def _implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """Return what a config and the configs in it name, in the form that its setter takes."""
    inner = {name: getattr(config, name, None) for name in config.sub_configs}
    return {'': config._attn_implementation, **{
        name: _implementations(part) for name, part in inner.items() if part is not None}}


def _along_graphs(before: dict[str, Any]) -> dict[str, Any]:
    return {name: _along_graphs(part) if isinstance(part, dict) else
            NAME_FOR_EAGER if part == 'eager' else NAME for name, part in before.items()}


def _looks_cross(name: str, module: nn.Module) -> bool:
    """Return whether it is likely to attend to another sequence; its calls tell."""
    return bool(getattr(module, 'is_cross_attention', False)
                or _LOOKS_CROSS.search(f'{name.rpartition(".")[2]} {type(module).__name__}')
                or 'crossattention' in name)


def _warn_of_rest(model: PreTrainedModel, modules: dict[str, nn.Module], num_cross: int) -> None:
    if num_cross:
        warnings.warn(f"{num_cross} modules of attention between two sequences stay as they are, "
                      f"for the places in one say nothing of those in the other; name them in "
                      f"'layers' to attach them", stacklevel=3)
    kinds = _with_own_attention(model, modules)
    if kinds:
        warnings.warn(f"{', '.join(kinds)} stay as they are, because their attention does not go "
                      f"through transformers' AttentionInterface", stacklevel=3)


def _with_own_attention(model: PreTrainedModel, modules: dict[str, nn.Module]) -> list[str]:
    """Return the names of classes of attention that have code of their own alone."""
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
            raise ValueError(f"'model' must have attention within one sequence that goes through "
                             f"transformers' AttentionInterface (got one whose modules attend to "
                             f"another sequence: {', '.join(modules)}); name them in 'layers' to "
                             f"attach them")
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise TypeError(f"'layers' must be a sequence of numbers or names of modules (got "
                        f"{type(layers).__name__})")
    chosen = []
    for layer in layers:
        if not isinstance(layer, str):
            check_size('layers', layer, at_most=len(own) - 1)
            layer = own[layer]
        if layer not in modules:
            raise ValueError(f"'layers' names an unknown module of attention (got {layer!r}); they "
                             f"are {', '.join(modules)}")
        if layer in chosen:
            raise ValueError(f"'layers' must name each module once (got {layer!r} twice)")
        if getattr(getattr(modules[layer], 'graph_attachment', None), 'attends', False):
            raise ValueError(f"'layers' must not be attached yet ({layer!r} is); detach the model "
                             f"first")
        chosen.append(layer)
    return chosen


def _heads(module: nn.Module) -> int | None:
    """Return the number of its heads, if it is told."""
    return getattr(module.config, 'num_attention_heads', None)


def _check_heads(source: GraphSource | None, name: str, module: nn.Module,
                 learn_teleport: bool) -> None:
    heads = _heads(module)
    if learn_teleport and heads is None:
        raise ValueError(f"'learn_teleport' must be False for {name!r}, whose config does not tell "
                         f"'num_attention_heads'")
    if source is None or source.heads is None:
        return
    if heads not in (None, source.heads):
        raise ValueError(f"'along' must be for {heads} heads, as {name!r} has (got a source for "
                         f"{source.heads})")


# What transformers calls ##############################################################

_COPIES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default,
           torch.ops.aten.clone.default, torch.ops.aten._to_copy.default}


class LazyMask(Tensor):
    """The mask of a pass, of which transformers has told how it would be made.

    Graph attention asks it about edges. Its numbers, ``[batch, 1, query, key]``, are formed once
    something else looks at them: the indexers of models that choose their own keys, or attention
    that is not attached. They are those of the implementation that the model had before, of 'sdpa'
    or 'eager': bool, or added to logits. A copy, which a checkpoint makes, and one on another
    device are such masks too: numbers do not tell padding from what else is barred.
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
        pass  # which Tensor has none of

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
        """Return the mask for all queries that was made for one, if it bars padding alone."""
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
        """Return the mask that another implementation of attention would have been given."""
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
            # Of keys before its tokens, as of prefix tuning, an encoder tells by its padding alone.
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
        """Return the rules of the mask besides padding."""
        from transformers.masking_utils import causal_mask_function
        says = self.how.get('mask_function', causal_mask_function)
        if self.is_bidirectional or says is causal_mask_function:
            return PairRules(causal=not self.is_bidirectional)
        return PairRules(allows=self._on_edges(says))

    def rules_with_padding(self) -> PairRules:
        """Return the rules of the mask, padding included."""
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
            with TransformGetItemToIndex():  # a user's own function, of one pair
                return torch.vmap(says)(*where)
        return allows


@torch.compiler.disable(reason='numbers that are never formed cannot be traced')
def lazy_mask(**how: Any) -> LazyMask:
    """Return the mask in the form that transformers asks for."""
    return LazyMask(**how)


@torch.compiler.disable(reason='numbers that are never formed cannot be traced')
def lazy_mask_of_logits(**how: Any) -> LazyMask:
    """Return the mask in the form that transformers asks for where code adds it to logits."""
    return LazyMask(implementation='eager', **how)


@torch.compiler.disable(reason='what a module was called with is kept for the attention in it')
def _notice_keys(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    """Note whether keys are of other hidden states than queries, before a module is called."""
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
    """Tell whether queries are of another sequence than keys: of other hidden states, or of another
    length, which neither a cache nor the mask explains."""
    is_told = attachment.has_cache or isinstance(mask, LazyMask)
    return attachment.has_other_keys or not is_told and query.size(2) != key.size(2)

@torch.compiler.disable(reason='which slots are tokens decides which edges there are')
def graph_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0., scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return attention as transformers asks for it.

    Args:
        module (nn.Module): Which module asks.
        query (Tensor): ``[batch, heads, num_queries, channels]``.
        key (Tensor): ``[batch, num_kv_heads, num_keys, channels]``.
        value (Tensor): ``[batch, num_kv_heads, num_keys, value_channels]``.
        attention_mask (Tensor, optional): What :class:`LazyMask` has made, or a mask of the
            user's, ``[batch, heads, num_queries, num_keys]``, each of the first three possibly 1.
        dropout (float): On the weights.
        scaling (float, optional): Of dot products.
        is_causal (bool, optional): Without a mask, whether to attend to no later key.
        position_bias (Tensor, optional): Added to logits, ``[batch or 1, heads, num_queries,
            num_keys]``.
        **options: What else there is to say, see :func:`attach`.

    Returns:
        Tensor ``[batch, num_queries, heads, value_channels]``, and the weights if wanted.
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
    return attend_padded(query, key, value, along, tokens, rules, scale=scaling, dropout_p=dropout,
                         hops=attachment.hops,
                         teleport=attachment.teleport if logit is None else logit.sigmoid(),
                         return_attention_weights=bool(options.get('output_attentions')),
                         backend=attachment.backend)


def _warn_of_cross(kind: str) -> None:
    warnings.warn(f"attention of {kind} between two sequences stays as it is, for the places in "
                  f"one say nothing of those in the other; name its modules in 'layers' to attach "
                  f"it", stacklevel=3)


def _as_autocast(x: Tensor) -> Tensor:
    """Cast to the dtype of SDPA under autocast, because rotary embeddings give queries and keys
    another dtype than the values have."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if is_autocast(x) else x


def _as_before(module: nn.Module, implementation: str, inputs: tuple[Tensor, Tensor, Tensor],
               mask: Tensor | None, **options: Any) -> tuple[Tensor, Tensor | None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    if isinstance(mask, LazyMask):
        made = mask.made_for(implementation)
        if made is None:  # which the module does not know
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
            raise ValueError(f"{name!r} must be None, for attention along graphs has no {meaning} "
                             f"(got {name!r} of {kind}); leave its modules out of 'layers'")
    window = options.get('sliding_window')
    if mask is None and window is not None and window < key.size(2):
        raise ValueError(f"'sliding_window' must come with the model's mask, which says where the "
                         f"window lies (got {window} and no mask of {kind}); leave its modules out "
                         f"of 'layers', or attach them to a SlidingWindow and set it to None in "
                         f"the config")


def _is_causal(module: nn.Module, is_causal: bool | None, mask: Tensor | None) -> bool:
    """Tell whether attention would be causal without a mask. Modules that are given a mask say that
    it would not, so that what they are decides."""
    if is_causal is None or mask is not None and not is_causal:
        return getattr(module, 'is_causal', is_causal is None)
    return is_causal


def _meant(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool,
           is_cross: bool) -> Tensor:
    """Return the mask, or what a model means that gives none or one of another shape."""
    if mask is None or _lacks_prefix(mask, key) or _is_left_to_module(mask, is_causal):
        return _unmasked(query, key, is_causal, is_cross)
    return mask.for_queries(query.size(2)) if isinstance(mask, LazyMask) else mask


def _unmasked(query: Tensor, key: Tensor, is_causal: bool, is_cross: bool) -> LazyMask:
    """Return the mask of a model that gives none: no padding, and causal from the first key on
    unless there is one query."""
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
    (batch, _, num_queries, _), num_keys = query.shape, key.size(2)
    is_causal &= num_queries > 1 and not is_cross
    before = 0 if is_causal or is_cross else num_keys - num_queries
    says = causal_mask_function if is_causal else bidirectional_mask_function
    return LazyMask(batch_size=batch, q_length=num_queries, kv_length=num_keys, q_offset=before,
                    mask_function=says, device=query.device)


def _is_left_to_module(mask: Tensor, is_causal: bool) -> bool:
    """Tell whether transformers would have formed no mask because the module knows better."""
    return (isinstance(mask, LazyMask) and mask.implementation == 'sdpa'
            and mask.is_bidirectional == is_causal and mask.padding() is None
            and mask.made_for('sdpa') is None)


def _lacks_prefix(mask: Tensor, key: Tensor) -> bool:
    """Return whether an encoder without padding has not mentioned the keys before its tokens."""
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
                         f"{[batch, heads, num_queries, num_keys]} of which the first three may be "
                         f"1: boolean, True = attend, or floating and added to logits (got "
                         f"{mask.dtype} of shape {tuple(mask.shape)})")
    warn_of_zeros_and_ones('attention_mask', mask)


def _padding(mask: Tensor) -> tuple[Tensor | None, bool]:
    """Return which keys are tokens, if not all, and whether a mask of keys says more about
    those."""
    is_token = mask if mask.dtype == torch.bool else ~(mask < PADDING_BELOW)
    says_more = mask.dtype != torch.bool and (mask.requires_grad or bool(mask[is_token].any()))
    return None if bool(is_token.all()) else is_token, says_more


def _check_padding(mask: LazyMask, query: Tensor, key: Tensor, same_tokens: bool) -> None:
    """Raise unless the mask says of each key whether it is a token. Keys that a cache has yet to
    fill are not."""
    is_token, lengths = mask.how.get('attention_mask'), (query.size(2), key.size(2))
    if is_token is None and mask.shape[2:] != lengths:
        raise ValueError(f"the model's mask must be for {lengths[0]} queries and {lengths[1]} "
                         f"keys, as its attention is (got one for {mask.size(2)} and "
                         f"{mask.size(3)}); leave its modules out of 'layers'")
    if is_token is None:
        return
    length = mask.how['q_offset'] + mask.how['q_length'] if same_tokens else key.size(2)
    fits = is_token.dim() == 2 and len(is_token) == len(key) and is_token.size(1) >= length
    if not fits or mask.size(3) != key.size(2):
        raise ValueError(f"'attention_mask' must be {[len(key), length]}, 1 at tokens and 0 at "
                         f"padding, or of four dimensions (got shape {tuple(is_token.shape)})")


def _graph_of(indices: Tensor, source: GraphSource | None, tokens: PaddedTokens) -> BipartiteGraph:
    if source is not None:
        raise ValueError(f"'along' must be None for a model that chooses its own keys and hands "
                         f"them over as 'indices' (got {source})")
    return BipartiteGraph.from_topk(indices, tokens.num_keys)


def _source_for(source: GraphSource | None, module: nn.Module, is_cross: bool,
                query: Tensor) -> GraphSource:
    if source is None:
        raise ValueError(f"'along' must be a pattern or a source for {type(module).__name__}, "
                         f"which hands over no edges of its own ('indices'; got None)")
    is_full = isinstance(source, PatternSource) and set(source.patterns) == {Full()}
    if is_cross and query.size(2) == 1 and not is_full:
        raise ValueError("'along' must be Full() between two sequences where one query comes at a "
                         "time, for nothing tells its position; generate with use_cache=False, or "
                         "leave these modules out of 'layers'")
    return source
