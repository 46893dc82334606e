"""WordPiece and byte-pair tokenizers, which are trained on a corpus or read from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from experiments.data.what_was_read import number_of, tell
from graphattn.utils.reading import read_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


Ids = TypeVar('Ids', list, np.ndarray)


class SpecialTokens(NamedTuple):
    """The ids of the special tokens of a tokenizer, such as [CLS] and [SEP]."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


NAMES = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
ROBERTA_NAMES = ('<pad>', '<unk>', '<s>', '</s>', '<mask>')
UNKNOWN = 'a \uffff'  # in no vocabulary
TRAINING = 'training a tokenizer'
AT_ONCE = 256  # texts to encode
COVERAGE = 0.9999  # share of all characters that have a token; rarer characters become [UNK]


def train_tokenizer(texts: Callable[[], Iterable[str]], vocab_size: int) -> Tokenizer:
    """Train a WordPiece tokenizer like bert-base-uncased's on texts, without chance."""
    from tokenizers import BertWordPieceTokenizer

    letters = _letters(_watched(texts(), 'counting letters'))
    # The trainer would number single letters in random order, and this order breaks ties. Letters
    # that are special tokens keep the given order.
    given = [*NAMES, *letters, *(f'##{letter}' for letter in letters)]
    if len(given) > vocab_size:
        raise ValueError(f"'vocab_size' must be at least {len(given)}, to contain the special "
                         f"tokens and each letter, both at the start of a word and inside (got "
                         f"{vocab_size})")
    learner = BertWordPieceTokenizer()
    watched = _watched(texts(), TRAINING)
    learner.train_from_iterator(
        watched, vocab_size, min_frequency=0, limit_alphabet=len(letters), initial_alphabet=letters,
        special_tokens=given, show_progress=False)
    return _word_pieces(learner.get_vocab())


