"""What every graph source promises."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from graphattn.graph import BipartiteGraph
from graphattn.pair_mask import PairMask


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
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph | PairMask:
        """The graph over all sequences, or the mask that is learned in its stead.

        Args:
            query (Tensor): ``[num_tokens, heads, head_channels]``, before scaling.
            key (Tensor): ``[num_tokens, heads, head_channels]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            generator (torch.Generator, optional): Torch's default generator if omitted.

        Returns:
            BipartiteGraph with one block per sequence, or per head and sequence; or PairMask, for
            :func:`graphattn.functional.pair_attention`.
        """

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        """How the source's parameters enter the logits: ``edge_gate`` and ``edge_bias``."""
        return {}

    def reset_parameters(self) -> None:
        """Draws the source's parameters anew, if it has any."""
