"""The base class of text tasks: tokenizer, checks of the model, and order of batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader

from experiments.data.sequences import check_at_least
from experiments.data.text.tokenizer import (
    check_vocabulary,
    load_tokenizer,
    train_byte_pairs,
    train_tokenizer,
)
from experiments.tasks.batch_stream import Batches, StreamedTask
from graphattn.utils.files import write_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def spread_of_lengths(lengths: Sequence[int] | np.ndarray) -> str:
    """Return a text with the statistics of Diffuser's Tables S.9, S.11 and S.12."""
    if len(lengths) == 0:
        return 'no tokens'
    least, *quantiles, longest = np.percentile(lengths, [0, 25, 50, 75, 95, 100]).tolist()
    quarter, median, three, most = (f'{value:,.0f}' for value in quantiles)
    return (f'{np.sum(lengths):,} tokens: mean {np.mean(lengths):,.1f}, least {least:,.0f}, '
            f'25 % {quarter}, median {median}, 75 % {three}, 95 % {most}, longest {longest:,.0f}')


class TokenizedTask(StreamedTask):
    """Base class of text tasks: texts as token ids, in batches of similar length.

    The training order depends only on (``seed``, epoch), and batches are indexed over the whole
    run. A run can therefore resume at any batch, with any number of workers.

    Args:
        max_length (int): Maximum number of tokens of a sequence.
        batch_size (int): Number of examples per step and process.
        tokenizer (str, optional): A tokenizer.json, a vocab.txt, or a folder or name of Hugging
            Face's. If omitted, a tokenizer of at most ``vocab_size`` tokens is trained on the
            training part.
        vocab_size (int): Maximum vocabulary size of the tokenizer, if it is trained.
        seed (int): Seed of the training order.
        num_workers (int): Number of data-loading workers per training process.
        cache (str): The folder of trained tokenizers.
    """

    byte_pairs = False  # whether the trained tokenizer has them, instead of WordPieces

    def __init__(self, max_length: int, batch_size: int, tokenizer: str | None = None,
                 vocab_size: int = 8192, seed: int = 0, num_workers: int = 0,
                 cache: str = 'data/cache'):
        super().__init__()
        check_at_least(100, vocab_size=vocab_size)
        check_at_least(1, batch_size=batch_size)
        check_at_least(self.shortest, max_length=max_length)
        check_at_least(0, seed=seed, num_workers=num_workers)
        self.tokenizer_path, self.vocab_size = tokenizer, vocab_size
        self.max_length, self.batch_size = max_length, batch_size
        self.seed, self.num_workers, self.cache = seed, num_workers, Path(cache)
        self.sets: dict[str, Any] = {}  # of encoded examples by part, filled by setup

    @property
    @abstractmethod
    def shortest(self) -> int:
        """Return the smallest ``max_length`` that the task allows."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Yield the texts on which a tokenizer is trained."""

    def prepare_data(self) -> None:
        model = None if self.trainer is None else self.trainer.lightning_module.model
        if model is not None:
            self.check_model(model)
        if self.tokenizer_path is None and not (path := self._trained_tokenizer).exists():
            train = train_byte_pairs if self.byte_pairs else train_tokenizer
            trained = train(self.texts, self.vocab_size)
            write_whole(path, lambda temporary: trained.save(str(temporary)))
        if model is None:  # without a training
            return
        check_vocabulary(self.load_tokenizer(), model.encoder.token_embedding.num_embeddings,
                         self.trainer.lightning_module.pretrained_tokenizer)

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that was given, or the tokenizer that was trained for this task."""
        return load_tokenizer(self.tokenizer_path or self._trained_tokenizer)

    def train_dataloader(self) -> DataLoader:
        return self.for_training(self.sets['train'].batch, self.sets['train'].lengths)

    def in_order(self, part: str) -> DataLoader:
        return self.longest_first(self.sets[part].batch, self.sets[part].lengths)

    def for_training(self, make: Callable[[list[int]], Any], lengths: np.ndarray) -> DataLoader:
        """Return a loader of endless training batches of examples of similar length."""
        return self.streamed(Batches(make), len(lengths), lengths=lengths)

    @property
    def _trained_tokenizer(self) -> Path:
        digest = blake2b(f'{self.vocab_size}'.encode(), digest_size=12)
        for text in self.texts():
            digest.update(text.encode() + b'\0')
        return self.cache / f'tokenizer-{digest.hexdigest()}.json'