def train_byte_pairs(texts: Callable[[], Iterable[str]], vocab_size: int) -> Tokenizer:
    """Train a lossless byte-pair tokenizer like roberta-base's on texts."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import RobertaProcessing
    from tokenizers.trainers import BpeTrainer

    alphabet = ByteLevel.alphabet()
    names = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
    if vocab_size < len(alphabet) + len(names):
        raise ValueError(f"'vocab_size' must be at least {len(alphabet) + len(names)}, to contain "
                         f"the special tokens and each byte (got {vocab_size})")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = Decoder()
    watched = _watched(texts(), TRAINING)
    tokenizer.train_from_iterator(watched, BpeTrainer(
        vocab_size=vocab_size, special_tokens=names, show_progress=False,
        initial_alphabet=sorted(alphabet)))
    tokenizer.post_processor = RobertaProcessing(('</s>', 2), ('<s>', 0), add_prefix_space=False)
    return tokenizer


def _watched(texts: Iterable[str], name: str) -> Iterable[str]:
    """Return an iterable over ``texts`` with a progress bar, to which the caller must keep a
    reference: else Python closes the bar after compiled code, and an interrupt is lost."""
    return tqdm(texts, desc=name, unit=' texts', delay=1., disable=None)


def _letters(texts: Iterable[str]) -> list[str]:
    """Return the characters that make up nearly all of the texts after BERT's normalisation, the
    most frequent first."""
    from tokenizers.normalizers import BertNormalizer

    normalize, count = BertNormalizer().normalize_str, Counter()
    for text in texts:
        count.update(normalize(text))
    for character in [character for character in count if character.isspace()]:
        del count[character]
    by_frequency = sorted(count, key=lambda character: (-count[character], character))
    num_needed = COVERAGE * count.total()
    num_before = accumulate((count[character] for character in by_frequency), initial=0)
    return [character for character, number in zip(by_frequency, num_before)
            if number < num_needed]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a tokenizer.json, from a vocab.txt, or as AutoTokenizer does, from a
    folder or by its name on the hub."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece

    path, words = Path(path), {}
    try:
        if path.suffix == '.txt':
            words = _read_vocabulary(path)
            tokenizer = Tokenizer(WordPiece(words, unk_token='[UNK]'))
        elif path.is_file() or path.suffix == '.json':
            tokenizer = Tokenizer.from_str(read_text(path))
        else:
            from huggingface_hub import HfApi, constants
            from transformers import AutoTokenizer

            if not path.exists() and not constants.HF_HUB_OFFLINE:
                HfApi().model_info(str(path))  # AutoTokenizer would try ten times
            tokenizer = AutoTokenizer.from_pretrained(
                str(path), trust_remote_code=False).backend_tokenizer
        ids = set(tokenizer.get_vocab().values())
        if ids != set(range(tokenizer.get_vocab_size())):
            raise ValueError(f'its {tokenizer.get_vocab_size():,} tokens must have ids from 0 '
                             f'without gaps, but the last id is {max(ids):,}')
        tokenizer.encode(UNKNOWN)
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"'tokenizer' cannot be read: {path} ({' '.join(str(error).split())}); "
                         f"'tokenizer' must be a tokenizer.json, a vocab.txt, or the folder or the "
                         f"name of a tokenizer of Hugging Face") from error
    special_tokens(tokenizer, path)
    if words:
        kept = _kept_in(words)
        tokenizer = _word_pieces(words, kept)
        _tell_once(path, f'{number_of("token", len(words))}; texts '
                         f'{"keep" if kept else "are lower-cased, without"} '
                         f'{" and ".join(kept or ("accents",))}')
    tokenizer.no_truncation()  # the task limits lengths
    tokenizer.no_padding()
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, num_tokens: int, pretrained: Path | None) -> None:
    """Raise an error unless ids are below ``num_tokens``, and those of the pre-training, if any."""
    if (size := tokenizer.get_vocab_size()) > num_tokens:
        raise ValueError(f"'num_tokens' of the encoder must be at least {size}, the size of the "
                         f"tokenizer's vocabulary (got {num_tokens})")
    if (pretrained is not None and pretrained.exists()
            and load_tokenizer(pretrained).get_vocab() != tokenizer.get_vocab()):
        raise ValueError(f"'tokenizer' must be {pretrained}, the tokenizer of the pre-training "
                         f"(got a tokenizer with other ids)")


def special_tokens(tokenizer: Tokenizer, source: str | Path = 'the tokenizer') -> SpecialTokens:
    """Return the ids of the special tokens of a tokenizer, whose names are those of BERT or
    RoBERTa."""
    for names in (ROBERTA_NAMES, NAMES):
        ids = [tokenizer.token_to_id(name) for name in names]
        missing = [name for name, number in zip(names, ids) if number is None]
        if not missing:
            return SpecialTokens(*ids)
    raise ValueError(f"'tokenizer' must have the tokens {', '.join(NAMES)}, or RoBERTa's "
                     f"{', '.join(ROBERTA_NAMES)} ({source} lacks {', '.join(missing)})")


def encoded(tokenizer: Tokenizer, texts: Iterable[str], name: str,
            with_offsets: bool = False) -> Iterator[Encoding]:
    """Yield the encodings of texts without special tokens; ``name`` is that of a progress bar."""
    encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
    texts = iter(_watched(texts, name))
    while some := list(islice(texts, AT_ONCE)):
        yield from encode(some, add_special_tokens=False)


def cut(texts: Sequence[Ids], room: int) -> list[Ids]:
    """Cut one or two texts to ``room`` tokens in total, at the end of the longer text, or of the
    second text in a tie."""
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = (len(text) for text in texts)
    # The longer text keeps the room that the shorter text leaves, and at least half of all room.
    keep_first = min(first, max(-(-room // 2), room - second))
    return [texts[0][:keep_first], texts[1][:room - keep_first]]


def framed(texts: list[list[int]], special: SpecialTokens) -> np.ndarray:
    """Return the ids of one or two texts with special tokens, [CLS] a [SEP] or [CLS] a [SEP] b
    [SEP], int32 ``[length]``."""
    return np.array([special.cls, *(token for text in texts for token in (*text, special.sep))],
                    dtype=np.int32)


@cache
def _tell_once(path: Path, read: str) -> None:
    tell(path, read, {})  # a run loads its tokenizer several times


def _kept_in(words: Iterable[str]) -> tuple[str, ...]:
    """Return whether a vocabulary has ``capitals`` and ``accents``, which its texts then keep."""
    from tokenizers.normalizers import NFD, Sequence, StripAccents

    plain = [word for word in words if not (word.startswith('[') and word.endswith(']'))]
    strip = Sequence([NFD(), StripAccents()]).normalize_str
    changed = {'capitals': str.lower, 'accents': strip}
    return tuple(name for name, change in changed.items()
                 if any(change(word) != word for word in plain))


def _word_pieces(words: dict[str, int], kept: tuple[str, ...] = ()) -> Tokenizer:
    """Return BERT's tokenizer, whose ``encode(a, b)`` is [CLS] a [SEP] b [SEP]."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    return Tokenizer.from_str(BertWordPieceTokenizer(
        words, lowercase='capitals' not in kept, strip_accents='accents' not in kept).to_str())


def _read_vocabulary(path: Path) -> dict[str, int]:
    numbers: dict[str, int] = {}
    # splitlines() is not used, because some vocabularies contain other Unicode line breaks as
    # tokens.
    for number, word in enumerate(read_text(path).removesuffix('\n').split('\n')):
        if numbers.setdefault(word, number) != number:
            raise ValueError(f'line {number + 1}: {word!r:.60} is listed twice')
    return numbers
