"""Digests of the input files of a run, which show whether the files have changed."""

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

# Options that do not name an input, even if a file of that name exists.
NO_INPUTS = {'cache', 'class_path', 'classes', 'columns', 'label', 'task', 'pattern'}


def inputs_of(config: dict[str, Any]) -> dict[str, str]:
    """Return the digests of all files and folders that the options of model and data name, by the
    name of the option."""
    options = {**flat(config.get('model'), 'model'), **flat(config.get('data'), 'data')}
    return {name: digest(Path(value)) for name, value in options.items()
            if isinstance(value, str) and value and not NO_INPUTS & set(name.split('.'))
            and _is_there(Path(value))}


def flat(value: Any, name: str) -> dict[str, Any]:
    """Return all values in nested dicts and lists as one dict with dotted names."""
    if not isinstance(value, dict | list) or not value:
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {inner: leaf for key, part in parts
            for inner, leaf in flat(part, f'{name}.{key}').items()}


def digest(path: Path) -> str:
    """Return a digest of a file, or of the names and contents of all files in a folder."""
    whole = blake2b(digest_size=16)
    for file in _files(path):
        whole.update(str(file.relative_to(path)).encode(errors='surrogateescape') + b'\0')
        about = file.stat()
        whole.update(_digest_of_file(file.absolute(), about.st_size, about.st_mtime_ns))
    return whole.hexdigest()


@cache  # cached, because the runs of a study share their files
def _digest_of_file(path: Path, size: int, changed: int) -> bytes:
    with path.open('rb') as content:
        return file_digest(content, blake2b).digest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob('*') if file.is_file())
    else:
        yield path


def _is_there(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # not a valid file name: it is too long, or contains a null byte
        return False
