"""A wrapper of a model of transformers, for this project's training on masked tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch
from torch_geometric.utils.sparse import ptr2index

from experiments.runs.checkpoints import read_checkpoint
from graphattn import BipartiteGraph
from graphattn.graphs import PairMask
from graphattn.hugging_face import attach
from graphattn.sources import GraphSource


class Positions(NamedTuple):
    """Rotary positions of ModernBERT, which have no parameters. This object replaces position
    embeddings in code that reads their size."""

    num_embeddings: int


class Embeddings(NamedTuple):
    """The embeddings of a ModernBERT, under the attribute names by which data modules and training
    read the sizes of an encoder."""

    token_embedding: nn.Embedding
    position_embedding: Positions
    segment_embedding: None = None


class AttachedBert(nn.Module):
    """``transformers.ModernBertForMaskedLM`` as a masked language model of this project.

    Its interface is that of :class:`graphattn.models.MaskedLanguageModel`.

    BERT (2018) adds position embeddings to tokens. At this size, its loss then stays on a plateau
    for thousands of steps, because the model does not yet use positions. With rotary positions, the
    loss leaves the plateau within a few hundred steps.

    Args:
        num_tokens (int): Size of the vocabulary; token 0 is padding.
        max_length (int): Maximum number of tokens of a sequence.
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers, all with full attention.
        hidden_channels (int, optional): Hidden size and number of gates of the feed-forward
            networks. If omitted, ``2 * channels``.
        along (GraphSource or str, optional): Source or pattern for
            :func:`graphattn.hugging_face.attach`. If omitted, the model keeps its own attention.
        pretrained (str, optional): A checkpoint to initialise the model from, of an
            ``AttachedBert`` without ``along``.

    Raises:
        ValueError: The checkpoint is damaged, or does not fit the model.
    """

    def __init__(self, num_tokens: int, max_length: int, channels: int, heads: int,
                 num_layers: int, hidden_channels: int | None = None,
                 along: GraphSource | str | None = None, pretrained: str | None = None):
        from transformers import ModernBertConfig, ModernBertForMaskedLM
        super().__init__()
        self.positions = Positions(max_length)
        self.bert = ModernBertForMaskedLM(ModernBertConfig(
            vocab_size=num_tokens, max_position_embeddings=max_length, hidden_size=channels,
            num_attention_heads=heads, num_hidden_layers=num_layers,
            layer_types=['full_attention'] * num_layers,
            intermediate_size=hidden_channels or 2 * channels,
            initializer_range=channels**-0.5, pad_token_id=0, bos_token_id=None, eos_token_id=None,
            cls_token_id=None, sep_token_id=None))
        if pretrained is not None:
            state = read_checkpoint(Path(pretrained))['state_dict']
            self.load_state_dict({name.removeprefix('model.'): value
                                  for name, value in state.items()})
        if along is not None:
            attach(self.bert, along)

    @property
    def encoder(self) -> Embeddings:
        """Return an object with the sizes of the model's embeddings, which data modules read from
        an encoder."""
        return Embeddings(self.bert.get_input_embeddings(), self.positions)

    def forward(
        self, tokens: Tensor, ptr: Tensor, *, segments: None = None, selected: Tensor,
        return_graphs: bool = False,
    ) -> tuple[Tensor, None, list[BipartiteGraph | PairMask]]:
        """Return the logits of the selected tokens, ``None``, and the sampled graphs of the batch.

        Args:
            tokens (Tensor): Ids of all sequences, int64 ``[num_tokens]``.
            ptr (Tensor): The start of each sequence, int64 ``[num_sequences + 1]``.
            segments (None): Must be ``None``; segments are unsupported.
            selected (Tensor): Positions of the tokens to predict, int64 ``[num_selected]``.
            return_graphs (bool): Ignored; graphs are always returned.
        """
        graphs: list[BipartiteGraph | PairMask] = []
        hooks = [module.register_forward_hook(lambda _, given, graph: graphs.append(graph))
                 for module in self.modules() if isinstance(module, GraphSource)]
        try:
            padded, is_token = to_dense_batch(tokens, ptr2index(ptr))
            hidden = self.bert.model(padded, attention_mask=is_token).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return self.bert.decoder(self.bert.head(hidden[is_token][selected])), None, graphs
