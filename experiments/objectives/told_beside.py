"""What the encoder of a task of text is told beside the tokens."""

from __future__ import annotations

from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.models import Encoder
from graphattn.patterns import GlobalTokens
from graphattn.sources import PatternSource


def with_global_tokens(encoder: Encoder, ptr: Tensor, num_global: Tensor) -> BipartiteGraph:
    """The graph of the encoder's pattern, in which the first tokens of each sequence also attend to
    all of it, and are attended by all: the question, as in Longformer's tasks.

    Args:
        encoder (Encoder): All layers share its source.
        ptr (Tensor): Where each sequence begins, int64 ``[num_sequences + 1]``.
        num_global (Tensor): How many of its tokens are global, int64 ``[num_sequences]``.
    """
    parts = [GlobalTokens(count).build(length)
             for length, count in zip(ptr.diff().tolist(), num_global.tolist())]
    return encoder.source.graph(ptr) | BipartiteGraph.batch(parts).to(ptr.device)


def segments_for(encoder: Encoder, segments: Tensor) -> Tensor | None:
    """What an encoder is told of segments: nothing if it knows but one, as RoBERTa."""
    known = 0 if encoder.segment_embedding is None else encoder.segment_embedding.num_embeddings
    return segments if known > 1 else None


def check_shares_a_pattern(encoder: Encoder) -> None:
    """Refuses an encoder to whose edges none can be added.

    Raises:
        ValueError: Its layers do not share a pattern, one for all heads.
    """
    source = getattr(encoder, 'source', None)
    if not isinstance(source, PatternSource) or source.per_head:
        raise ValueError("'global_question' needs an encoder with share_source=True and a "
                         "PatternSource of one pattern for all heads")
