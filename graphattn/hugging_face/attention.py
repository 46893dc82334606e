"""Attention with the signature of transformers' ``AttentionInterface``, along graphs."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import is_float
from graphattn._tensors import is_autocast
from graphattn.functional.drive import Placement, drive
from graphattn.graphs.graph import BipartiteGraph
from graphattn.hugging_face.calls import POINTERS, Packing, present_call
from graphattn.hugging_face.lazy_mask import LazyMask
from graphattn.hugging_face.modules import NAME, diffusion_of
from graphattn.layers.padded import (
    PairRules,
    attend_padded,
    warn_of_zeros_and_ones,
)
from graphattn.ops import LogitTerms
from graphattn.patterns import Causal, Full, Pattern
from graphattn.placement.padded import PaddedTokens
from graphattn.sources import GraphSource, PatternSource

__all__ = ['graph_attention']

# Arguments of a model's attention that graphs do not support.
REFUSED = {
    'sinks': 'sink of its own for each query',
    'block_indices': 'blocks of keys',
    'cache': 'paged cache',
    'head_mask': 'mask of heads',
}
# Added to logits for padding: -10,000 in BERT's first code and in models derived from it.
PADDING_BELOW = -9_000
OF_EDGES = 'indices', 'part_of_batch'


def graph_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0., scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the output ``[batch, num_queries, heads, channels]``, and weights or ``None``."""
    # Queries, keys and values are [batch, heads, length, channels]. The mask is a LazyMask, or a
    # user's [batch, heads, num_queries, num_keys], whose first three sizes may be 1, as those of
    # position_bias. Without a mask, is_causal or the module's attribute says if later keys are out.
    attend = _attend_traced if torch.compiler.is_compiling() and _is_traced(
        module, query, key, attention_mask, position_bias, options) else _attend
    terms = LogitTerms(scale=scaling, dropout_p=dropout, softcap=options.get('softcap'),
                       sink=options.get('s_aux'))
    return attend(module, query, key, value, attention_mask, terms, is_causal=is_causal,
                  position_bias=position_bias, **options)


def _is_traced(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None,
               position_bias: Tensor | None, options: dict[str, Any]) -> bool:
    # Compiled code has no graph break if the pattern and the length determine all edges.
    attachment = getattr(module, 'graph_attachment', None)
    if attachment is None or not attachment.attends or attachment.watch is not None:
        return False
    source, window = getattr(module, 'graph_source', None), options.get('sliding_window')
    if not isinstance(source, PatternSource) or not source.is_traced or source.max_length:
        return False
    call = present_call()
    says_more = call is not None and (call.wants_weights or call.packing is not None) or any(
        options.get(name) is not None for name in (*REFUSED, *POINTERS, *OF_EDGES))
    return not (mask is not None or position_bias is not None or says_more or attachment.adds_masks
                or attachment.has_other_keys or attachment.has_cache
                or options.get('position_ids') is not None and not (
                    call is not None and call.has_only_tokens)
                or options.get('output_attentions') or query.size(2) != key.size(2)
                or window is not None and window < key.size(2))


def _attend_traced(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, terms: LogitTerms,
    is_causal: bool | None, **options: Any,
) -> tuple[Tensor, None]:
    attachment, source = module.graph_attachment, module.graph_source
    batch, heads, length, _ = query.shape
    query, key, value = (_as_autocast(x).transpose(1, 2).flatten(0, 1)
                         for x in (query, key, value))
    ptr = torch.arange(batch + 1, device=query.device) * length
    graph = source.traced_graph(batch * length, ptr, causal=_is_causal(module, is_causal, mask))
    out, _ = drive(query, key, value, graph, terms, *diffusion_of(module),
                   Placement(heads if source.per_head else None), backend=attachment.backend)
    return out.unflatten(0, (batch, length)), None


