"""Attach a model to a graph, and detach it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from torch import nn

from graphattn._checks import check_kind
from graphattn.functional.recursion import is_one_hop
from graphattn.hugging_face.attachment import Attachment
from graphattn.hugging_face.attention import graph_attention, notice_keys
from graphattn.hugging_face.lazy_mask import lazy_mask, lazy_mask_of_logits
from graphattn.hugging_face.modules import (
    NAME,
    NAME_FOR_EAGER,
    along_graphs,
    attention_modules,
    check_heads,
    choose,
    configured,
    heads_of,
    implementations,
    own_configs,
    warn_of_rest,
)
from graphattn.layers.learned_teleport import check_diffusion, teleport_parameter
from graphattn.ops import check_backend
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource, as_source
from graphattn.sources.base import copy_beside, place_beside

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ['attach', 'detach']

OLDEST = '5.17'  # earlier versions make masks and pass chosen keys in other ways


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
    packed sequences            by ``cu_seq_lens_q`` or by ``position_ids`` that begin anew: each
                                sequence has its own positions, windows and global tokens
    ``position_bias``           read on the edges, with its gradient
    ``indices``                 define the edges (``BipartiteGraph.from_topk``); ``along`` is
                                ``None``
    ``torch.compile``           the same results, with a graph break at each attention
    continuous batching         not supported by transformers for other implementations of attention
    cache                       dynamic, static, sliding and quantised: rows of the pattern from the
                                decoded position on. Patterns whose rows depend on the length, such
                                as random keys, change as a sequence grows; cached tokens then
                                belong to shorter graphs. Other sources need ``use_cache=False``
    ``output_attentions``       dense weights, 0 where there is no edge
    fewer heads of keys         not repeated, unless heads own a graph each
    ``softcap``, ``s_aux``      an error
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
    register()
    check_backend(backend)
    check_diffusion(hops, teleport, learn_teleport)
    source = None if along is None else _as_source(along)
    if source is None and not is_one_hop(hops, teleport):
        raise ValueError(f"'hops' must be 1, without teleport, if the model chooses the keys of "
                         f"its queries (got {hops} with 'along' None)")
    modules = attention_modules(model)
    chosen = choose(modules, layers)
    for name in chosen:
        check_heads(source, name, modules[name], learn_teleport)
    if layers is None:
        warn_of_rest(model, modules, len(modules) - len(chosen))
    own_configs(model)
    for module in configured(model):
        if not hasattr(module, 'graph_attachment'):
            module.graph_attachment = Attachment(implementations(module.config))
    for name in chosen:
        module = modules[name]
        module.graph_attachment.attends, module.graph_attachment.backend = True, backend
        module.graph_attachment.hops, module.graph_attachment.teleport = hops, teleport
        module.graph_attachment.is_named = name in (layers or ())
        module.graph_attachment.noticing = module.register_forward_pre_hook(notice_keys,
                                                                            with_kwargs=True)
        if source is not None:
            module.graph_source = copy_beside(source, module, model)
        if learn_teleport:
            module.graph_teleport_logit = teleport_parameter(teleport, heads_of(module),
                                                             *place_beside(module, model))
    for module in configured(model):
        module.config._attn_implementation = along_graphs(module.graph_attachment.before)
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
def register() -> None:
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
