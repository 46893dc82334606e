"""Hugging Face's BigBird block-sparse attention."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.adapters import Adapter
from graphattn.testing.supports import DTYPES, Supports

BLOCK, NUM_RANDOM, SEED = 2, 1, 5
NUM_TOKENS = (16, 40)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return BigBird's attention, without use of ``mask``."""
    # a call for each head, so that all have the random blocks of the first
    heads = zip(*(x.split(1, dim=1) for x in (query, key, value)), strict=True)
    return torch.cat([_attend(*nodes) for nodes in heads], dim=1)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel
    num_tokens, channels = query.shape[2:]
    module = _module(num_tokens)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, num_tokens, dtype=query.dtype), BLOCK)
    out, _ = module.bigbird_block_sparse_attention(
        query, key, value, band, rows, columns, blocked, blocked, 1, NUM_RANDOM, channels, BLOCK,
        BLOCK, 1, num_tokens, num_tokens, SEED, None, None)
    return out.view(1, num_tokens, 1, channels).transpose(1, 2)


def _module(num_tokens: int) -> Any:
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
    config = SimpleNamespace(max_position_embeddings=num_tokens, hidden_size=4,
                             num_attention_heads=1, num_random_blocks=NUM_RANDOM, block_size=BLOCK,
                             use_bias=False)
    return BigBirdBlockSparseAttention(config, SEED)


def graph(num_tokens: int) -> BipartiteGraph:
    """Return BigBird's published mask: global ends, neighbours, and the module's random blocks."""
    import numpy as np
    module, count = _module(num_tokens), num_tokens // BLOCK
    blocks = torch.zeros(count, count, dtype=torch.bool)
    blocks[[0, -1]] = blocks[:, [0, -1]] = True
    for offset in (-1, 0, 1):
        blocks |= torch.ones(count, dtype=torch.bool).diag().roll(offset, 1)
    plan, state = module._get_rand_attn_plan(num_tokens, BLOCK, NUM_RANDOM), np.random.get_state()
    np.random.seed(SEED)
    drawn = module._bigbird_block_rand_mask_with_head(
        num_tokens, num_tokens, BLOCK, BLOCK, 1, *plan)[0]
    np.random.set_state(state)  # of the caller
    for row, columns in enumerate(drawn, 1):
        blocks[row, torch.as_tensor(columns).long()] = True
    return BipartiteGraph.from_mask(blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1))


def graphs() -> Mapping[str, BipartiteGraph]:
    return {f'{size} tokens': graph(size) for size in NUM_TOKENS}


SUPPORTS = Supports(dtypes=DTYPES[:2], strides=True, deterministic=True)
ADAPTERS = {'big_bird': Adapter(attention, 'transformers', SUPPORTS, graphs=graphs)}