@torch.compiler.disable(reason='the edges depend on which slots are tokens')
def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    terms: LogitTerms, is_causal: bool | None, position_bias: Tensor | None, **options: Any,
) -> tuple[Tensor, Tensor | None]:
    attachment = getattr(module, 'graph_attachment', None)
    if attachment is None:
        raise ValueError(f"{type(module).__name__} has attn_implementation={NAME!r}, but no graph "
                         f"to attend along; call graphattn.hugging_face.attach(model, along)")
    call = present_call()
    for seen in (call, attention_mask):
        if getattr(seen, 'packing', None) is not None:
            seen.packing.is_seen = True
    indices, part = (options.pop(name, None) for name in ('indices', 'part_of_batch'))
    # Other keys without a cache, or a mask of the model, that would explain their number.
    is_told = attachment.has_cache or isinstance(attention_mask, LazyMask)
    is_cross = attachment.has_other_keys or not is_told and query.size(2) != key.size(2)
    is_left = is_cross and attachment.attends and not attachment.is_named
    if is_left:
        warnings.warn(f"cross-attention of {type(module).__name__} is not replaced, because "
                      f"positions in two sequences do not correspond; name its modules in 'layers' "
                      f"to attach it", stacklevel=2)
    if indices is None and (is_left or not attachment.attends):
        before = 'eager' if _wants_weights(options) else attachment.before['']
        return _as_before(module, before, (query, key, value), attention_mask,
                          dropout=terms.dropout_p, scaling=terms.scale, is_causal=is_causal,
                          position_bias=position_bias, **options)
    _check_options(options, module, attention_mask, key)
    if part is not None:
        _check_part(module, is_cross, position_bias, indices, options)
        return part.attend(module, *map(_as_autocast, (query, key, value)), attention_mask,
                           _is_causal(module, is_causal, attention_mask), terms), None
    is_causal = not attachment.adds_masks and _is_causal(module, is_causal, attention_mask)
    packed = _packed_lengths(module, options | {'position_bias': position_bias}, attention_mask,
                             query, key, is_causal, is_cross, indices is not None)
    attention_mask = _meant(attention_mask, query, key, is_causal, is_cross)
    source = getattr(module, 'graph_source', None)
    tokens, rules = tokens_and_rules(attention_mask, query, key, is_cross, indices is not None,
                                      packed)
    if position_bias is not None:
        rules = rules._replace(tables=(*rules.tables, position_bias))
    if attachment.watch is not None:
        if indices is not None:
            raise ValueError(f"'model' must attend to all keys to be profiled (got "
                             f"{type(module).__name__}, which chooses its own keys)")
        inputs = (x.transpose(1, 2) for x in (query, key, value))
        return attachment.watch(*inputs, tokens, rules, terms), None
    if indices is not None:
        if source is not None:
            raise ValueError(f"'along' must be None for a model that chooses its own keys (got "
                             f"{source}); attach the model with along=None")
        along = BipartiteGraph.from_topk(indices, tokens.num_keys)
    else:
        along = _source_for(source, module, is_cross, query)
        if attachment.has_cache and key.size(2) > query.size(2) and not attachment.has_decoded:
            attachment.has_decoded = True
            _warn_of_growth(along)
    query, key, value = (_as_autocast(x).transpose(1, 2) for x in (query, key, value))
    return attend_padded(query, key, value, along, tokens, rules, terms, diffusion_of(module),
                         backend=attachment.backend, needs_weights=_wants_weights(options))


def _wants_weights(options: dict[str, Any]) -> bool:
    # Many models take the argument out of the call before it reaches their attention.
    call = present_call()
    return bool(options.get('output_attentions') or call is not None and call.wants_weights)


