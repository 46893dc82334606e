"""List the files of a folder that are read, and say on one line what was read and left out."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# How a file begins that is no text, what it is, and what can be done.
NO_TEXT = {
    b'\xff\xfe': "UTF-16; save it as 'CSV UTF-8', or in the encoding UTF-8",
    b'\xfe\xff': "UTF-16; save it as 'CSV UTF-8', or in the encoding UTF-8",
    b'PK\x03\x04': "a workbook of Excel or another zip archive; save the sheet as 'CSV UTF-8', or "
                   "unpack the archive",
    b'\xd0\xcf\x11\xe0': "a workbook of Excel; save the sheet as 'CSV UTF-8'",
    b'\x1f\x8b': 'packed by gzip; give it a name that ends in .gz',
    b'PAR1': 'Parquet; write it as CSV or as JSON lines',
    b'BZh': 'packed by bzip2; unpack it',
}


class Listing(NamedTuple):
    """The files of a folder that are read, and how many are not, by the reason."""

    files: list[Path]
    left_out: Counter[str]


def listed(folder: Path, suffixes: tuple[str, ...] = ()) -> Listing:
    """List the files in a folder, and in the folders in it, in the order of their names.

    Left out are files that are hidden, or in a hidden folder such as ``.ipynb_checkpoints``, and
    those of other kinds.

    Args:
        folder (Path): The folder.
        suffixes (tuple of str): How names may end, in small letters; in any way if omitted.
    """
    files = sorted(file for file in folder.rglob('*') if file.is_file())
    reasons = [_reason(file.relative_to(folder), suffixes) for file in files]
    return Listing([file for file, reason in zip(files, reasons) if reason is None],
                   Counter(reason for reason in reasons if reason is not None))


@contextmanager
def readable(what: str, advice: str = '') -> Iterator[None]:
    """Turn an error of the system while a file is read into a ValueError that says so.

    Args:
        what (str): Begins the message, with the name of the file.
        advice (str): Ends it.
    """
    try:
        yield
    except OSError as error:
        reason = f'({error.strerror or error})'
        raise ValueError('; '.join(filter(None, [f'{what} {reason}', advice]))) from error


def tell(where: str | Path, read: str, left_out: Mapping[str, int]) -> None:
    """Print on one line what was read of a file or folder, and how much was not, by the reason."""
    others = ', '.join(f'{reason}: {count:,}' for reason, count in left_out.items() if count)
    line = f'{where}: {read}{f"; left out: {others}" if others else ""}'
    encoding = sys.stdout.encoding or 'utf-8'  # which may not have all that names are made of
    print(line.encode(encoding, 'replace').decode(encoding))


def number_of(what: str, number: int) -> str:
    """Return a number and its noun, in the singular for one."""
    return f'{number:,} {what}{"s" * (number != 1)}'


def check_is_text(path: Path) -> None:
    """Refuse a file that begins as other kinds of files do.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is of another kind; the message says which, and what can be done.
    """
    try:
        with gzip.open(path) if path.suffix == '.gz' else path.open('rb') as file:
            head = file.read(max(map(len, NO_TEXT)))
    except (EOFError, zlib.error) as error:
        raise OSError(f'it cannot be unpacked: {error}') from error
    for magic, kind in NO_TEXT.items():
        if head.startswith(magic):
            raise ValueError(f'{path}: expected text in UTF-8 (got {kind})')


def _reason(path: Path, suffixes: tuple[str, ...]) -> str | None:
    """Why a file is left out."""
    if any(part.startswith('.') for part in path.parts):
        return 'hidden'
    if suffixes and path.suffix.lower() not in suffixes:
        return f'called {path.suffix.lower()}' if path.suffix else 'without a suffix'
    return None
