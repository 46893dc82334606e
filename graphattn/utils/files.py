"""Files and folders that are either whole or not there, whether they can be written at all, and
what may stand in them."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ['check_folder', 'csv_cell', 'new_folder', 'write_whole']

FORMULA = ('=', '+', '-', '@', '\t', '\r')  # how spreadsheets know one


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and renames it when that is done."""
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
    """Yield a temporary folder to fill, which becomes ``path`` when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}-'))
    try:
        yield folder
        folder.chmod(0o755)
        try:
            folder.replace(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster with the same content
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_folder(name: str, folder: Path) -> None:
    """Raise unless files can be written into ``folder``, which need not exist; create nothing.

    Raises:
        ValueError: They cannot; the message calls the folder ``name``.
    """
    path = folder.absolute()
    try:
        while not _is_there(path):
            path = path.parent
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(2**16))  # an empty file fits on a full disk too
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise ValueError(f"'{name}' must be a folder that can be written to (got {folder}: "
                         f"{reason})") from error


def csv_cell(value: object) -> object:
    """Return a value as a cell of a CSV file that spreadsheets take for no formula: a text that
    begins as formulas do, and is no number, gets an apostrophe before it."""
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
