"""Token ids in NumPy files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.data.what_was_read import tell, unread
from graphattn.utils.reading import check_arrays

TOKENS, LABEL = 'tokens', 'label'
MAX_ID = 2**31 - 1


def read_tokens(path: Path) -> np.ndarray:
    """Read token ids, integers ``[num_examples, length]``: the array ``tokens`` of an ``.npz``
    file, or the array of an ``.npy`` file, which is memory-mapped."""
    if path.suffix not in ('.npy', '.npz'):
        raise ValueError(f"{path}: expected a NumPy file of token ids with the suffix .npy or .npz")
    tokens = _read_array(path, TOKENS) if path.suffix == '.npz' else _read_file(path)
    if tokens.dtype.kind not in 'iu' or tokens.ndim != 2 or not tokens.size:
        raise ValueError(f"{path}: expected token ids as integers of shape [examples, length] (got "
                         f"{tokens.dtype} of shape {tokens.shape})")
    return tokens


def read_labels(path: Path, num_examples: int) -> list[str]:
    """Read the label of each example as a string: from the array ``label`` of an ``.npz`` file, or
    from ``NAME_label.npy`` next to ``NAME.npy``."""
    if path.suffix == '.npz':
        label = _read_array(path, LABEL)
    else:
        path = path.with_name(f'{path.stem}_{LABEL}.npy')
        label = _read_file(path)
    if label.dtype.kind not in 'iuU' or label.shape != (num_examples,):
        raise ValueError(f"{path}: expected labels as integers or strings of shape "
                         f"[{num_examples}], one for each example (got {label.dtype} of shape "
                         f"{label.shape})")
    if label.dtype.kind == 'U' and not _are_characters(label):
        raise ValueError(f"{path}: expected labels that are valid Unicode (got other bytes)")
    return [str(value) for value in label.tolist()]


def token_rows(path: Path) -> Iterator[tuple[str, tuple[np.ndarray]]]:
    """Yield the index and the ids of each example in a file, integers ``[length]``."""
    tokens = read_tokens(path)
    return ((str(number), (check_ids(row, f'{path}, row {number}'),))
            for number, row in enumerate(tokens))


def check_ids(tokens: np.ndarray, where: str) -> np.ndarray:
    """Return token ids unchanged, or raise an error if an id is negative or too large."""
    for value in (tokens.min(), tokens.max()):
        if not 0 <= value <= MAX_ID:
            raise ValueError(f"{where}: expected token ids from 0 to {MAX_ID:,} (got {value})")
    return tokens


def _are_characters(text: np.ndarray) -> bool:
    """Return whether all strings of an array are valid Unicode. NumPy does not check this."""
    if not text.dtype.itemsize:
        return False
    code = np.ascontiguousarray(text).view(text.dtype.str.partition('U')[0] + 'u4')
    return bool(((code <= 0x10FFFF) & ((code < 0xD800) | (code > 0xDFFF))).all())


def _read_array(path: Path, name: str) -> np.ndarray:
    try:
        check_arrays(path)
        with np.load(path, allow_pickle=False) as file:
            names = file.files
            array = file[name] if name in names else None
        if others := unread(names, (TOKENS, LABEL), 'arrays'):
            tell(path, f'the array {name}', others)
    except Exception as error:  # NumPy and zipfile raise many types of errors
        raise ValueError(f'{path} cannot be read as NumPy arrays ({error})') from error
    if array is None:
        raise ValueError(f"{path}: expected an array {name!r} (got "
                         f"{', '.join(names) or 'no arrays'})")
    return array


def _read_file(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode='r', allow_pickle=False)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a NumPy array ({error}); put token ids in "
                         f"NAME.npy and labels in NAME_{LABEL}.npy, or both in one .npz") from error
