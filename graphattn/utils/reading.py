"""Bounded reads of files. Damaged or hostile files never exhaust memory; they raise an error that
names the file and the line."""

from __future__ import annotations

import gzip
import json
import math
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = ['MAX_LINE_LENGTH', 'check_aliases', 'check_arrays', 'check_unpacked', 'filled_lines',
           'json_object', 'json_value', 'load_tensors', 'read_array', 'read_bytes', 'read_json',
           'read_lines', 'read_text', 'read_yaml']

MAX_LINE_LENGTH = 2**24  # bytes
MAX_TEXT = 2**26  # bytes of a file that is read at once
BLOCK = 2**20  # bytes
MAX_CONFIG = 2**20  # bytes of YAML, which is read at about 300 KB/s
MAX_NODES = 100_000  # of a YAML file, counted after aliases are expanded
MAX_LEVELS = 100  # of nesting in YAML; the recursive C parser would overflow the stack
# Limits of the bytes of arrays: a constant, and a multiple of the bytes of the file. Zip can
# compress by a factor of 1,000.
ARRAYS, ARRAYS_PER_BYTE = 2**26, 256
EXPANSION = 100  # maximum size of a text relative to its compressed file
# Limits of the number of lines: a constant, and a multiple of the bytes of the file. Lines are
# limited because an empty line takes as long to read as any other.
LINES, LINES_PER_BYTE = 2**18, 4


def read_lines(path: Path, encoding: str = 'utf-8') -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line of a file, decompressed if its name ends in ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is too long or has another encoding, or a compressed file has too many
            bytes or lines for its size.
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
                    raise ValueError(f"{path}, line {number}: longer than {MAX_LINE_LENGTH:,} "
                                     f"bytes; split the line")
                if done > max_bytes:
                    raise ValueError(f"{path}, line {number}: the file unpacks to more than "
                                     f"{EXPANSION} times its compressed size; decompress the file "
                                     f"first")
                if number > max_lines:
                    raise ValueError(f"{path}, line {number}: a compressed file of {size:,} bytes "
                                     f"may have at most {max_lines:,} lines; decompress the file "
                                     f"first")
                yield number, _decoded(line, encoding, f'{path}, line {number}')
    except (EOFError, zlib.error) as error:
        raise OSError(f'after line {number - 1}: {error}') from error


def filled_lines(path: Path, encoding: str = 'utf-8') -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line of a file that is not blank. A line of tabs has
    columns, so it is not blank. Errors are those of :func:`read_lines`."""
    return ((number, line) for number, line in read_lines(path, encoding) if line.strip(' \r\n'))


def read_text(path: Path, encoding: str = 'utf-8', max_bytes: int = MAX_TEXT) -> str:
    """Return the text of a whole file, in which Windows line breaks (CR LF) are replaced by
    newlines.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is larger than ``max_bytes`` bytes, or has another encoding.
    """
    return _decoded(read_bytes(path, max_bytes), encoding, str(path)).replace('\r\n', '\n')


def read_bytes(path: Path, max_bytes: int = MAX_TEXT) -> bytes:
    """Read a whole file, decompressed if its name ends in ``.gz``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than ``max_bytes`` bytes.
    """
    content = bytearray()
    try:
        with _opened(path) as file:  # read(n) would allocate all bytes
            max_bytes = min(max_bytes, MAX_LINE_LENGTH + EXPANSION * path.stat().st_size)
            while len(content) <= max_bytes and (block := file.read(BLOCK)):
                content += block
    except (EOFError, zlib.error) as error:
        raise OSError(f'{path}: {error}') from error
    if len(content) > max_bytes:
        raise ValueError(f"{path}: larger than {max_bytes:,} bytes; split the file, or pass a "
                         f"smaller file")
    return bytes(content)


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == '.gz' else path.open('rb')


def read_json(path: Path) -> dict:
    """Return the JSON object in a file as a dict.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a JSON object.
    """
    return json_object(read_text(path), str(path))


def json_object(text: str, where: str) -> dict:
    """Return the JSON object in ``text`` as a dict. Raise a ValueError that begins with ``where``
    if the text is not a JSON object."""
    return json_value(text, where, dict)


def json_value(text: str, where: str, kind: type) -> Any:
    """Return the JSON object (if ``kind`` is ``dict``) or array (``list``) in a text.

    Raises:
        ValueError: The text is not JSON of this ``kind``. The message begins with ``where``.
    """
    try:
        value = json.loads(text)
        if '\\u' in text:
            json.dumps(value, ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: not JSON ({error})') from error
    if not isinstance(value, kind):
        expected = {dict: 'object', list: 'array'}[kind]
        raise ValueError(f'{where}: expected a JSON {expected} (got {type(value).__name__})')
    return value


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file as dicts, lists, strings and numbers.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not YAML, or is too large before or after aliases are expanded.
    """
    import yaml

    text = read_text(path, max_bytes=MAX_CONFIG)
    try:
        check_aliases(text)
        return yaml.load(text, _yaml_loader())
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f'{path}: not a YAML config ({error})') from error


