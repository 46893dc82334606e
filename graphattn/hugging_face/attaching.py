"""Attach a model to a graph, and detach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from graphattn._checks import check_kind
from graphattn.functional.recursion import is_one_hop
from graphattn.hugging_face.attention import graph_attention
from graphattn.hugging_face.calls import entering_attention, entering_model, leaving_model
from graphattn.hugging_face.lazy_mask import lazy_mask, lazy_mask_of_logits
from graphattn.hugging_face.modules import (
    NAME,
    NAME_FOR_EAGER,
    Attachment,
    along_graphs,
    attention_modules,
    check_head_numbers,
    check_heads,
    check_unchanged,
    choose,
    configured,
    heads_of,
    implementations,
    own_configs,
    source_of_heads,
    warn_of_rest,
    without_heads,
)
from graphattn.layers.graph_attention import check_diffusion, teleport_parameter
from graphattn.ops import check_backend
from graphattn.patterns import Pattern
from graphattn.sources import GraphSource, HeadClusters, as_source
from graphattn.sources.base import copy_beside, place_beside

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ['attach', 'attached', 'detach']

Along = GraphSource | Pattern | HeadClusters | str | None  # or a Fit, which has such an along()
OLDEST = '5.17'  # earlier versions make masks and pass chosen keys in other ways


def attach(
    model: PreTrainedModel, along: Along | Mapping[int | str, Along] | Sequence[Along], *,
    layers: Sequence[int | str] | None = None, heads: Sequence[int] | None = None,
    backend: str = 'auto', hops: int | float = 1, teleport: float | Sequence[float] = 0.,
    learn_teleport: bool = False,
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
    packed sequences            marked by ``cu_seq_lens_q``, or by ``position_ids`` that do not
                                count up by 1, without an ``attention_mask``: each sequence has its
                                own positions, windows and global tokens. In encoders, sequences
                                must begin at the lowest position. If a model cannot mark them: an
                                error
    ``position_bias``           read on the edges, with its gradient
    ``indices``                 define the edges (``BipartiteGraph.from_topk``); ``along`` is
                                ``None``
    ``torch.compile``           the same results. Attention along patterns has no graph break if the
                                model gets only tokens: no padding mask, no cache, no positions, and
                                no window that is shorter than the sequence. Otherwise, each
                                attention module has a graph break
    continuous batching         not supported by transformers for other implementations of attention
    cache                       dynamic, static, sliding and quantised: each new token gets its own
                                edges of the pattern, and the results are those of the whole
                                sequence. The edges of random patterns, such as random keys, change
                                as a sequence grows; cached tokens then keep the edges of shorter
                                sequences, with a warning. ``Cropped`` patterns do not change.
                                Clusters by content need a cache that drops no keys. Other sources
                                need ``use_cache=False``
    ``output_attentions``       dense weights, 0 where there is no edge. Layers that are not
                                attached then compute theirs by the model's own code
    changes after ``attach``    of ``attn_implementation`` or of attached modules: an error that
                                names ``detach``
    fewer heads of keys         not repeated, unless each head has its own graph
    ``softcap``, ``s_aux``      applied; ``sinks`` of each query: an error
    cross-attention             recognised in a call by separate hidden states for keys, or by
                                lengths that no cache explains. It is not replaced, with a warning,
                                unless its module is in ``layers``
    custom attention code       not replaced, with a warning; it gets the same masks as before
    ==========================  ====================================================================

    Args:
        model (PreTrainedModel): A model with attention that uses transformers'
            ``AttentionInterface``.
        along (GraphSource, Pattern, str or None): A source, a pattern, its expression
            (``'SlidingWindow(64) | GlobalTokens(1)'``), the name of a preset (``'bigbird'``), or
            the :class:`HeadClusters` of one of the ``heads``, or a
            :class:`graphattn.hugging_face.Fit`. ``None`` is for models that choose their own keys
            and pass ``indices``. A mapping from layers to these, or a list with one for each layer,
            gives layers different graphs; a :class:`graphattn.sources.PatternSource` of several
            patterns gives heads different graphs.
        layers (sequence, optional): Indices of self-attention modules in the order of
            ``model.modules()``, or names of attention modules. If omitted, all self-attention
            modules. In cross-attention that is named here, query i of a pattern is at the position
            of key i.
        heads (sequence of int, optional): Heads that attend along the pattern. The others keep full
            attention, by edges between all tokens, until a later call attaches them too. If
            omitted, all heads.
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
        ValueError: The model's attention cannot be replaced or is only cross-attention, a layer or
            a head is unknown or attached already, the backend is unknown, the source requires
            another number of heads, or ``hops`` and ``teleport`` do not fit.

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
    modules = attention_modules(model)
    check_unchanged(model)
    given, sources = _sources_of(along, layers, modules)
    plain = is_one_hop(hops, teleport)
    if not plain and None in sources.values():
        raise ValueError(f"'hops' must be 1 and 'teleport' 0 with along=None, because the model "
                         f"chooses the keys of each query itself (got hops={hops}); pass a pattern "
                         f"as 'along' to use several hops")
    if heads is not None and (learn_teleport or not plain):
        raise ValueError(f"'hops' must be 1 and 'teleport' 0 with 'heads', because the other heads "
                         f"keep full attention of one hop (got hops={hops}); omit 'heads' to "
                         f"attach whole layers")
    plans = {name: _plan(source, heads, name, modules[name], backend, learn_teleport)
             for name, source in sources.items()}
    if given is None:
        warn_of_rest(model, modules, len(modules) - len(plans))
    own_configs(model)
    for module in configured(model):
        if not hasattr(module, 'graph_attachment'):
            switch(module, Attachment(implementations(module.config)))
    for name, (source, attached_heads) in plans.items():
        module, logit = modules[name], None
        if source is not None:
            source = copy_beside(source, module, model)
        if learn_teleport:
            logit = teleport_parameter(teleport, heads_of(module), *place_beside(module, model))
        switch(module, replace(
            module.graph_attachment, attends=True, backend=backend, hops=hops, teleport=teleport,
            is_named=name in (given or ()), heads=attached_heads), source, logit)
    _use_graphs(model)
    return model


@contextmanager
def attached(
    model: PreTrainedModel, along: Along | Mapping[int | str, Along] | Sequence[Along],
    **options: Any,
) -> Iterator[PreTrainedModel]:
    """Attach a model inside a ``with`` block, and restore its earlier attachments at the end.

    Layers and heads that are attached already attend along the new graph inside the block.

    Args:
        model (PreTrainedModel): As in :func:`attach`.
        along (GraphSource, Pattern, str, Mapping, Sequence or None): As in :func:`attach`.
        **options: Further arguments of :func:`attach`.

    Raises:
        TypeError, ValueError: As in :func:`attach`.

    Example:
        >>> import torch
        >>> from graphattn.hugging_face import attached
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> with attached(bert, 'SlidingWindow(4)', layers=[0]):
        ...     hidden = bert(torch.randint(100, (2, 40))).last_hidden_state
        >>> hasattr(bert, 'graph_attachment')
        False
    """
    modules = attention_modules(model)
    with kept(model):
        _, sources = _sources_of(along, options.get('layers'), modules)
        for name in sources:
            _make_room(name, modules[name], options.get('heads'))
        yield attach(model, along, **options)


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Restore, at the end of a block, the attachments that a model had at its beginning."""
    check_unchanged(model)
    before = {module: (module.graph_attachment, getattr(module, 'graph_source', None),
                       getattr(module, 'graph_teleport_logit', None))
              for module in model.modules() if hasattr(module, 'graph_attachment')}
    try:
        yield
    finally:
        forget(model)
        for module, state in before.items():
            switch(module, *state)
        if before:
            _use_graphs(model)


