"""Choice of one of several answers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from graphattn._checks import check_bool, check_choice, check_dropout, check_ids
from graphattn._explained import Explained
from graphattn._tensors import cache_host_copies
from graphattn.functional.drive import LOCAL, Placement
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_mask import PairMask
from graphattn.models.classifiers import Pooler, check_local, check_not_empty
from graphattn.models.data import accepts_data
from graphattn.models.encoder import Encoder, check_encoder


class MultipleChoiceModel(nn.Module, Explained):
    r"""Compute a logit for each choice, :math:`\langle w, x \rangle + b`, from the features x of
    the choice. A softmax over the choices of a question turns logits into probabilities.

    One token represents each choice. If each choice has its own sequence, which also contains the
    question, as in SWAG, the first token of the sequence represents the choice. If a sequence lists
    all choices, each after a special token, as in Longformer's WikiHop, pass the indices of these
    special tokens as ``selected``.

    Args:
        encoder (Encoder): Encodes the tokens.
        pooling (str): Features of a choice. ``'first'`` is the encoded token that represents the
            choice; ``'pooler'`` is BERT's pooler of this token, see :class:`Pooler`.
        dropout (float): Dropout on the features of a choice.

    Raises:
        ValueError: ``pooling`` is unknown.

    Source: Devlin et al., BERT (2019), Sec. 4.4; Beltagy et al., "Longformer" (2020), App. D.

    Example:
        >>> import torch
        >>> from graphattn.models import Encoder, MultipleChoiceModel
        >>> encoder = Encoder('Full', num_tokens=100, max_length=16, channels=32, heads=4,
        ...                   num_layers=2)
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 8, 20])  # two sequences
        >>> model = MultipleChoiceModel(encoder)
        >>> model(tokens, ptr).shape, model(tokens, ptr, selected=torch.tensor([2, 5, 9])).shape
        (torch.Size([2]), torch.Size([3]))
    """

    def __init__(self, encoder: Encoder, *, pooling: Literal['first', 'pooler'] = 'pooler',
                 dropout: float = 0.):
        super().__init__()
        check_encoder(encoder)
        check_choice('pooling', pooling, ('first', 'pooler'))
        check_dropout(dropout=dropout)
        self.encoder = encoder
        self.pooler = Pooler(encoder.channels) if pooling == 'pooler' else None
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(encoder.channels, 1))

    @accepts_data
    @cache_host_copies
    def forward(
        self,
        tokens: Tensor,
        ptr: Tensor,
        *,
        placement: Placement = LOCAL,
        segments: Tensor | None = None,
        selected: Tensor | None = None,
        graph: BipartiteGraph | None = None,
        generator: torch.Generator | None = None,
        return_graphs: bool = False,
    ) -> Tensor | tuple[Tensor, list[BipartiteGraph | PairMask]]:
        """Return logits ``[num_choices]``. The arguments other than ``selected`` are those of
        :meth:`Encoder.forward`. With ``return_graphs``, return a pair of the logits and the list of
        graphs.

        Args:
            selected (Tensor, optional): Indices of the tokens that represent choices, int64
                ``[num_choices]``; the first token of each sequence if omitted.

        Raises:
            ValueError: :meth:`Encoder.forward` raises it; ``selected`` is out of range; or
                ``selected`` is omitted and a sequence is empty.
        """
        check_bool(return_graphs=return_graphs)
        if selected is None:
            check_local(placement)
        x, graphs = self.encoder(tokens, ptr, placement=placement, segments=segments, graph=graph,
                                 generator=generator, return_graphs=True)
        if selected is None:
            check_not_empty(ptr)
            selected = ptr[:-1]
        check_ids('selected', selected, x.size(0), x.device)
        choices = x[selected]
        if self.pooler is not None:
            choices = self.pooler(choices, torch.arange(len(choices) + 1, device=x.device))
        logits = self.head(choices).squeeze(1)
        return (logits, graphs) if return_graphs else logits
