"""A transformers model in the training of masked tokens that our own models have."""

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
    """Rotary ones, for which a model holds no parameters."""

    num_embeddings: int


class Embeddings(NamedTuple):
    """Members of an encoder that data and training read."""

    token_embedding: nn.Embedding
    position_embedding: Positions
    segment_embedding: None = None


class AttachedBert(nn.Module):
    """``transformers.ModernBertForMaskedLM``, called as
    :class:`graphattn.models.MaskedLanguageModel` is.

    The BERT of 2018 adds embeddings of positions to tokens. So small, it then stays for thousands
    of steps at a loss for which it need not tell one position from another. With rotary positions
    it leaves that within a few hundred.

    Args:
        num_tokens (int): Size of the vocabulary; token 0 is padding.
        max_length (int): The most tokens of a sequence.
        channels (int): Size of each token.
        heads (int): Number of attention heads.
        num_layers (int): Number of layers, with full attention in each.
        hidden_channels (int, optional): Hidden size of the feed-forward networks, which have as
            many gates, ``2 * channels`` if omitted.
        along (GraphSource or str, optional): What :func:`graphattn.hugging_face.attach` attaches it
            to; its own attention if omitted.
        pretrained (str, optional): A checkpoint of such a model that is not attached, to begin
            with.

    Raises:
        ValueError: The checkpoint is damaged or of another model.
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
        """Its embeddings, by our names."""
        return Embeddings(self.bert.get_input_embeddings(), self.positions)

    def forward(
        self, tokens: Tensor, ptr: Tensor, *, segments: None = None, selected: Tensor,
        return_graphs: bool = False,
    ) -> tuple[Tensor, None, list[BipartiteGraph | PairMask]]:
        """Return logits of the selected tokens, and the graphs that sources have drawn for the
        batch.

        Args:
            tokens (Tensor): int64 ``[num_tokens]``, of all sequences.
            ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
            segments (None): There are none.
            selected (Tensor): Which tokens are to be predicted, int64 ``[num_selected]``.
            return_graphs (bool): For the sake of the call.
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
