"""Files read within bounds: what is damaged or hostile is an error that names the file, and the
line; it is never a full memory."""

from __future__ import annotations

import gzip
import json
import math
import zipfile
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = ['MAX_LINE_LENGTH', 'check_aliases', 'check_arrays', 'check_unpacked', 'filled_lines',
           'json_object', 'json_value', 'read_bytes', 'read_json', 'read_lines', 'read_text',
           'read_yaml']

MAX_LINE_LENGTH = 2**24  # bytes
MAX_TEXT = 2**26  # bytes of a file that is read as a whole
BLOCK = 2**20  # bytes
MAX_CONFIG = 2**20  # bytes of YAML, of which a second reads about 300 KB
MAX_NODES = 100_000  # of YAML when its aliases are written out
MAX_LEVELS = 100  # of YAML, whose reader in C calls itself for each until the stack is full
# Bytes that arrays may take: so many whatever the file, and so many for each of its own. Zip makes
# 1,000 of one.
ARRAYS, ARRAYS_PER_BYTE = 2**26, 256
EXPANSION = 100  # a text is at most that much larger than the file that it is packed into
# And it has so many lines at most, and so many for each byte of that file: to read an empty line
# takes as long as any other.
LINES, LINES_PER_BYTE = 2**18, 4


def read_lines(path: Path, encoding: str = 'utf-8') -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of a file, which is unpacked if its name ends in ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is too long or of another encoding, or the file is packed too tightly.
    """
    number = done = 0
    try:
        with _opened(path) as file:
            size = path.stat().st_size
            max_bytes, max_lines = EXPANSION * size + MAX_LINE_LENGTH, LINES_PER_BYTE * size + LINES
            for number in count(1):
                line = file.readline(MAX_LINE_LENGTH + 1)
                if not line:
                    return
                done += len(line)
                if len(line) > MAX_LINE_LENGTH:
                    raise ValueError(f'{path}, line {number}: longer than '
                                     f'{MAX_LINE_LENGTH:,} bytes')
                if done > max_bytes:
                    raise ValueError(f'{path}, line {number}: more than {EXPANSION} times as '
                                     f'large as the file that holds it')
                if number > max_lines:
                    raise ValueError(f'{path}, line {number}: a file of {size:,} bytes may hold at '
                                     f'most {max_lines:,} lines; unpack it first')
                yield number, _decoded(line, encoding, f'{path}, line {number}')
    except (EOFError, zlib.error) as error:
        raise OSError(f'after line {number - 1}: {error}') from error


def filled_lines(path: Path, encoding: str = 'utf-8') -> Iterator[tuple[int, str]]:
    """Yield lines as :func:`read_lines` does, without blank ones; a line of tabs has columns, and
    is not blank."""
    return ((number, line) for number, line in read_lines(path, encoding) if line.strip(' \r\n'))


def read_text(path: Path, encoding: str = 'utf-8', max_bytes: int = MAX_TEXT) -> str:
    """Read the whole of a text file, with line breaks as Python reads them.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than ``max_bytes`` bytes, or of another encoding.
    """
    return _decoded(read_bytes(path, max_bytes), encoding, str(path)).replace('\r\n', '\n')


def read_bytes(path: Path, max_bytes: int = MAX_TEXT) -> bytes:
    """Read the whole of a file, which is unpacked if it is called ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than ``max_bytes`` bytes.
    """
    content = bytearray()
    try:
        with _opened(path) as file:  # which would take room for ``max_bytes`` bytes at once
            while len(content) <= max_bytes and (block := file.read(BLOCK)):
                content += block
    except (EOFError, zlib.error) as error:
        raise OSError(f'{path}: {error}') from error
    if len(content) > max_bytes:
        raise ValueError(f'{path}: larger than {max_bytes:,} bytes')
    return bytes(content)


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == '.gz' else path.open('rb')


def read_json(path: Path) -> dict:
    """Read the JSON object in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds something else.
    """
    return json_object(read_text(path), str(path))


def json_object(text: str, where: str) -> dict:
    """Read the JSON object in a text, see :func:`json_value`."""
    return json_value(text, where, dict)


def json_value(text: str, where: str, kind: type) -> Any:
    """Read the JSON object (``dict``) or array (``list``) in a text.

    Raises:
        ValueError: It is something else; the message begins with ``where``.
    """
    try:
        value = json.loads(text)
        if '\\u' in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: not JSON ({error})') from error
    if not isinstance(value, kind):
        expected = {dict: 'object', list: 'array'}[kind]
        raise ValueError(f'{where}: expected a JSON {expected} (got {type(value).__name__})')
    return value


def read_yaml(path: Path) -> Any:
    """Read a YAML file into plain types.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not YAML, or too large, as it stands or when its aliases are written out.
    """
    import yaml

    text = read_text(path, max_bytes=MAX_CONFIG)
    try:
        check_aliases(text)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f'{path}: not a config in YAML ({error})') from error


def check_aliases(text: str) -> None:
    """Raise if a YAML text is much longer than it looks, or nested so deep that building it would
    exhaust the stack.

    Raises:
        ValueError: It has more than ``MAX_NODES`` entries when its aliases are written out, or it
            is nested more than ``MAX_LEVELS`` deep.
        yaml.YAMLError: It is no YAML.
    """
    import yaml

    sizes: dict[str, float] = {}
    opened: list[tuple[str | None, float]] = [(None, 0)]
    for event in yaml.parse(text, getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
        size = 0.
        if isinstance(event, yaml.CollectionStartEvent):
            sizes[event.anchor] = math.inf  # endless if it holds itself
            opened.append((event.anchor, 1.))
            if len(opened) > MAX_LEVELS:
                raise ValueError(f'nested more than {MAX_LEVELS} levels deep')
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1.)
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor] = 1.
        opened[-1] = (opened[-1][0], opened[-1][1] + size)
    if opened[0][1] > MAX_NODES:
        raise ValueError(f'more than {MAX_NODES:,} entries when its aliases are written out')


def check_arrays(path: Path) -> None:
    """Raise unless the arrays of an ``.npz`` are as large as they say, and not too large.

    Raises:
        OSError, zipfile.BadZipFile: The file cannot be read.
        ValueError: It is too large when unpacked, or an array is cut off.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0,
               (2, 0): np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(path) as archive:
        check_unpacked(archive, ARRAYS + ARRAYS_PER_BYTE * path.stat().st_size)
        for info in archive.infolist():
            with archive.open(info) as file:
                version = np.lib.format.read_magic(file)
                if version not in readers:
                    raise ValueError(f'{info.filename} has version {version} of the format')
                shape, _, dtype = readers[version](file)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > info.file_size:
                raise ValueError(f'{info.filename} says that it is {dtype} of shape {shape}, and '
                                 f'has {info.file_size:,} bytes')


def check_unpacked(archive: zipfile.ZipFile, max_bytes: int) -> None:
    """Raise if an archive holds more bytes than ``max_bytes``.

    Raises:
        ValueError: It holds more.
    """
    size = sum(info.file_size for info in archive.infolist())
    if size > max_bytes:
        raise ValueError(f'{size:,} bytes when unpacked, and at most {max_bytes:,} are read')


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding).removeprefix('\ufeff')
    except UnicodeDecodeError as error:
        line = content[:error.start].count(b'\n')
        raise ValueError(f'{where}{f", line {line + 1}" if line else ""}: not '
                         f'{encoding.upper()} ({error.reason}); save it in that '
                         f'encoding') from error
