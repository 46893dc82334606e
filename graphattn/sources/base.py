"""Base class of graph sources."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import (
    check_floating,
    check_generator,
    check_has_numbers,
    check_on,
    check_ptr,
    check_shape,
    is_float,
)
from graphattn._explained import Explained, check_override
from graphattn.functional.drive import LOCAL, Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.ops import LogitTerms


class GraphSource(nn.Module, Explained, ABC):
    """Base class of modules that decide which query attends to which key.

    Attributes:
        per_head (bool): Whether each head has its own graph. If so, heads are folded into nodes
            (:func:`graphattn.layers.fold_heads`): the returned graph has ``heads`` times as many
            nodes, and begins with the sequences of head 0.
        heads (int, optional): Number of heads that the source requires; ``None`` allows any number.
        head_channels (int, optional): Size of a head that the source requires; ``None`` allows any.
        max_length (int, optional): Maximum number of tokens of a sequence; unlimited if ``None``.
    """

    per_head: bool = False
    heads: int | None = None
    head_channels: int | None = None
    max_length: int | None = None

    def __init_subclass__(cls, **kwargs: Any):
        check_override(cls, GraphSource.forward, 'generator')
        super().__init_subclass__(**kwargs)

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        placement: Placement = LOCAL,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph | PairMask:
        """Return the graph over all sequences, or a soft mask instead of a graph.

        Args:
            query (Tensor): ``[num_queries, heads, head_channels]``, before scaling.
            key (Tensor): ``[num_keys, heads, head_channels]``. ``key`` may have fewer heads than
                ``query``, each shared by a group of query heads, unless the source is ``per_head``.
            ptr (Tensor): Where the queries of each sequence begin, int64 ``[num_sequences + 1]``.
            key_ptr (Tensor, optional): Where the keys of each sequence begin, int64
                ``[num_sequences + 1]``. Layers pass ``key_ptr`` only if keys are other tokens than
                queries, so a source for self-attention may leave it out of its ``forward``.
            placement (Placement, optional): The :class:`~graphattn.functional.drive.Shard` of which
                ``query`` and ``key`` are the tokens: the source then returns the rows of these
                queries, with the keys of all tokens. Layers pass it only to processes that share a
                sequence and to decoders, so another source may leave it out.
            generator (torch.Generator, optional): Random generator; torch's default generator if
                omitted. It has the same state in all processes that share a sequence.

        Returns:
            BipartiteGraph with one segment for each sequence, or for each head and sequence; or a
            PairMask of soft masks, the argument of :func:`graphattn.functional.pair_attention`. A
            call must not register parameters, buffers or modules in the source.

        Raises:
            TypeError: ``ptr`` is not an int64 Tensor.
            ValueError: Shapes do not fit, or ``ptr`` does not rise from 0 to the number of tokens
                (:meth:`check_tokens`).
        """

    def causal(self) -> GraphSource:
        """Return a causal copy, in which queries do not attend to later tokens, for models that
        predict the next token. Parameters have the same names in the source and its causal copy, so
        each can load the state dict of the other.

        Raises:
            ValueError: The source has no causal form.
        """
        raise ValueError(f"'source' must implement the method 'causal', because a causal graph is "
                         f"requested (got {type(self).__name__}, which does not)")

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        """Return the gate and the bias that the source gives to each edge of ``graph``: a dict that
        may have the keys ``'edge_gate'`` and ``'edge_bias'``, each a Tensor ``[num_edges]``."""
        return {}

    def reset_parameters(self) -> None:
        """Reinitialise the parameters.

        A source with parameters must implement this method, because an encoder copies its source
        for every layer. Without a new draw, all layers would start from the same parameters.
        """

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that build this source again: a dict of numbers, strings and lists.

        By default, the value of an argument is read from the attribute of the same name.

        Raises:
            ValueError: An argument has no attribute of its name, or the attribute has another type.
        """
        _, *names = inspect.signature(type(self).__init__).parameters
        found = {name: getattr(self, name, self) for name in names}
        for name, value in found.items():
            if not isinstance(value, str | int | float | list | tuple | None):
                raise ValueError(f"{type(self).__name__} must have an attribute {name!r} (a "
                                 f"number, a string or a list) to be saved; set the attribute in "
                                 f"__init__, or implement 'arguments'")
        return found

    def check_tokens(self, query: Tensor, key: Tensor, ptr: Tensor, key_ptr: Tensor | None = None,
                     generator: torch.Generator | None = None) -> None:
        """Raise an error unless queries and keys, the pointers to their sequences, and the
        generator are valid arguments of :meth:`forward`."""
        check_floating(query=query, key=key)
        if generator is not None:
            check_generator(generator)
        # if heads share keys, there may be fewer heads of keys
        for name, x in (('query', query), ('key', key))[:1 + self.per_head]:
            of_token = self.heads, self.head_channels or 'head_channels'
            if self.heads is not None and x.shape[1:] != of_token:
                check_shape(name, x, ('num_tokens', *of_token),
                            ', with the heads and channels of the source')
        if key.device != query.device:
            check_on('key', key, query.device, "'query'")
        if key_ptr is None and key.size(0) != query.size(0):
            raise ValueError(f"'key' must have {query.size(0)} tokens, the tokens of 'query' (got "
                             f"{key.size(0)}); pass 'key_ptr' if the keys are other tokens than "
                             f"the queries")
        check_ptr('ptr', ptr, query.size(0), query.device)
        if ptr.is_meta:
            check_has_numbers('ptr', ptr)
        if key_ptr is not None:
            check_ptr('key_ptr', key_ptr, key.size(0), key.device)
            check_same_sequences(ptr, key_ptr)


