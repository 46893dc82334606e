"""Files that are either whole or not there, and archives of arrays that nobody vouches for."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np

# Bytes that arrays may take in memory: so many whatever the file, and so many for each of its own.
# Zip makes 1,000 of one.
_ALWAYS, _PER_BYTE = 2**26, 256


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Lets ``write`` fill a temporary file beside ``path`` and renames it when that is done."""
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


def read_arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """These arrays of an ``.npz`` file, in which nothing is executed.

    Raises:
        ValueError: They would take much more memory than a file of that size is to ask for.
        Exception: Whatever reading ends in if the file is something else, or half of one.
    """
    with ZipFile(path) as archive:
        members = [archive.getinfo(f'{name}.npy') for name in names]
        num_bytes = sum(member.file_size for member in members)  # of which no more are read
        most = _ALWAYS + _PER_BYTE * path.stat().st_size
        if num_bytes > most:
            raise ValueError(f'its arrays say that they take {num_bytes} bytes, of at most {most} '
                             f'that a file of this size may')
        return [_read_array(archive, member) for member in members]


def _read_array(archive: ZipFile, member: ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
