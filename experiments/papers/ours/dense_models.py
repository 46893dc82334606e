"""Small dense language models, trained on the documentation of the installed Python."""

import random
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from experiments.data.text.corpus import is_held_out, read_documents
from experiments.data.text.tokenizer import special_tokens, train_tokenizer
from experiments.papers.local_data import documentation
from experiments.papers.ours.attached_bert import AttachedBert
from experiments.papers.study import Study
from experiments.surgery import Adaptation, adapt, loss_of
from graphattn.utils.files import new_folder

Kind = Literal['gpt2', 'modernbert']
HELD_OUT = 64  # sequences that no model is trained on
LONGEST = 16_384  # tokens of models with rotary positions
LR = 5e-4  # of later training
MASK = 4  # the id of [MASK]


class Sizes(NamedTuple):
    vocab: int
    length: int
    channels: int
    heads: int
    layers: dict[Kind, int]
    steps: dict[Kind, int]
    batch_size: int


SIZES = {'smoke': Sizes(120, 32, 16, 2, {'gpt2': 2, 'modernbert': 1},
                        {'gpt2': 2, 'modernbert': 2}, 2),
         'small': Sizes(512, 256, 128, 4, {'gpt2': 4, 'modernbert': 2},
                        {'gpt2': 8000, 'modernbert': 6000}, 8),
         'paper': Sizes(4096, 512, 256, 8, {'gpt2': 4, 'modernbert': 4},
                        {'gpt2': 20_000, 'modernbert': 40_000}, 16)}


def dense_model(study: Study, kind: Kind) -> Path:
    """Train a model once; its folder has sequences ``ids.npy``, the first 64 of them held out."""
    return study.made(f'dense-{kind}', partial(_build, study, kind))


def _build(study: Study, kind: Kind, folder: Path) -> None:
    sizes = SIZES[study.scale]
    tokens = _sequences(study, sizes)
    torch.manual_seed(0)
    model = _untrained(kind, sizes)
    mask = MASK if kind == 'modernbert' else None
    adapt(model, torch.from_numpy(tokens[HELD_OUT:]), loss_of(model, mask),
          Adaptation(sizes.steps[kind], lr=3e-3, batch_size=sizes.batch_size))
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary)
        np.save(temporary / 'ids.npy', tokens)


def _sequences(study: Study, sizes: Sizes) -> np.ndarray:
    """Return the tokens of all documents in sequences of equal length, with held-out ones first."""
    documents = [*read_documents(documentation(study))]
    random.Random(0).shuffle(documents)
    documents.sort(key=is_held_out, reverse=True)
    texts = [' '.join(document) for document in documents]
    tokenizer = train_tokenizer(lambda: texts, sizes.vocab)
    end = special_tokens(tokenizer).sep
    ids = np.fromiter(chain.from_iterable(
        [*text.ids, end] for text in tokenizer.encode_batch_fast(texts, add_special_tokens=False)),
        np.int64)
    return ids[:len(ids) // sizes.length * sizes.length].reshape(-1, sizes.length)


def _untrained(kind: Kind, sizes: Sizes) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    if kind == 'modernbert':
        return AttachedBert(sizes.vocab, LONGEST, sizes.channels, sizes.heads,
                            sizes.layers[kind]).bert
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=sizes.vocab, n_positions=sizes.length, n_embd=sizes.channels,
        n_head=sizes.heads, n_layer=sizes.layers[kind], attn_pdrop=0., embd_pdrop=0.,
        resid_pdrop=0., bos_token_id=None, eos_token_id=None))