def add_terms(source: GraphSource, graph: BipartiteGraph, terms: LogitTerms) -> LogitTerms:
    """Return ``terms`` with the gate and the bias that a source gives to each edge of a graph."""
    own = source.logit_terms(graph)
    for name in own:
        if name not in ('edge_gate', 'edge_bias'):
            raise ValueError(f"'logit_terms' must return a dict with the keys 'edge_gate' and "
                             f"'edge_bias', or without them (got {name!r} from "
                             f"{type(source).__name__})")
    bias = own.get('edge_bias', terms.bias)
    if bias is not terms.bias and terms.bias is not None:
        bias = (terms.bias.unsqueeze(-1).flatten(1) + bias.unsqueeze(-1).flatten(1)).squeeze(1)
    return terms._replace(bias=bias, gate=own.get('edge_gate'))


def check_returned(source: GraphSource, graph: BipartiteGraph | PairMask, query: Tensor,
                   ptr: Tensor, has_all_rows: bool = True) -> None:
    """Raise an error unless ``graph``, which a source has returned, can be one over the sequences
    of ``ptr``."""
    if not isinstance(graph, BipartiteGraph | PairMask):
        raise TypeError(f"'source' must return a BipartiteGraph or a PairMask (got "
                        f"{type(graph).__name__} from {type(source).__name__})")
    if isinstance(graph, PairMask) or not has_all_rows:
        return
    # The segments are only counted, because comparing pointers would synchronise a GPU.
    (num_tokens, heads), num_sequences = query.shape[:2], ptr.size(0) - 1
    wanted = [times * num_sequences for times in (1, heads)
              if graph.num_queries == times * num_tokens]
    if wanted and graph.num_segments not in wanted:
        raise ValueError(f"'source' must return a graph whose segments are the {num_sequences} "
                         f"sequences of 'ptr', for all heads or once for each of {heads} heads "
                         f"(got {graph.num_segments} segments with {graph.num_queries} queries "
                         f"from {type(source).__name__}); build the graph with query_ptr=ptr")


def copy_beside(source: GraphSource, module: nn.Module,
                model: nn.Module | None = None) -> GraphSource:
    """Return a copy of ``source`` with new parameters, on the device and in the dtype of
    ``module``."""
    source = copy.deepcopy(source).train(module.training)
    source.reset_parameters()
    return source.to(*place_beside(module, model))


def place_beside(module: nn.Module, model: nn.Module | None = None,
                 ) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the dtype for new parameters of ``module``, each None if unknown."""
    place = next(module.parameters(), None)
    parameters = chain.from_iterable(part.parameters() for part in (module, model or module))
    # of the model's first floating parameter if all weights of the module are quantised
    dtype = next((each.dtype for each in parameters if is_float(each.dtype)), None)
    return None if place is None else place.device, dtype


def check_same_sequences(ptr: Tensor, key_ptr: Tensor, name: str = 'key_ptr') -> None:
    if key_ptr.numel() != ptr.numel():
        raise ValueError(f"'{name}' must mark {ptr.numel() - 1} sequences, as 'ptr' does (got "
                         f"{key_ptr.numel() - 1})")


def fold_ptr(ptr: Tensor, heads: int, num_tokens: int) -> Tensor:
    """Return the first node of each head and sequence, head 0 first, after folding heads into
    nodes."""
    first_node = torch.arange(heads, device=ptr.device).unsqueeze(1) * num_tokens
    return torch.cat([ptr[:1], (ptr[1:] + first_node).flatten()])
