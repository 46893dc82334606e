"""Class labels as text, and the random division of examples into parts."""

import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np

PARTS = ('train', 'dev', 'test')
FOLDS = 10  # a missing part gets one of these folds


def given_parts(path: str, val: str | None, test: str | None) -> dict[str, Path]:
    """Return the paths of the parts of a data set by name, without those that are ``None``."""
    return {part: Path(name) for part, name in zip(PARTS, (path, val, test)) if name is not None}


def class_names(labels: Iterable[str], given: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the names of the classes in order: the given names, or those found among the labels,
    sorted as numbers if all are numbers."""
    if given is not None and len(set(given)) < len(given):
        raise ValueError(f"'classes' must contain different names (got {', '.join(given)})")
    names = dict.fromkeys(labels) if given is None else given
    if len(names) < 2:
        raise ValueError(f"{where}: expected at least two classes (got "
                         f"{', '.join(names) or 'none'})")
    are_numbers = all(re.fullmatch('-?[0-9]{1,18}', name) for name in names)
    if given is not None:
        return tuple(names)
    # equal numbers, such as 1 and 01, sort alphabetically
    return tuple(sorted(names, key=lambda name: (int(name) if are_numbers else 0, name)))


def class_numbers(labels: Sequence[str], classes: Sequence[str],
                  where: Callable[[int], str]) -> np.ndarray:
    """Return the number of each example's class, int64 ``[num_examples]``."""
    number = {name: place for place, name in enumerate(classes)}
    for place, label in enumerate(labels):
        if label not in number:
            raise ValueError(f"{where(place)}: expected one of the {len(classes)} classes "
                             f"{', '.join(classes):.200} as the label (got {label!r:.60})")
    return np.array([number[label] for label in labels], dtype=np.int64)


def stratified(keys: Iterable[Hashable], label: np.ndarray, parts: Sequence[str], seed: int,
               where: str) -> dict[str, np.ndarray]:
    """Draw a tenth of each class for each of ``parts``, with equal examples in one part; classes
    with too few examples are for training only."""
    from sklearn.model_selection import StratifiedKFold

    if not parts:
        return {'train': np.arange(len(label))}
    known: dict[Hashable, int] = {}
    different = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
    own = label[np.unique(different, return_index=True)[1]]
    most = int(np.bincount(own).max())
    if most < FOLDS:
        raise ValueError(f"{where}: expected a class with at least {FOLDS} different examples, to "
                         f"divide them into parts (got at most {most}); pass separate files for "
                         f"'val' and 'test'")
    part = np.zeros(len(own), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='The least populated class')
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(own, own)
        for number, (_, held_out) in zip(range(1, len(parts) + 1), folds):
            part[held_out] = number
    part[~np.isin(own, own[part == 0])] = 0
    return {name: np.flatnonzero(part[different] == number)
            for number, name in enumerate(['train', *parts])}
