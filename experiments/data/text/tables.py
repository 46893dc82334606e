"""Rows of tables: CSV, JSON lines, and what the library ``datasets`` reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from experiments.data.text.csv_rows import csv_rows
from experiments.data.what_was_read import (
    check_is_text,
    listed,
    number_of,
    readable,
    tell,
    unread,
)
from graphattn.utils.reading import json_object, read_lines

if TYPE_CHECKING:
    from datasets import DatasetDict, Features

SEPARATORS = {'.csv': ',', '.tsv': '\t'}
JSON = ('.json', '.jsonl', '.ndjson')
ROWS_AT_ONCE = 16  # few, because each may have a long text
HUB_NAME = re.compile(r'[\w-]+(/[\w-]+)?(:[\w.-]+)?')  # such as imdb or nyu-mll/glue:sst2
PART_OF = {'train': 'train', 'validation': 'dev', 'valid': 'dev', 'val': 'dev', 'dev': 'dev',
           'test': 'test'}  # by the name of a split or file


class Table(NamedTuple):
    """The numbers and the columns of the rows of a table.

    The last row is followed by a line that says what was read, and which columns are not in
    ``used``, to which the reader may add columns between rows.
    """

    where: str
    used: set[str]
    rows: Iterator[tuple[int, dict[str, Any]]]


class Split(NamedTuple):
    """The columns of a part of a data set, and its rows."""

    features: Features
    rows: Iterable[dict[str, Any]]


def tables_of(path: Path) -> dict[str, Table]:
    """Return the tables at a path by part: a file or a data set without splits is ``train``."""
    if is_data_set(path):
        splits = splits_of(path)
        known = [name for name, split in splits.items() if name != 'test' or _has_labels(split)]
        parts = _parts(path, known, splits, 'splits')
        return {part: _data_set(f'{path}, {name}', splits[name]) for part, name in parts.items()}
    if path.is_dir():
        files = {str(file.relative_to(path)): file for file in listed(path).files}
        parts = _parts(path, filter(_kind, files), files, 'files')
        return {part: _file(files[name]) for part, name in parts.items()}
    return {'train': _file(path)}


def _parts(path: Path, known: Iterable[str], names: Iterable[str], what: str) -> dict[str, str]:
    """Return the name of the file or split of each part, and print which ones are not read."""
    parts = {PART_OF[part]: name for name in known if (part := name.partition('.')[0]) in PART_OF}
    if 'train' not in parts:
        raise ValueError(f"{path}: expected a table or split 'train' (got "
                         f"{', '.join(names) or 'none'})")
    if others := unread(names, parts.values(), what):
        tell(path, number_of('table', len(parts)), others)
    return parts


def is_data_set(path: Path) -> bool:
    """Return whether a path is a folder that ``save_to_disk`` wrote, a Parquet file, or no file but
    a possible name on the hub."""
    if path.suffix == '.parquet':
        return True
    if path.exists():
        return (path / 'state.json').exists() or (path / 'dataset_dict.json').exists()
    return bool(HUB_NAME.fullmatch(str(path)))


def splits_of(path: Path, argument: str = 'path') -> dict[str, Split]:
    """Return the splits of a data set by name; without splits, all rows are ``train``."""
    import datasets

    from_hub = path.suffix != '.parquet' and not path.exists()
    try:
        if path.suffix == '.parquet':
            from pyarrow.parquet import ParquetFile

            file = ParquetFile(path)  # datasets would write into the user's cache
            return {'train': Split(datasets.Features.from_arrow_schema(file.schema_arrow),
                                   (row for batch in file.iter_batches(ROWS_AT_ONCE)
                                    for row in batch.to_pylist()))}
        found = _from_hub(str(path)) if from_hub else datasets.load_from_disk(str(path))
    except Exception as error:  # Arrow, JSON and the hub raise many types of errors
        raise ValueError(f"'{argument}' cannot be read: {path} ({_reason(error)})" + from_hub * (
            "; it is no file, and was looked up on Hugging Face's hub")) from error
    splits = found if isinstance(found, dict) else {'train': found}
    return {name: Split(split.features, split) for name, split in splits.items()}


def _from_hub(name: str) -> DatasetDict:
    import datasets
    from huggingface_hub import HfApi

    name, _, config = name.partition(':')
    if not datasets.config.HF_HUB_OFFLINE:
        HfApi().dataset_info(name)  # load_dataset would try five times
    return datasets.load_dataset(name, config or None)


def _json_rows(path: Path, used: Collection[str]) -> Iterator[tuple[int, dict]]:
    """Yield the number and the object of each line of a ``.json`` or ``.json.gz`` file that is not
    blank."""
    rows = blank = 0
    names: dict[str, None] = {}
    with readable(f"'path' cannot be read: {path}"):
        check_is_text(path)
        for number, line in tqdm(read_lines(path), desc=f'reading {path.name}', unit=' lines',
                                 disable=None):
            if not line.strip():
                blank += 1
                continue
            if not rows and line.lstrip().startswith('['):
                raise ValueError(f"{path}, line {number}: expected a JSON object on each line (got "
                                 f"an array); in pandas, write lines by to_json(..., "
                                 f"orient='records', lines=True)")
            rows += 1
            row = json_object(line, f'{path}, line {number}')
            names.update(dict.fromkeys(row))
            yield number, row
        tell(path, number_of('object', rows), {'blank lines': blank, **unread(names, used, 'keys')})


def _file(path: Path) -> Table:
    used: set[str] = set()
    kind = _kind(path.name)
    if kind is None:
        raise ValueError(f"'path' must be a table with a suffix {', '.join((*SEPARATORS, *JSON))}, "
                         f"optionally followed by .gz, or .parquet, a folder of tables, or a data "
                         f"set (got {path})")
    return Table(f'{path}, line', used, _json_rows(path, used) if kind in JSON
                 else _csv_rows(path, SEPARATORS[kind], used))


def _kind(name: str) -> str | None:
    return next((kind for kind in (*SEPARATORS, *JSON)
                 if name.removesuffix('.gz').endswith(kind)), None)


def _csv_rows(path: Path, separator: str, used: set[str]) -> Iterator[tuple[int, dict[str, str]]]:
    with readable(f"'path' cannot be read: {path}"):
        yield from csv_rows(path, separator, used=used)


def _data_set(where: str, split: Split) -> Table:
    used: set[str] = set()
    return Table(f'{where}, row', used, _numbered(split, where, used))


def _has_labels(split: Split) -> bool:
    first = next(iter(split.rows), {})
    # data sets of the hub have -1 where a label is secret
    return all(first.get(column) != -1 for column in _class_names(split))


def _class_names(split: Split) -> dict[str, list[str]]:
    return {column: feature.names for column, feature in split.features.items()
            if hasattr(feature, 'names')}


def _numbered(split: Split, where: str, used: set[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the columns of each row, with the names of classes for their numbers."""
    names, number = _class_names(split), -1
    try:
        for number, row in enumerate(split.rows):
            yield number, row | {column: own[row[column]] if row[column] in range(len(own))
                                 else None for column, own in names.items()}
    except Exception as error:  # Arrow raises many types of errors
        raise ValueError(f'{where} cannot be read ({_reason(error)})') from error
    tell(where, number_of('row', number + 1), unread(split.features, used))


def _reason(error: Exception) -> str:
    return ' '.join(str(error.__cause__ or error).split())
