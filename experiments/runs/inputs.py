"""Digests of the files that a run reads, by which it is noticed that they have changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

# What is read from, and texts that may happen to be called as a file is.
NO_INPUTS = {'cache', 'class_path', 'classes', 'columns', 'label', 'task', 'pattern'}


def inputs_of(config: dict[str, Any]) -> dict[str, str]:
    """Return the digest of every file or folder that the options of the model and the data name.

    Args:
        config (dict): A resolved config, in plain types.

    Returns:
        Digests by the option, such as ``data.init_args.path``.
    """
    options = {**flat(config.get('model'), 'model'), **flat(config.get('data'), 'data')}
    return {name: digest(Path(value)) for name, value in options.items()
            if isinstance(value, str) and value and not NO_INPUTS & set(name.split('.'))
            and _is_there(Path(value))}


def flat(value: Any, name: str) -> dict[str, Any]:
    """Return the values in nested dicts and lists by their dotted names."""
    if not isinstance(value, dict | list) or not value:
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {inner: leaf for key, part in parts
            for inner, leaf in flat(part, f'{name}.{key}').items()}


def digest(path: Path) -> str:
    """Return a digest of what a file holds, or of the names and contents of a folder's files."""
    whole = blake2b(digest_size=16)
    for file in _files(path):
        whole.update(str(file.relative_to(path)).encode(errors='surrogateescape') + b'\0')
        about = file.stat()
        whole.update(_digest_of_file(file.absolute(), about.st_size, about.st_mtime_ns))
    return whole.hexdigest()


@cache  # a study asks of the same files for every run
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
    except (OSError, ValueError):  # no name of a file: too long, or with a null
        return False