def detach(model: PreTrainedModel, *, layers: Sequence[int | str] | None = None,
           heads: Sequence[int] | None = None) -> PreTrainedModel:
    """Restore the attention that a model had before :func:`attach`, and remove its sources.

    Args:
        model (PreTrainedModel): An attached model.
        layers (sequence, optional): Attached layers, as in :func:`attach`; all if omitted.
        heads (sequence of int, optional): Heads that return to full attention, while the other
            heads of these layers stay attached; all heads if omitted.

    Returns:
        The model.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The model or a layer is not attached, or a layer's source is for all its heads.
    """
    check_kind('model', model, nn.Module)
    if not any(hasattr(module, 'graph_attachment') for module in model.modules()):
        raise ValueError("'model' must be a model to which graphs are attached (got a model "
                         "without graphs); call attach(model, along) first")
    modules = attention_modules(model)
    names = [name for name, module in modules.items() if attends(module)]
    if layers is not None:
        chosen = choose(modules, layers)
        if missing := [name for name in chosen if name not in names]:
            raise ValueError(f"'layers' must contain only attached layers (got {missing[0]!r}, "
                             f"which is not attached); attachment(model) lists the attached layers")
        names = chosen
    plans = {name: _without(name, modules[name], heads) for name in names}
    for name, (source, attached_heads) in plans.items():
        switch(modules[name], replace(modules[name].graph_attachment, heads=attached_heads,
                                       attends=source is not None), source)
    _remember_layers(model)
    if not any(map(attends, modules.values())):
        forget(model)
    return model