def _packed_lengths(module: nn.Module, options: dict[str, Any], mask: Tensor | None, query: Tensor,
                    key: Tensor, is_causal: bool, is_cross: bool,
                    has_indices: bool) -> tuple[int, ...] | None:
    pointers = {name: options[name] for name in POINTERS if options.get(name) is not None}
    call, is_lazy = present_call(), isinstance(mask, LazyMask)
    packing = mask.packing if is_lazy else None if call is None else call.packing
    if pointers and not (packing and packing.pointers):  # which the model has made itself
        packing = Packing(pointers)
    if packing is None:
        return None
    if packing.pointers and is_lazy and mask.padding() is not None:
        raise ValueError("'attention_mask' must be None with 'cu_seq_lens_q', because packed "
                         "sequences have no padding (got a mask with padding); omit one of them")
    is_encoder = mask.is_of_encoder if is_lazy else not is_causal
    is_refused = bool(packing.pointers) and (is_cross or has_indices)
    lengths = None if is_refused else packing.lengths(query, query if is_cross else key, is_encoder)
    if lengths is None and not is_refused:
        return None
    if has_indices and not packing.pointers and not module.graph_attachment.has_cache:
        return None  # the model's own masks separate the sequences
    kind, own = type(module).__name__, options.get('position_ids')
    if is_cross:
        why = 'in cross-attention'
    elif has_indices:
        why = 'for a model that chooses its own keys'
    elif call is not None and call.joins_tokens:
        why = f'for {kind}, around which neighbouring tokens meet outside attention'
    elif not (packing.takes_positions or options.get('position_bias') is not None) or (
            packing.is_replaced(own)):
        why = f'for {kind}, whose positions do not begin again'
    elif not (is_lazy or pointers) or is_lazy and not (
            mask.is_of_encoder or is_causal or module.graph_attachment.adds_masks):
        # The latter, as in PaliGemma, are causal only if they have more to say, such as packing.
        why = f'for {kind}, whose masks do not mark packed sequences'
    else:
        return lengths
    says = 'be None' if packing.pointers else 'count up by 1'
    raise ValueError(f"{packing.name!r} must {says} {why}; pad the sequences instead, and pass an "
                     f"'attention_mask'")


def _warn_of_growth(source: GraphSource) -> None:
    # Cached tokens keep their edges, so they cannot follow a pattern that changes with the length.
    for pattern in getattr(source, 'patterns', ()):
        if isinstance(pattern, Pattern) and _changes(pattern, source.seed):
            warnings.warn(f"the edges of {pattern} change as a sequence grows, but tokens in a "
                          f"cache keep the edges of shorter sequences, so that other tokens may be "
                          f"generated than with use_cache=False; attach Cropped(pattern, size) for "
                          f"sequences of up to 'size' tokens, whose edges do not change",
                          stacklevel=3)


def _changes(pattern: Pattern, seed: int | None) -> bool:
    if pattern.is_random and seed is None:
        return True
    pattern &= Causal()
    for length in (512, 64, 8):  # the longest first at which the pattern has a graph
        length = max(length, pattern.min_tokens)
        try:
            rows = [pattern.build(length, number, offset=0, seed=seed, crop=True, device='cpu').csr
                    for number in (length, 2 * length)]
        except ValueError:
            continue
        return not all(map(torch.equal, *rows))
    return False


def _as_autocast(x: Tensor) -> Tensor:
    # Rotary embeddings change the dtype of queries and keys.
    return x.to(torch.get_autocast_dtype(x.device.type)) if is_autocast(x) else x


def _as_before(module: nn.Module, implementation: str, inputs: tuple[Tensor, Tensor, Tensor],
               mask: Tensor | None, **options: Any) -> tuple[Tensor, Tensor | None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    if isinstance(mask, LazyMask):
        made = mask.made_for(implementation)
        if made is None:  # the module does not know that the mask was skipped
            options['is_causal'] = _is_causal(module, options['is_causal'], mask)
        mask = made
    elif implementation == 'eager' and mask is not None and mask.dtype == torch.bool:
        # Code that returns weights adds masks, also where a mask was made for SDPA.
        mask = torch.zeros_like(mask, dtype=inputs[0].dtype).masked_fill_(
            ~mask, torch.finfo(inputs[0].dtype).min)
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
                             f"{meaning} (got {name!r} in {kind}); leave the modules of {kind} out "
                             f"of 'layers'")
    window = options.get('sliding_window')
    if mask is None and window is not None and window < key.size(2):
        raise ValueError(f"'sliding_window' must come with the model's mask, which defines the "
                         f"window (got {window} and no mask of {kind}); omit its modules from "
                         f"'layers', or attach them to a SlidingWindow and set sliding_window to "
                         f"None in the config")


def _check_part(module: nn.Module, is_cross: bool, position_bias: Tensor | None,
                indices: Tensor | None, options: dict[str, Any]) -> None:
    # No process has all tokens of the batch.
    refused = {'encoder_hidden_states': is_cross or None, 'position_bias': position_bias,
               'indices': indices, 'sliding_window': options.get('sliding_window'),
               'output_attentions': options.get('output_attentions') or None}
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"{name!r} must be None in sequence parallelism (got {name!r} in "
                             f"{type(module).__name__})")