def check_aliases(text: str) -> None:
    """Raise an error if the aliases of a YAML text expand too far, or if its nesting would overflow
    the stack.

    Raises:
        ValueError: The text has more than ``MAX_NODES`` entries after aliases are expanded, or is
            nested more than ``MAX_LEVELS`` levels deep.
        yaml.YAMLError: The text is not YAML.
    """
    import yaml

    sizes: dict[str, float] = {}
    opened: list[tuple[str | None, float]] = [(None, 0)]
    for event in yaml.parse(text, _yaml_loader()):
        size = 0.
        if isinstance(event, yaml.CollectionStartEvent):
            sizes[event.anchor] = math.inf  # infinity, so that recursive aliases are refused
            opened.append((event.anchor, 1.))
            if len(opened) > MAX_LEVELS:
                raise ValueError(f"nested more than {MAX_LEVELS} levels deep; use fewer levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1.)
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor] = 1.
        opened[-1] = (opened[-1][0], opened[-1][1] + size)
    if opened[0][1] > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES:,} entries when each alias is replaced by its "
                         f"value; use fewer aliases")


def _yaml_loader() -> type:
    import yaml

    # PyYAML may be built without C
    return getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


def check_arrays(path: Path) -> None:
    """Raise an error unless the arrays of an ``.npz`` file are as large as their headers declare,
    and not too large.

    Raises:
        OSError, zipfile.BadZipFile: The file cannot be read.
        ValueError: The file is too large when decompressed, or an array is truncated.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0,
               (2, 0): np.lib.format.read_array_header_2_0}
    with zipfile.ZipFile(path) as archive:
        check_unpacked(archive, ARRAYS + ARRAYS_PER_BYTE * path.stat().st_size)
        for info in archive.infolist():
            with archive.open(info) as file:
                version = np.lib.format.read_magic(file)
                if version not in readers:
                    raise ValueError(f'{info.filename} has format version {version}')
                shape, _, dtype = readers[version](file)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > info.file_size:
                raise ValueError(f'{info.filename} declares {dtype} of shape {shape}, and has '
                                 f'{info.file_size:,} bytes')


def read_array(path: Path) -> np.ndarray:
    """Read an ``.npy`` file; if its header declares more bytes than it has, raise a ValueError."""
    return np.array(np.load(path, mmap_mode='r', allow_pickle=False))


def check_unpacked(archive: zipfile.ZipFile, max_bytes: int) -> None:
    """Raise a ValueError if the files of an archive have more than ``max_bytes`` bytes when
    decompressed."""
    size = sum(info.file_size for info in archive.infolist())
    if size > max_bytes:
        raise ValueError(f'{size:,} bytes when decompressed (at most {max_bytes:,} are read)')


def load_tensors(file: Path | BytesIO) -> Any:
    """Return the content of a file of ``torch.save``, on the CPU, without running pickled code. If
    the file is damaged, this raises many types of errors."""
    import torch

    if zipfile.is_zipfile(file):
        size = file.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, max_bytes=size)  # torch does not compress
    if not isinstance(file, Path):
        file.seek(0)
    return torch.load(file, weights_only=True, map_location='cpu')


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding).removeprefix('\ufeff')
    except UnicodeDecodeError as error:
        line = content[:error.start].count(b'\n')
        raise ValueError(f"{where}{f', line {line + 1}' if line else ''}: not {encoding.upper()} "
                         f"({error.reason}); save the file as {encoding.upper()}") from error
