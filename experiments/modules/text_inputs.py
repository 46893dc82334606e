"""Additional inputs of a text encoder: edges of questions, and segments."""

from functools import reduce
from operator import or_

import torch
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.models import Encoder
from graphattn.patterns import GlobalTokens
from graphattn.sources import PatternSource


def graph_of_questions(encoder: Encoder, tokens: Tensor, ptr: Tensor, num_asked: Tensor, *,
                       is_global: bool, links_equal: bool) -> BipartiteGraph | None:
    """Return the graph of the encoder's pattern with additional edges for questions, or ``None`` if
    no such edges are requested."""
    if not is_global and not links_equal:
        return None
    more = []
    if is_global:
        parts = [GlobalTokens(count).build(length)
                 for length, count in zip(ptr.diff().tolist(), num_asked.tolist())]
        more.append(BipartiteGraph.batch(parts).to(ptr.device))
    if links_equal:
        more.append(_equal_tokens(tokens, ptr, num_asked))
    return reduce(or_, more, encoder.source.graph(ptr))


def _equal_tokens(tokens: Tensor, ptr: Tensor, num_asked: Tensor) -> BipartiteGraph:
    pairs = []
    for begin, end, count in zip(ptr.tolist(), ptr.tolist()[1:], num_asked.tolist()):
        asked, text = tokens[begin + 1:begin + count - 1], tokens[begin + count:end - 1]
        place, other = (asked.unsqueeze(1) == text).nonzero().unbind(dim=1)
        pairs.append(torch.stack([begin + 1 + place, begin + count + other]))
    there = torch.cat([tokens.new_empty(2, 0), *pairs], dim=1)
    edges = torch.cat([there, there.flip(0)], dim=1)
    return BipartiteGraph.from_edge_index(edges, tokens.numel(), tokens.numel(), query_ptr=ptr,
                                          key_ptr=ptr)


def segments_for(encoder: Encoder, segments: Tensor) -> Tensor | None:
    """Return the ``segments`` that an encoder needs as input, or ``None`` if it has a single
    segment, like RoBERTa."""
    known = 0 if encoder.segment_embedding is None else encoder.segment_embedding.num_embeddings
    return segments if known > 1 else None


def check_shares_a_pattern(encoder: Encoder, option: str) -> None:
    """Raise an error unless all heads and layers of an encoder share one pattern, which ``option``
    requires because it adds edges to the pattern."""
    source = getattr(encoder, 'source', None)
    if not isinstance(source, PatternSource) or source.per_head:
        raise ValueError(f"'{option}' requires an encoder with share_source=True and a "
                         f"PatternSource of one pattern for all heads; omit '{option}' for other "
                         f"encoders")