def _sources_of(along: Any, layers: Sequence[int | str] | None, modules: dict[str, nn.Module],
                ) -> tuple[Sequence[int | str] | None, dict[str, GraphSource | None]]:
    # Returns the layers that the caller named, or None, and the source of each module by name.
    if callable(getattr(along, 'along', None)):
        along = along.along()
    if isinstance(along, Mapping):
        if layers is not None:
            raise ValueError("'layers' must be None if 'along' is a mapping, whose keys already "
                             "name the layers; omit 'layers'")
        layers, along = [*along], [*along.values()]
    names = choose(modules, layers)
    if isinstance(along, Sequence) and not isinstance(along, str):
        if len(along) != len(names):
            raise ValueError(f"'along' must be one source, or a sequence of {len(names)} sources, "
                             f"one for each layer (got {len(along)}); to give each head its own "
                             f"pattern, pass a PatternSource of several patterns")
        return layers, {name: _as_source(each) for name, each in zip(names, along)}
    return layers, dict.fromkeys(names, _as_source(along))


def _plan(source: GraphSource | None, heads: Sequence[int] | None, name: str, module: nn.Module,
          backend: str, learn_teleport: bool) -> tuple[GraphSource | None, tuple[int, ...] | None]:
    # Returns the source of the module once it is attached, and its attached heads, None for all.
    before = getattr(module, 'graph_attachment', None)
    if heads is None:
        _check_free(name, module)
        check_heads(source, name, module, learn_teleport)
        return source, None
    heads = check_head_numbers(heads, name, module)
    if not attends(module):
        return source_of_heads(source, heads, module, None), tuple(sorted(heads))
    if before.heads is None or {*heads} & {*before.heads}:
        _check_free(name, module)
    if backend != before.backend:
        raise ValueError(f"'backend' must be {before.backend!r}, the backend of the heads of "
                         f"{name!r} that are already attached (got {backend!r})")
    source = source_of_heads(source, heads, module, module.graph_source)
    return source, tuple(sorted((*before.heads, *heads)))


def _check_free(name: str, module: nn.Module) -> None:
    if attends(module):
        raise ValueError(f"'layers' must not contain attached layers (got {name!r}); call "
                         f"detach(model) first")


def attends(module: nn.Module) -> bool:
    return getattr(getattr(module, 'graph_attachment', None), 'attends', False)


