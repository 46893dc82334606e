"""A wrapper of a model of transformers, for this project's training on masked tokens."""

from pathlib import Path
from types import SimpleNamespace

from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch
from torch_geometric.utils.sparse import ptr2index

from experiments.runs.checkpoints import read_checkpoint
from graphattn import BipartiteGraph
from graphattn.graphs import PairMask
from graphattn.hugging_face import attach
from graphattn.sources import GraphSource


class AttachedBert(nn.Module):
    """A ModernBERT of transformers, maybe attached to a graph, as a masked language model."""

    # BERT (2018) adds position embeddings to tokens. At this size, its loss then stays on a plateau
    # for thousands of steps, which it leaves within a few hundred with rotary positions.

    def __init__(self, num_tokens: int, max_length: int, channels: int, heads: int,
                 num_layers: int, hidden_channels: int | None = None,
                 along: GraphSource | str | None = None, pretrained: str | None = None):
        from transformers import ModernBertConfig, ModernBertForMaskedLM
        super().__init__()
        self.max_length = max_length
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
    def encoder(self) -> SimpleNamespace:
        """The sizes of embeddings that data modules read of an encoder."""
        return SimpleNamespace(
            token_embedding=self.bert.get_input_embeddings(), segment_embedding=None,
            position_embedding=SimpleNamespace(num_embeddings=self.max_length))

    def forward(
        self, tokens: Tensor, ptr: Tensor, *, segments: None = None, selected: Tensor,
        return_graphs: bool = False,
    ) -> tuple[Tensor, None, list[BipartiteGraph | PairMask]]:
        """Return the logits of the selected tokens, ``None``, and the sampled graphs."""
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
