"""Base class of graph sources."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from graphattn._checks import check_floating, check_has_numbers, check_ptr, is_float
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.ops import LogitTerms
from graphattn.shard import Shard


class GraphSource(nn.Module, ABC):
    """Base class of modules that decide which query attends to which key.

    Attributes:
        per_head (bool): Whether every head owns a graph. If so, heads are folded into nodes
            (:func:`graphattn.layers.fold_heads`): the graph has ``heads`` times as many nodes, and
            the first head's sequences come first.
        heads (int, optional): Number of heads that the source requires; any if ``None``.
        max_length (int, optional): Maximum number of tokens of a sequence; unlimited if ``None``.
    """

    per_head: bool = False
    heads: int | None = None
    max_length: int | None = None

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph | PairMask:
        """Return the graph over all sequences, or a soft mask in its place.

        Args:
            query (Tensor): ``[num_queries, heads, head_channels]``, before scaling.
            key (Tensor): ``[num_keys, heads, head_channels]``. It may have fewer heads, shared by
                groups of query heads, unless the source is ``per_head``.
            ptr (Tensor): Where the queries of each sequence begin, int64 ``[num_sequences + 1]``.
            key_ptr (Tensor, optional): Where the keys of each sequence begin, if they are other
                tokens than the queries. Layers pass it only then, so a source for self-attention
                does not need this argument.
            generator (torch.Generator, optional): Torch's default generator if omitted.

        Returns:
            BipartiteGraph with one segment per sequence, or per head and sequence; or a soft
            PairMask, for :func:`graphattn.functional.pair_attention`. A call must not register
            anything in the module.

        Raises:
            TypeError: ``ptr`` is not an int64 Tensor.
            ValueError: Shapes do not fit, or ``ptr`` does not rise from 0 to the tokens
                (:meth:`check_tokens`).
        """

    def rows(
        self,
        query: Tensor,
        key: Tensor,
        shard: Shard,
        *,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph:
        """Return the rows of the graph that belong to the queries of this process.

        Args:
            query (Tensor): Queries of the shard's tokens, ``[num_own, heads, head_channels]``.
            key (Tensor): Keys of the shard's tokens, shaped like ``query``.
            shard (Shard): The range of the batch's tokens that this process holds.
            generator (torch.Generator, optional): In the same state in all processes.

        Returns:
            BipartiteGraph of own queries and all keys, with the segments of :meth:`forward`.

        Raises:
            NotImplementedError: The source does not implement it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no 'rows', the edges of a process's "
                                  f"own queries; implement it for sequence parallelism")

    def causal(self) -> GraphSource:
        """Return a copy in which no query attends to a later token, for models that predict the
        next token. Parameters keep their names, so each form loads the state dict of the other.

        Raises:
            ValueError: The source has no causal form.
        """
        raise ValueError(f"'source' must have a causal form, in which no query attends to a later "
                         f"token (got {type(self).__name__}, which does not implement 'causal')")

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        """Return the terms that the source's parameters add to the logits, by name: ``edge_gate``
        and ``edge_bias``."""
        return {}

    def reset_parameters(self) -> None:
        """Reinitialise the parameters.

        A source with parameters must implement it, because an encoder copies its source for every
        layer: without a new draw all layers would start from the same parameters.
        """

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that build this source again, as numbers, strings and lists.

        By default, they are read from attributes with the names of the arguments.

        Raises:
            ValueError: There is no such attribute, or it has another type.
        """
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: self._argument(name) for name in names}

    def _argument(self, name: str) -> Any:
        value = getattr(self, name, self)
        if not isinstance(value, str | int | float | list | tuple | None):
            raise ValueError(f"{type(self).__name__} must keep the argument {name!r} as a number, "
                             f"a string or a list in an attribute of this name to be saved; add "
                             f"it, or implement 'arguments'")
        return value

    def check_tokens(self, query: Tensor, key: Tensor, ptr: Tensor,
                     key_ptr: Tensor | None = None) -> None:
        """Raise unless the arguments suit :meth:`forward`."""
        check_floating('query', query)
        check_floating('key', key)
        if self.heads is not None and (query.dim() != 3 or query.size(1) != self.heads):
            raise ValueError(f"'query' must be [num_tokens, heads, head_channels] with the "
                             f"{self.heads} heads of the source (got shape {tuple(query.shape)})")
        if key.device != query.device:
            raise ValueError(f"'key' must be on {query.device}, where 'query' is (got "
                             f"{key.device})")
        if key_ptr is None and key.size(0) != query.size(0):
            raise ValueError(f"'key' must hold the {query.size(0)} tokens of 'query' (got "
                             f"{key.size(0)}); pass 'key_ptr' for other tokens")
        check_ptr('ptr', ptr, query.size(0), query.device)
        if ptr.is_meta:
            check_has_numbers('ptr', ptr)
        if key_ptr is not None:
            check_ptr('key_ptr', key_ptr, key.size(0), key.device)
            check_same_sequences(ptr, key_ptr)


def terms_on(graph: BipartiteGraph, source: GraphSource) -> LogitTerms:
    """Return the terms that a source adds to the logits of a graph."""
    terms = source.logit_terms(graph)
    return LogitTerms(terms.get('edge_bias'), terms.get('edge_gate'))


def copy_beside(source: GraphSource, module: nn.Module,
                model: nn.Module | None = None) -> GraphSource:
    """Return a copy of the source with new parameters, for a module without a source.

    Args:
        source (GraphSource): The source to copy.
        module (nn.Module): The copy is on its device and in its mode.
        model (nn.Module, optional): The model that contains ``module``. The copy has the first
            floating dtype of ``module``, or of ``model`` if all weights of ``module`` are
            quantised.

    Returns:
        GraphSource.
    """
    source = copy.deepcopy(source).train(module.training)
    source.reset_parameters()
    return source.to(*place_beside(module, model))


def place_beside(module: nn.Module, model: nn.Module | None = None,
                 ) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the dtype for parameters that are added to a module; arguments as in
    :func:`copy_beside`."""
    place = next(module.parameters(), None)
    parameters = chain.from_iterable(part.parameters() for part in (module, model or module))
    dtype = next((each.dtype for each in parameters if is_float(each.dtype)), None)
    return None if place is None else place.device, dtype


def check_same_sequences(ptr: Tensor, key_ptr: Tensor, name: str = 'key_ptr') -> None:
    """Raise unless keys and queries have the same number of sequences, which may be empty."""
    if key_ptr.numel() != ptr.numel():
        raise ValueError(f"'{name}' must mark the {ptr.numel() - 1} sequences of 'ptr' (got "
                         f"{key_ptr.numel() - 1})")


def fold_ptr(ptr: Tensor, heads: int, num_tokens: int) -> Tensor:
    """Return the first node of each head and sequence after heads are folded into nodes.

    Args:
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        heads (int): Number of heads that own a graph.
        num_tokens (int): Number of tokens of all sequences.

    Returns:
        int64 Tensor ``[heads * num_sequences + 1]``, the first head's sequences first.
    """
    first_node = torch.arange(heads, device=ptr.device).unsqueeze(1) * num_tokens
    return torch.cat([ptr[:1], (ptr[1:] + first_node).flatten()])
