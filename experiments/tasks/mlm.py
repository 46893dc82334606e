"""BERT's pre-training on any text: prediction of masked tokens and of next sentences."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, Dataset

from experiments.data.batch import TextBatch
from experiments.data.text.corpus import build_docs, read_documents
from experiments.data.text.encoding import EncodedCorpus, corpus_key, encode_corpus
from experiments.data.text.tokenizer import SpecialTokens, special_tokens
from experiments.runs.figures import mask_probabilities
from experiments.tasks.tokenized import TokenizedTask, spread_of_lengths
from graphattn.sources import LearnedMaskSource
from graphattn.utils.files import write_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PARTS = ('train', 'dev', 'test')
# shares of the selected tokens; the other selected tokens are unchanged
MASKED, REPLACED = 0.8, 0.1


class MaskedLanguage(TokenizedTask):
    r"""Sequences of a corpus, in which hidden tokens must be predicted::

        tokens    [CLS] the loss [MASK] zero . [SEP] it is lamp minimum . [SEP]
        segments    0    0   0     0     0   0   0    1  1   1     1    1   1
        selected                   3                         9
        target                     is                        a
        label     0: the second segment follows the first; 1: it is from another document

    The task is that of BERT (Devlin et al., Sec. 3.1 and Appendix A.2). In each epoch, a new 15 %
    of the tokens are selected. Of these, 80 % become [MASK], 10 % become a random word, and 10 %
    are unchanged. A sequence consists of whole sentences of a document, and is the same in every
    epoch. In half of the sequences, the second segment is replaced by an equally long piece of
    another document. The replaced sentences are not reused as in BERT's code, but appear in another
    epoch. A sequence depends only on (``seed``, epoch, its index), not on processes, workers or
    resumption.

    With ``max_length=4096``, ``next_sentence=False`` and ``short_share=0``, a sequence is a whole
    document, or the part of a document that fits, as in Longformer's and Diffuser's pre-training.

    One document in twenty is for development. The same documents are for testing, with other masks.

    Args:
        corpus (str): A text file, a folder, or a data set of Hugging Face, see
            :func:`experiments.data.text.corpus.read_documents`. With ``'docs'``, the corpus is the
            documentation of the installed Python, which is collected first.
        byte_pairs (bool): Whether the trained tokenizer is a byte-pair tokenizer, like RoBERTa's.
            If false, it is a case-insensitive WordPiece tokenizer, like BERT's.
        max_length (int): Maximum number of tokens of a sequence, special tokens included.
        batch_size (int): Number of sequences per step and process.
        next_sentence (bool): Whether a sequence has two segments and a label. If false, it has one
            segment.
        short_share (float): Fraction of sequences that are shorter than ``max_length``.
        masked_share (float): Fraction of the tokens to predict.
        **kwargs: Arguments of :class:`experiments.tasks.tokenized.TokenizedTask`.
    """

    shortest = 8

    def __init__(
        self,
        corpus: str = 'docs',
        byte_pairs: bool = False,
        max_length: int = 128,
        batch_size: int = 32,
        next_sentence: bool = True,
        short_share: float = 0.1,
        masked_share: float = 0.15,
        **kwargs,
    ):
        super().__init__(max_length, batch_size, **kwargs)
        if not 0. <= short_share <= 1.:
            raise ValueError(f"'short_share' must be in [0, 1] (got {short_share})")
        if not 0. < masked_share <= 1.:
            raise ValueError(f"'masked_share' must be above 0 and at most 1 (got {masked_share})")
        self.corpus, self.byte_pairs, self.next_sentence = corpus, byte_pairs, next_sentence
        self.short_share, self.masked_share = short_share, masked_share

    def prepare_data(self) -> None:
        if self.tokenizer_path is None:  # the corpus is needed to train one
            self.check_model(self.trainer.lightning_module.model)
            self._collect()
        super().prepare_data()
        self._collect()
        tokenizer = self.load_tokenizer()
        folder = self._encoded_folder(tokenizer)
        if not folder.exists():
            encode_corpus(self._corpus_path, tokenizer, folder)
        for part in ('train', 'val'):
            encoded = EncodedCorpus(folder / part)
            if self.next_sentence and encoded.num_documents < 2:
                raise ValueError(f"'corpus' must have at least two documents for training and two "
                                 f"for development with next_sentence=True (got one for {part}); "
                                 f"add documents, or pass next_sentence=False")
            self._cut(encoded)
            lengths = np.diff(encoded.sentence_ptr[encoded.document_ptr])
            print(f'{self.corpus}, {part:<5} {len(lengths):>7,} documents; '
                  f'{spread_of_lengths(lengths)}')
        write_whole(Path(self.trainer.default_root_dir) / 'tokenizer.json',
                    lambda path: tokenizer.save(str(path)))

    def setup(self, stage: str | None = None) -> None:
        # The first process has already written the files, in prepare_data.
        tokenizer = self.load_tokenizer()
        special = special_tokens(tokenizer)
        folder = self._encoded_folder(tokenizer)
        parts = {'train': 'train', 'dev': 'val', 'test': 'val'}
        self.unigram_entropy = EncodedCorpus(folder / 'train').unigram_entropy(special)
        self.size = EncodedCorpus(folder / 'val').size
        self.sets = {name: self._examples(EncodedCorpus(folder / part), special, name)
                     for name, part in parts.items()}

    def train_dataloader(self) -> DataLoader:
        return self.in_order('train')

    def in_order(self, part: str) -> DataLoader:
        examples = self.sets[part]
        return self.streamed(examples, len(examples), is_training=part == 'train',
                             pin_memory=self.trainer.strategy.root_device.type == 'cuda')

    def figures(self, model: nn.Module) -> dict[str, Figure]:
        """Draw the learned masks of a model (SparseBERT, Fig. 5 and 6), and return the figure by
        name. Without learned masks, there is no figure."""
        sources = [module for module in model.modules() if isinstance(module, LearnedMaskSource)]
        names = ['masks'] if len(sources) == 1 else [f'masks{i}' for i in range(len(sources))]
        return {name: mask_probabilities(source.probability())
                for name, source in zip(names, sources)}

    def texts(self) -> Iterator[str]:
        return (' '.join(document) for document in read_documents(self._corpus_path))

    def _collect(self) -> None:
        if self.corpus == 'docs' and not self._corpus_path.exists():
            build_docs(self._corpus_path)

    @property
    def _corpus_path(self) -> Path:
        return self.cache / 'docs' if self.corpus == 'docs' else Path(self.corpus)

    @property
    def _trained_tokenizer(self) -> Path:
        kind = 'byte pairs' if self.byte_pairs else 'word pieces'
        key = corpus_key(self._corpus_path, f'trained, {kind}, {self.vocab_size} tokens')
        return self.cache / f'tokenizer-{key}.json'

    def _encoded_folder(self, tokenizer: Tokenizer) -> Path:
        digest = blake2b(tokenizer.to_str().encode()).hexdigest()
        return self.cache / f'encoded-{corpus_key(self._corpus_path, digest)}'

    def _cut(self, encoded: EncodedCorpus) -> np.ndarray:
        num_special = 3 if self.next_sentence else 2
        return encoded.cut(self.max_length - num_special, self.short_share, self.seed)

    def _examples(self, encoded: EncodedCorpus, special: SpecialTokens, part: str) -> _Examples:
        return _Examples(encoded, self._cut(encoded), special, max_length=self.max_length,
                         next_sentence=self.next_sentence, masked_share=self.masked_share,
                         seed=(self.seed, PARTS.index(part)))


class _Examples(Dataset):
    """A data set that maps a list of (epoch, sequence index) to a batch."""

    def __init__(self, corpus: EncodedCorpus, begin: np.ndarray, special: SpecialTokens, *,
                 max_length: int, next_sentence: bool, masked_share: float,
                 seed: tuple[int, int]):
        self.corpus, self.begin, self.special, self.seed = corpus, begin, special, seed
        self.next_sentence, self.masked_share = next_sentence, masked_share
        self.room = max_length - (3 if next_sentence else 2)
        self.is_special = np.zeros(len(corpus.counts), dtype=bool)
        self.is_special[list(special)] = True
        self.words = np.flatnonzero(~self.is_special)

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, keys: list[tuple[int, int]]) -> TextBatch:
        tokens, segments, selected, target, label = zip(*(self._example(*key) for key in keys))
        ptr = np.cumsum([0, *map(len, tokens)])
        selected = [own + begin for own, begin in zip(selected, ptr)]
        parts = (np.concatenate(tokens), ptr, np.concatenate(segments), np.concatenate(selected),
                 np.concatenate(target), label if self.next_sentence else [])
        return TextBatch(*(torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in parts))

    def _example(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng((*self.seed, epoch, index))
        first, last = self.begin[index:index + 2]
        if self.next_sentence:
            pieces, label = self._pair(first, last, rng)
        else:
            pieces, label = [_shorten(self._tokens(first, last), self.room, rng)], 0
        cls, sep = self.special.cls, self.special.sep
        tokens = np.concatenate([[cls], *(part for piece in pieces for part in (piece, [sep]))])
        segments = np.repeat(np.arange(len(pieces)), [len(piece) + 1 for piece in pieces])
        selected, target = self._mask(tokens, rng)
        return tokens, np.concatenate([[0], segments]), selected, target, label

    def _pair(self, first: int, last: int,
              rng: np.random.Generator) -> tuple[list[np.ndarray], int]:
        cut = first + (1 if last - first == 1 else rng.integers(1, last - first))
        a = self._tokens(first, cut)
        is_random = last - first == 1 or rng.random() < 0.5
        if is_random:
            # The piece is as long as the replaced text, so that its length does not reveal the
            # label.
            displaced = len(self._tokens(cut, last)) or max(1, self.room - len(a))
            b = self._elsewhere(first, displaced, rng)
        else:
            b = self._tokens(cut, last)
        # The longer text is cut, or the first text in a tie.
        half = (self.room + 1) // 2
        keep_a = min(len(a), max(half, self.room - len(b)))
        keep_b = min(len(b), self.room - keep_a)
        return [_shorten(a, keep_a, rng), _shorten(b, keep_b, rng)], int(is_random)

    def _elsewhere(self, sentence: int, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the tokens of whole sentences from a random position of another document, at least
        ``size`` tokens in total."""
        corpus = self.corpus
        own = np.searchsorted(corpus.document_ptr, sentence, side='right') - 1
        document = rng.integers(corpus.num_documents - 1)
        document += document >= own
        first, end = corpus.document_ptr[document:document + 2]
        first = rng.integers(first, end)
        begins = corpus.sentence_ptr[first:end + 1]
        last = first + np.searchsorted(begins, begins[0] + size)
        return self._tokens(first, min(last, end))

    def _tokens(self, first: int, last: int) -> np.ndarray:
        begin, end = self.corpus.sentence_ptr[first], self.corpus.sentence_ptr[last]
        return self.corpus.tokens[begin:end].astype(np.int64)

    def _mask(self, tokens: np.ndarray,
              rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Hide some of ``tokens`` in place, as BERT does, and return their places and ids."""
        candidates = np.flatnonzero(~self.is_special[tokens])
        count = min(len(candidates), max(1, round(self.masked_share * len(tokens))))
        selected = np.sort(rng.choice(candidates, count, replace=False))
        target = tokens[selected]
        fate = rng.random(count)
        is_replaced = (fate >= MASKED) & (fate < MASKED + REPLACED)
        tokens[selected[fate < MASKED]] = self.special.mask
        tokens[selected[is_replaced]] = rng.choice(self.words, is_replaced.sum())
        return selected, target


def _shorten(tokens: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``tokens`` cut to ``size`` tokens at random ends, as in BERT."""
    excess = len(tokens) - size
    if excess <= 0:
        return tokens
    front = rng.binomial(excess, 0.5)
    return tokens[front:front + size]
