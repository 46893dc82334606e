"""Attention along graphs in the transformers of diffusers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphattn._checks import check_kind
from graphattn.hugging_face.attention import tokens_and_rules
from graphattn.layers.padded import PairRules, attend_padded
from graphattn.ops import check_backend
from graphattn.patterns import Pattern
from graphattn.placement.padded import PaddedTokens
from graphattn.sources import GraphSource, as_source
from graphattn.sources.base import copy_beside

__all__ = ['attach_diffuser', 'detach_diffuser']


def attach_diffuser(model: nn.Module, along: GraphSource | Pattern | str, *,
                    layers: Sequence[str] | None = None, backend: str = 'auto') -> nn.Module:
    """Replace the self-attention of a diffusers transformer by attention along a graph, in place.

    The model keeps its projections, norms and rotary embeddings. In joint attention, as in Flux,
    positions of a pattern count the tokens of the text first, then those of the image or video.
    Cross-attention is left alone. A mask of keys marks padding, which takes no part in attention
    and has output 0.

    Each attention module gets a copy of the source with new parameters as its submodule
    ``graph_source``. The processor of the module must call ``scaled_dot_product_attention``, as
    diffusers' native backend does.

    Args:
        model (nn.Module): A model whose attention modules have processors, such as
            ``FluxTransformer2DModel`` or ``WanTransformer3DModel``.
        along (GraphSource, Pattern or str): A source, a pattern or its expression.
        layers (sequence of str, optional): Names of attention modules; all modules of
            self-attention if omitted.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.

    Returns:
        The model.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The model has no such attention, a layer is unknown, attached already or has a
            processor with parameters, or the backend is unknown.
    """
    check_kind('model', model, nn.Module)
    check_backend(backend)
    source, modules = as_source(along), _modules(model)
    names = [*modules] if layers is None else layers
    for name in names:
        _check_layer(name, modules, source)
    for name in names:
        module = modules[name]
        module.graph_source = copy_beside(source, module, model)
        module.processor = _along_graph(module.processor, backend)
    return model


def detach_diffuser(model: nn.Module) -> nn.Module:
    """Restore the attention that a model had before :func:`attach_diffuser`, and remove its
    sources.

    Raises:
        ValueError: The model is not attached.
    """
    check_kind('model', model, nn.Module)
    attached = [module for module in model.modules() if _is_attached(module)]
    if not attached:
        raise ValueError("'model' must be a model to which graphs are attached (got a model "
                         "without graphs); call attach_diffuser first")
    for module in attached:
        module.processor = module.processor.before_graph
        del module.graph_source
    return model


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return a dict of the modules of self-attention that have processors, by name."""
    found = {name: module for name, module in model.named_modules()
             if hasattr(module, 'set_processor') and hasattr(module, 'processor')
             and not getattr(module, 'is_cross_attention', False)}
    if not found:
        raise ValueError(f"'model' must be a transformer of diffusers with self-attention (got "
                         f"{type(model).__name__}, whose modules have no attention processors)")
    return found


def _is_attached(module: nn.Module) -> bool:
    return hasattr(getattr(module, 'processor', None), 'before_graph')


def _check_layer(name: str, modules: dict[str, nn.Module], source: GraphSource) -> None:
    if name not in modules:
        raise ValueError(f"'layers' must contain names of self-attention modules (got {name!r}); "
                         f"use {', '.join(modules)}")
    module = modules[name]
    if _is_attached(module):
        raise ValueError(f"'layers' must not contain attached layers (got {name!r}); call "
                         f"detach_diffuser(model) first")
    if isinstance(module.processor, nn.Module):
        raise ValueError(f"'layers' must contain only modules whose processors have no parameters "
                         f"(got {type(module.processor).__name__} in {name!r}); leave this module "
                         f"out of 'layers'")
    heads = getattr(module, 'heads', None)
    if source.heads not in (None, heads):
        raise ValueError(f"'along' must be a source for {heads} heads, the heads of {name!r} (got "
                         f"a source for {source.heads} heads)")


def _along_graph(processor: Any, backend: str) -> Any:
    """Return a copy of an attention processor that attends along ``graph_source`` of its module.
    ``backend`` is the kernel for graphs."""
    along = copy.copy(processor)
    along.__class__ = _kind_along_graph(type(processor))
    along.before_graph, along.graph_backend = processor, backend
    return along


def _kind_along_graph(kind: type) -> type:
    @wraps(kind.__call__)  # modules look up which arguments their processor takes
    def call(self, attn, hidden_states, encoder_hidden_states=None, *args, **kwargs):
        attend = partial(_attend, attn.graph_source, self.graph_backend)
        is_image = hidden_states.dim() == 4  # [batch, channels, height, width]
        own = hidden_states.shape[2:].numel() if is_image else hidden_states.size(1)
        others = 0 if encoder_hidden_states is None else encoder_hidden_states.size(1)
        with _InPlaceOfSdpa(attend, own, others) as sdpa:
            out = kind.__call__(self, attn, hidden_states, encoder_hidden_states, *args, **kwargs)
        if not sdpa.was_called:
            raise ValueError(f"{kind.__name__} must call scaled_dot_product_attention once on its "
                             f"{own + others} tokens to attend along a graph; call "
                             f"model.set_attention_backend('native')")
        return out

    return type(kind)(kind.__name__, (kind,), {'__call__': call})


class _InPlaceOfSdpa(TorchFunctionMode):
    """Context that calls ``attend`` in place of torch's ``scaled_dot_product_attention``. A call is
    replaced only if it has ``own + others`` queries and as many keys, which are all tokens of an
    attention module. Other calls, such as cross-attention, do not change.

    Args:
        attend (Callable): Function with the arguments of ``scaled_dot_product_attention``.
        own (int): Number of tokens of ``hidden_states``.
        others (int): Number of tokens of ``encoder_hidden_states``, 0 without them.
    """

    def __init__(self, attend: Callable[..., Tensor], own: int, others: int):
        super().__init__()
        self.attend, self.own, self.others, self.was_called = attend, own, others, False

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key = (kwargs[name] if name in kwargs else args[place]
                      for place, name in enumerate(('query', 'key')))
        lengths = query.size(2), key.size(2)
        is_own = lengths == (self.own + self.others,) * 2
        self.was_called |= is_own or lengths == (self.own, self.others)
        return (self.attend if is_own else func)(*args, **kwargs)


def _attend(source: GraphSource, backend: str, query: Tensor, key: Tensor, value: Tensor,
            attn_mask: Tensor | None = None, dropout_p: float = 0., is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """Return attention along the graphs of ``source``. The arguments after ``backend``, and the
    result, are those of torch's ``scaled_dot_product_attention``."""
    if attn_mask is None:
        tokens = PaddedTokens(len(query), query.size(2), key.size(2), query.device)
        rules = PairRules(causal=is_causal)
    else:
        mask = attn_mask.reshape(*[1] * (4 - attn_mask.dim()), *attn_mask.shape)
        tokens, rules = tokens_and_rules(mask, query, key, False, False, None)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out, _ = attend_padded(query, key, value, source, tokens, rules, scale=scale,
                           dropout_p=dropout_p, backend=backend)
    return out.transpose(1, 2)