def _without(name: str, module: nn.Module, heads: Sequence[int] | None,
             ) -> tuple[GraphSource | None, tuple[int, ...] | None]:
    # Returns what _plan does, once `heads` (all if None) are detached; (None, None) without any.
    if heads is None:
        return None, None
    heads, has = check_head_numbers(heads, name, module), module.graph_attachment.heads
    left = {*range(heads_of(module))} if has is None else {*has}
    if strange := {*heads} - left:
        raise ValueError(f"'heads' must contain only attached heads of {name!r} (got "
                         f"{sorted(strange)}); attachment(model) lists the attached heads")
    left = tuple(sorted(left - {*heads}))
    if left and not is_one_hop(module.graph_attachment.hops, module.graph_attachment.teleport):
        raise ValueError(f"'heads' must be None for {name!r}, because this layer was attached with "
                         f"several hops; omit 'heads' to detach the whole layer")
    source = getattr(module, 'graph_source', None)
    return (without_heads(source, heads, module), left) if left else (None, None)


def _make_room(name: str, module: nn.Module, heads: Sequence[int] | None) -> None:
    if not attends(module):
        return
    has = module.graph_attachment.heads
    if heads is not None:
        numbers = check_head_numbers(heads, name, module)
        heads = [head for head in numbers if has is None or head in has]
        if not heads:
            return
    source, left = _without(name, module, heads)
    switch(module, replace(module.graph_attachment, heads=left, attends=source is not None),
            source)


def switch(module: nn.Module, attachment: Attachment | None, source: GraphSource | None = None,
           logit: nn.Parameter | None = None) -> None:
    """Replace the attachment, hooks, source and learned teleport of a module, or remove them."""
    if hasattr(module, 'graph_attachment'):
        for handle in module.graph_attachment.noticing:
            handle.remove()
    for name, value in (('graph_attachment', attachment), ('graph_source', source),
                        ('graph_teleport_logit', logit)):
        if hasattr(module, name):
            delattr(module, name)
        if value is not None:
            setattr(module, name, value)
    if attachment is not None:
        module.graph_attachment = replace(attachment, noticing=_hooks(module, attachment))


def _hooks(module: nn.Module, attachment: Attachment) -> tuple[RemovableHandle, ...]:
    from transformers import PreTrainedModel
    if attachment.attends:
        return module.register_forward_pre_hook(entering_attention(module), with_kwargs=True),
    if isinstance(module, PreTrainedModel):
        return (module.register_forward_pre_hook(entering_model(module), with_kwargs=True),
                module.register_forward_hook(leaving_model, always_call=True))
    return ()


def _use_graphs(model: nn.Module) -> None:
    for module in configured(model):
        module.config._attn_implementation = along_graphs(module.graph_attachment.before)
    _remember_layers(model)


def _remember_layers(model: nn.Module) -> None:
    for outer in configured(model):
        if hasattr(outer, 'graph_attachment') and not attends(outer):
            outer.graph_attachment.layers = {
                name: module for name, module in outer.named_modules() if attends(module)}


def forget(model: nn.Module) -> None:
    """Restore the original attention of all modules of a model, and remove their sources."""
    # Outer modules come first: a change of their config also changes those of inner modules.
    before: dict[str, Any] = {}
    for module in model.modules():
        if hasattr(module, 'graph_attachment'):
            own = module.graph_attachment.before
            switch(module, None)
            before = before or own
            module.config._attn_implementation = own
    for module in configured(model):  # of modules that were built after attach
        if before and module.config._attn_implementation in (NAME, NAME_FOR_EAGER):
            module.config._attn_implementation = before['']


def _as_source(along: Along) -> GraphSource | None:
    if not isinstance(along, Along):
        what = f'the class {along.__name__}' if isinstance(along, type) else type(along).__name__
        raise TypeError(f"'along' must be a GraphSource, a Pattern, a str such as "
                        f"'SlidingWindow(3)', a Fit, or None (got {what})")
    return None if along is None else as_source(along)


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
