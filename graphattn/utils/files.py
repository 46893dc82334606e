"""Atomic writes of files and folders, checks of folders, and cells of CSV files."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

__all__ = ['as_path', 'check_folder', 'csv_cell', 'new_folder', 'write_whole']

FORMULA = ('=', '+', '-', '@', '\t', '\r')  # first characters of formulas in spreadsheets


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file atomically: ``write`` fills a temporary file next to ``path``, which is then
    renamed to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.stem}-', suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to ``path`` if this context ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}-'))
    try:
        yield folder
        folder.chmod(0o755)
        try:
            folder.replace(path)
        except OSError:
            if not path.is_dir():  # else another process has written the same content
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_path(name: str, path: str | PathLike) -> Path:
    if not isinstance(path, str | PathLike):
        raise TypeError(f"'{name}' must be a str or a PathLike (got {type(path).__name__})")
    return Path(path)


def check_folder(name: str, folder: Path) -> None:
    """Raise a ValueError unless files can be written into ``folder``, which need not exist and is
    not created. The message calls the argument ``name``."""
    path = folder.absolute()
    try:
        while not _is_there(path):
            path = path.parent
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(2**16))  # an empty file fits on a full disk too
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise ValueError(f"'{name}' must be a writable folder (got {folder}: {reason})") from error


def csv_cell(value: object) -> object:
    """Return ``value`` as the cell of a CSV file. If a spreadsheet would read the text of the cell
    as a formula, an apostrophe is put before the text."""
    if isinstance(value, str) and value.startswith(FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True
