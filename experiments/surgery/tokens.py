"""Sequences of tokens for a language model of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from graphattn.utils.reading import read_array

PADDING = -1


def read_tokens(path: Path, folder: Path, length: int, num_tokens: int) -> Tensor:
    """Read sequences of token ids, int64 ``[sequences, length]`` with -1 for padding."""
    if not path.is_file():
        raise ValueError(f"'data' must be a file (there is no {path})")
    ids = _ids(path) if path.suffix == '.npy' else _tokenized(path, folder)
    if ids.ndim == 1:
        ids = ids[:len(ids) // length * length].reshape(-1, length)
    ids = ids[:, :length]
    if ids.shape[1] < length or len(ids) < 2:
        raise ValueError(f"'data' must hold at least two sequences of {length} tokens (got "
                         f"{ids.shape[0]} of {ids.shape[1]} in {path}); use a smaller 'length'")
    if ids.min() < PADDING or ids.max() >= num_tokens:
        raise ValueError(f"'data' must hold tokens from 0 to {num_tokens - 1}, which the model "
                         f"knows, and {PADDING} for padding (got {ids.min()} to {ids.max()} in "
                         f"{path})")
    is_padding = ids == PADDING
    is_wrong = is_padding[:, :2].any(1) | (is_padding[:, :-1] & ~is_padding[:, 1:]).any(1)
    if is_wrong.any():
        raise ValueError(f"'data' must hold at least two tokens in each row before its padding "
                         f"(got row {is_wrong.argmax()} of {path})")
    return torch.from_numpy(ids.astype(np.int64))


def _ids(path: Path) -> np.ndarray:
    try:
        ids = read_array(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"'data' must be an .npy file of integers (got {path}: {error}"
                         f")") from error
    if ids.dtype.kind not in 'iu' or ids.ndim not in (1, 2):
        raise ValueError(f"'data' must be an .npy file of integers with one or two dimensions (got "
                         f"{ids.dtype} with {ids.ndim} in {path})")
    return ids


def _tokenized(path: Path, folder: Path) -> np.ndarray:
    from transformers import AutoTokenizer

    try:
        text = path.read_text(encoding='utf-8')
    except UnicodeDecodeError as error:
        raise ValueError(f"'data' must be text in UTF-8 or an .npy file (got {path}: {error}"
                         f")") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"'data' must be an .npy file of ids, because {folder} has no tokenizer "
                         f"(got {path})") from error
    ids = tokenizer(text, verbose=False)['input_ids']
    if text.strip() and not ids:  # transformers makes a tokenizer without words
        raise ValueError(f"'data' must be an .npy file of ids, because the tokenizer of {folder} "
                         f"is missing or knows no word of the text (got {path})")
    return np.array(ids, dtype=np.int64)


@torch.no_grad()
def drawn_tokens(model: nn.Module, sequences: int, length: int, seed: int,
                 **options: Any) -> Tensor:
    """Draw sequences from a causal language model, int64 ``[sequences, length]``."""
    was_training, end = model.training, model.config.eos_token_id
    model.eval()
    first, tokens = model.config.bos_token_id or 0, torch.full((sequences, length), PADDING)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for rows in tqdm(torch.arange(sequences).split(32), 'drawing', unit='batch', disable=None):
            drawn = model.generate(
                torch.full((len(rows), 1), first), do_sample=True, max_length=length, top_k=0,
                pad_token_id=model.config.pad_token_id or 0, **options)
            ended = (drawn == end).cumsum(1) - (drawn == end).long() > 0
            tokens[rows, :drawn.size(1)] = drawn.masked_fill(ended, PADDING)
    model.train(was_training)
    return tokens
