"""Lists of the files to read in a folder, and one-line reports of what was read."""

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MAX_NAMED = 20
# By the first bytes of files that are not text: their kind, and the remedy.
NO_TEXT = {
    b'\xff\xfe': "UTF-16; save it as 'CSV UTF-8', or in the encoding UTF-8",
    b'\xfe\xff': "UTF-16; save it as 'CSV UTF-8', or in the encoding UTF-8",
    b'PK\x03\x04': "an Excel workbook or another zip archive; save the sheet as 'CSV UTF-8', or "
                   "unpack the archive",
    b'\xd0\xcf\x11\xe0': "an Excel workbook; save the sheet as 'CSV UTF-8'",
    b'\x1f\x8b': 'gzipped data; give it a name that ends in .gz',
    b'PAR1': 'Parquet; save it as CSV or JSON lines',
    b'BZh': 'data compressed by bzip2; unpack it',
}


class Listing(NamedTuple):
    """The files of a folder to read, and the numbers of files that are left out, by reason."""

    files: list[Path]
    left_out: Counter[str]


def listed(folder: Path, suffixes: tuple[str, ...] = ()) -> Listing:
    """Return the files to read in a folder and its subfolders, sorted by name, without hidden ones
    and those with other suffixes."""
    files = sorted(file for file in folder.rglob('*') if file.is_file())
    reasons = [_reason(file.relative_to(folder), suffixes) for file in files]
    return Listing([file for file, reason in zip(files, reasons) if reason is None],
                   Counter(reason for reason in reasons if reason is not None))


@contextmanager
def readable(what: str, advice: str = '') -> Iterator[None]:
    """Return a context that turns an OSError, while a file is read, into a ValueError."""
    try:
        yield
    except OSError as error:
        reason = f'({error.strerror or error})'
        raise ValueError('; '.join(filter(None, [f'{what} {reason}', advice]))) from error


def tell(where: str | Path, read: str, left_out: Mapping[str, int]) -> None:
    """Print one line that says what was read from a file or folder, and what was left out."""
    others = ', '.join(f'{reason}: {count:,}' for reason, count in left_out.items() if count)
    line = f'{where}: {read}{f"; left out: {others}" if others else ""}'
    # names may have characters that the terminal's encoding lacks
    encoding = sys.stdout.encoding or 'utf-8'
    print(line.encode(encoding, 'replace').decode(encoding))


def unread(names: Iterable[str], used: Collection[str], what: str = 'columns') -> dict[str, int]:
    """Return the names that a reader does not use as a reason of :func:`tell`."""
    others = [f'{name!r:.40}' for name in dict.fromkeys(names) if name and name not in used]
    more = ['...'] * (len(others) > MAX_NAMED)
    return {f'{what} {", ".join(others[:MAX_NAMED] + more)}': len(others)} if others else {}


def number_of(what: str, number: int) -> str:
    """Return a number with its noun in the singular or plural, such as '1 file' or '2 files'."""
    return f'{number:,} {what}{"s" * (number != 1)}'


def tell_of_cuts(where: Path, number: int, what: str, size: int) -> None:
    if number:
        tell(where, f'{number_of(what, number)} cut to {size:,} tokens', {})


def check_is_text(path: Path) -> None:
    """Raise an error if a file begins like a known format that is not text, such as gzip."""
    try:
        with gzip.open(path) if path.suffix == '.gz' else path.open('rb') as file:
            head = file.read(max(map(len, NO_TEXT)))
    except (EOFError, zlib.error) as error:
        raise OSError(f'the gzipped data cannot be unpacked: {error}') from error
    for magic, kind in NO_TEXT.items():
        if head.startswith(magic):
            raise ValueError(f'{path}: expected text in UTF-8 (got {kind})')


def _reason(path: Path, suffixes: tuple[str, ...]) -> str | None:
    """Return the reason why a file is left out, or ``None`` for a file that is read."""
    if any(part.startswith('.') for part in path.parts):
        return 'hidden'
    if suffixes and path.suffix.lower() not in suffixes:
        return f'with the suffix {path.suffix.lower()}' if path.suffix else 'without a suffix'
    return None
