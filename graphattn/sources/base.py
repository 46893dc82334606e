"""The base of graph sources."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from itertools import chain

import torch
from torch import Tensor, nn

from graphattn._checks import check_floating, check_has_numbers, check_ptr, is_float
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.ops import LogitTerms
from graphattn.shard import Shard


class GraphSource(nn.Module, ABC):
    """Decides, for given queries and keys, which query attends to which key.

    Attributes:
        per_head (bool): Whether every head owns a graph. If so, the graph has ``heads`` times as
            many nodes, the first head's sequences first (:func:`graphattn.layers.fold_heads`).
        heads (int, optional): Number of heads that the source was made for; any if ``None``.
        max_length (int, optional): Tokens of the longest sequence that it knows; any if ``None``.
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
            key (Tensor): ``[num_keys, heads, head_channels]``, or of fewer heads, which several of
                the queries share, unless the source is ``per_head``.
            ptr (Tensor): Where the queries of each sequence begin, int64 ``[num_sequences + 1]``.
            key_ptr (Tensor, optional): Where the keys of each begin, if they are not the same
                tokens. Only then is it passed: a source that has no such argument is for tokens
                that attend to one another.
            generator (torch.Generator, optional): Torch's default generator if omitted.

        Returns:
            BipartiteGraph with one segment per sequence, or per head and sequence; or a soft
            PairMask, for :func:`graphattn.functional.pair_attention`. Nothing is registered or
            built into the module on the way.

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
            query (Tensor): Of the shard's tokens, ``[num_own, heads, head_channels]``.
            key (Tensor): As ``query``.
            shard (Shard): Which tokens of which batch they are.
            generator (torch.Generator, optional): In one state in all processes.

        Returns:
            BipartiteGraph with the segments of :meth:`forward`, of own queries and all keys.

        Raises:
            NotImplementedError: The source has none of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no 'rows', which give a process the "
                                  f"edges of its own queries; sequence parallelism needs them")

    def causal(self) -> GraphSource:
        """Return a copy in which no query attends to a later token, as models that predict the next
        one need. Its parameters have the same names, so that either form loads the other's.

        Raises:
            ValueError: The source has no such form.
        """
        raise ValueError(f"'source' must have a causal form, in which no query attends to a later "
                         f"token (got {type(self).__name__}, which has none)")

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        """Return how the source's parameters enter the logits: ``edge_gate`` and ``edge_bias``."""
        return {}

    def reset_parameters(self) -> None:
        """Draw the source's parameters anew.

        A source that has any implements it: an encoder copies its source for every layer and then
        calls this, without which all layers begin with the same parameters.
        """

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
            raise ValueError(f"'key' must hold the tokens of 'query', of which there are "
                             f"{query.size(0)} (got {key.size(0)}); or give 'key_ptr'")
        check_ptr('ptr', ptr, query.size(0), query.device)
        if ptr.is_meta:
            check_has_numbers('ptr', ptr)
        if key_ptr is not None:
            check_ptr('key_ptr', key_ptr, key.size(0), key.device)
            check_same_sequences(ptr, key_ptr)


def terms_on(graph: BipartiteGraph, source: GraphSource) -> LogitTerms:
    """Return how the parameters of a source enter the logits of a graph."""
    terms = source.logit_terms(graph)
    return LogitTerms(terms.get('edge_bias'), terms.get('edge_gate'))


def copy_beside(source: GraphSource, module: nn.Module,
                model: nn.Module | None = None) -> GraphSource:
    """Return a copy of the source for a module that has none, with parameters drawn anew.

    Args:
        source (GraphSource): What is copied.
        module (nn.Module): On whose device and in whose mode the copy is.
        model (nn.Module, optional): What ``module`` is a part of. The copy has the dtype that they
            compute in; weights that are quantised are of others.

    Returns:
        GraphSource.
    """
    source = copy.deepcopy(source).train(module.training)
    source.reset_parameters()
    return source.to(*place_beside(module, model))


def place_beside(module: nn.Module, model: nn.Module | None = None,
                 ) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the dtype of what is added to a module; arguments as in
    :func:`copy_beside`."""
    place = next(module.parameters(), None)
    parameters = chain.from_iterable(part.parameters() for part in (module, model or module))
    dtype = next((each.dtype for each in parameters if is_float(each.dtype)), None)
    return None if place is None else place.device, dtype


def check_same_sequences(ptr: Tensor, key_ptr: Tensor, name: str = 'key_ptr') -> None:
    """Raise unless there are keys, or none, for each sequence of queries."""
    if key_ptr.numel() != ptr.numel():
        raise ValueError(f"'{name}' must mark as many sequences as 'ptr', {ptr.numel() - 1} (got "
                         f"{key_ptr.numel() - 1})")


def fold_ptr(ptr: Tensor, heads: int, num_tokens: int) -> Tensor:
    """Return the first node of each sequence of each head, once heads are folded into nodes.

    Args:
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        heads (int): Number of heads that own a graph.
        num_tokens (int): Of all sequences.

    Returns:
        int64 Tensor ``[heads * num_sequences + 1]``, the first head's sequences first.
    """
    first_node = torch.arange(heads, device=ptr.device).unsqueeze(1) * num_tokens
    return torch.cat([ptr[:1], (ptr[1:] + first_node).flatten()])
