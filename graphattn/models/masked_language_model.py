"""BERT's two pre-training tasks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphattn._checks import check_bool, check_ids
from graphattn._explained import Explained
from graphattn.functional.drive import LOCAL, Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.layers.encoder_layer import activation_of
from graphattn.models.classifiers import Pooler, check_local
from graphattn.models.encoder import Encoder, accepts_data, vocabulary_size
from graphattn.sources import GraphSource


class MaskedLanguageModel(nn.Module, Explained):
    r"""Predict tokens, and predict whether the second segment of a sequence follows the first, as
    BERT does.

    .. math::
        \mathrm{token\ logits} = \mathrm{norm}(\mathrm{activation}(W x + b)) \, E^\top + c, \qquad
        \mathrm{sequence\ logits} = W' \, \mathrm{Pooler}(x) + b'

    where :math:`E` are the token embeddings of the encoder. All weights of linear layers and
    embeddings, including those of the encoder, are initialised with standard deviation 0.02, and
    biases with 0. Sources keep their parameters.

    Args:
        encoder (Encoder): Encodes the tokens.
        next_sentence (bool): Whether the model has sequence logits.
        activation (str, optional): Activation before the token logits; the activation of the
            encoder if omitted. In RoBERTa, it is always ``'gelu'``.

    Source:
        Devlin et al., BERT (2019), Sec. 3.1. SparseBERT (Sec. 4.2) pre-trains its masks with this
        model.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder, MaskedLanguageModel
        >>> from graphattn.patterns import Full
        >>> from graphattn.sources import PatternSource
        >>> encoder = Encoder(PatternSource(Full()), num_tokens=100, max_length=16, channels=32,
        ...                   heads=4, num_layers=2, num_segments=2, norm_first=False)
        >>> model = MaskedLanguageModel(encoder)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 4, 20])  # two sequences
        >>> token_logits, sequence_logits = model(tokens, ptr, selected=torch.tensor([2, 7, 9]))
        >>> token_logits.shape, sequence_logits.shape
        (torch.Size([3, 100]), torch.Size([2, 2]))
    """

    def __init__(self, encoder: Encoder, next_sentence: bool = True,
                 activation: str | None = None):
        super().__init__()
        num_tokens = vocabulary_size(encoder)
        check_bool(next_sentence=next_sentence)
        self.encoder = encoder
        channels = encoder.channels
        self.activation = encoder.activation if activation is None else activation
        self.transform = nn.Sequential(nn.Linear(channels, channels),
                                       activation_of(self.activation),
                                       nn.LayerNorm(channels, eps=encoder.norm.eps))
        self.token_bias = nn.Parameter(torch.zeros(num_tokens))
        self.pooler = Pooler(channels) if next_sentence else None
        self.next_sentence = nn.Linear(channels, 2) if next_sentence else None
        _initialise(self)

    @accepts_data
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        segments: Tensor | None = None,
        selected: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> (tuple[Tensor, Tensor | None]
          | tuple[Tensor, Tensor | None, list[BipartiteGraph | PairMask]]):
        """Return logits of tokens and of sequences.

        Args:
            tokens (Tensor): Ids of all sequences, int64 ``[num_tokens]``.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            placement (Placement, optional): As in :meth:`Encoder.forward`.
            segments (Tensor, optional): The segment of each token, int64 ``[num_tokens]``.
            selected (Tensor, optional): Indices of the tokens to return logits of, int64
                ``[num_selected]``; all tokens if omitted.
            generator (torch.Generator, optional): Random generator of sources that draw edges.
            return_graphs (bool): Also return a list with the graph or pair mask of each layer.

        Returns:
            A tuple: token logits ``[num_selected, vocabulary]``; sequence logits ``[num_sequences,
            2]``, where class 0 means that the second segment follows the first, or ``None`` without
            ``next_sentence``; and, with ``return_graphs``, the list of graphs.

        Raises:
            ValueError: :meth:`Encoder.forward` raises it; ``selected`` is out of range; or a
                sequence is empty and the model has sequence logits.
        """
        check_bool(return_graphs=return_graphs)
        if self.pooler is not None:
            check_local(placement)
        x, graphs = self.encoder(tokens, ptr, placement=placement, segments=segments,
                                 generator=generator, return_graphs=True)
        if selected is not None:
            check_ids('selected', selected, x.size(0), x.device)
        token_logits = F.linear(self.transform(x if selected is None else x[selected]),
                                self._embeddings(), self.token_bias)
        sequence_logits = None if self.pooler is None else self.next_sentence(self.pooler(x, ptr))
        logits = token_logits, sequence_logits
        return (*logits, graphs) if return_graphs else logits

    def _embeddings(self) -> Tensor:
        # Includes the update of an adapter.
        embedding, bias = self.encoder.token_embedding, self.token_bias
        if isinstance(embedding, nn.Embedding):
            return embedding.weight
        return embedding(torch.arange(len(bias), device=bias.device))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    for child in module.children():
        if not isinstance(child, GraphSource):
            _initialise(child)