def _is_causal(module: nn.Module, is_causal: bool | None, mask: Tensor | None) -> bool:
    # Modules that get a mask always pass False, so then their attribute decides.
    if is_causal is None or mask is not None and not is_causal:
        return getattr(module, 'is_causal', is_causal is None)
    return is_causal


def _meant(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool,
           is_cross: bool) -> Tensor:
    if isinstance(mask, LazyMask):
        if not mask.is_implied(key.size(2), is_causal):
            return mask.for_queries(query.size(2))
    elif mask is not None:
        return mask
    # No padding, and causal from the first key on, but for a single query and cross-attention.
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
    (batch, _, num_queries, _), num_keys = query.shape, key.size(2)
    is_causal &= num_queries > 1 and not is_cross
    before = 0 if is_causal or is_cross else num_keys - num_queries
    says = causal_mask_function if is_causal else bidirectional_mask_function
    return LazyMask(batch_size=batch, q_length=num_queries, kv_length=num_keys, q_offset=before,
                    mask_function=says, device=query.device)


def tokens_and_rules(mask: Tensor, query: Tensor, key: Tensor, is_cross: bool,
                      has_indices: bool,
                      packed: tuple[int, ...] | None) -> tuple[PaddedTokens, PairRules]:
    num_queries, num_keys = query.size(2), key.size(2)
    if not isinstance(mask, LazyMask):
        _check_mask(mask, query, key)
        tables = mask.expand(-1, -1, num_queries, -1),
    if packed is not None:
        tokens = PaddedTokens(len(query), num_queries, num_keys, query.device, packed=packed)
        return tokens, mask.rules() if isinstance(mask, LazyMask) else PairRules(tables=tables)
    if not isinstance(mask, LazyMask):
        first = 0 if is_cross else num_keys - num_queries
        same_tokens, is_token = not (is_cross or has_indices), None
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
        raise ValueError(f"'attention_mask' must be boolean (True = attend) or floating (added to "
                         f"logits), of shape [batch, length] or "
                         f"{[batch, heads, num_queries, num_keys]} (sizes 1 broadcast) (got "
                         f"{mask.dtype} of shape {tuple(mask.shape)})")
    warn_of_zeros_and_ones('attention_mask', mask)


def _padding(mask: Tensor) -> tuple[Tensor | None, bool]:
    """Return which keys are tokens, or ``None`` for all, and whether the mask also has biases."""
    is_token = mask if mask.dtype == torch.bool else ~(mask < PADDING_BELOW)
    says_more = mask.dtype != torch.bool and (mask.requires_grad or bool(mask[is_token].any()))
    return None if bool(is_token.all()) else is_token, says_more


def _check_padding(mask: LazyMask, query: Tensor, key: Tensor, same_tokens: bool) -> None:
    # A mask with padding marks each key as token or padding, but for keys not yet in a cache.
    is_token, lengths = mask.how.get('attention_mask'), (query.size(2), key.size(2))
    if is_token is None and mask.shape[2:] != lengths:
        raise ValueError(f"the mask that the model builds must have {lengths[0]} queries and "
                         f"{lengths[1]} keys, as its attention has (got {mask.size(2)} and "
                         f"{mask.size(3)}); leave the modules of this attention "
                         f"out of 'layers'")
    if is_token is None:
        return
    length = mask.how['q_offset'] + mask.how['q_length'] if same_tokens else key.size(2)
    fits = is_token.dim() == 2 and len(is_token) == len(key) and is_token.size(1) >= length
    if not fits or mask.size(3) != key.size(2):
        raise ValueError(f"'attention_mask' must have shape {[len(key), length]}, with 1 at tokens "
                         f"and 0 at padding, or four dimensions (got shape "
                         f"{tuple(is_token.shape)})")


def _source_for(source: GraphSource | None, module: nn.Module, is_cross: bool,
                query: Tensor) -> GraphSource:
    if source is None:
        raise ValueError(f"'along' must be a pattern or a source, because {type(module).__name__} "
                         f"does not choose its own keys (got None)")
    is_full = isinstance(source, PatternSource) and set(source.patterns) == {Full()}
    if is_cross and query.size(2) == 1 and not is_full:
        raise ValueError("'along' must be Full() for cross-attention with one query at a time, "
                         "because the position of the query is unknown; call generate with "
                         "use_cache=False, or leave cross-attention out of 'layers'")
    return source
