"""Disk cache of arrays that take long to compute."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import numpy as np

from graphattn.utils.files import new_folder
from graphattn.utils.reading import read_array, read_json


def cached_arrays(cache: Path, name: str, parameters: dict[str, Any],
                  make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the result of ``make()``, cached in the folder ``cache/name-DIGEST`` until a file is
    damaged or ``parameters`` differ."""
    said = json.loads(json.dumps(parameters))
    folder = cache / f'{name}-{blake2b(json.dumps(parameters).encode(), digest_size=8).hexdigest()}'
    arrays = _read(folder, said)
    if arrays is None:
        arrays = make()
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as temporary:
            for array_name, array in arrays.items():
                np.save(temporary / f'{array_name}.npy', array, allow_pickle=False)
            manifest = {'parameters': said, 'digests': {
                name: _digest(temporary / f'{name}.npy') for name in arrays}}
            (temporary / 'manifest.json').write_text(json.dumps(manifest, indent=2) + '\n')
    return arrays


def _read(folder: Path, parameters: dict) -> dict[str, np.ndarray] | None:
    """Return the arrays in a folder by name, or ``None`` if their ``parameters`` or their bytes
    differ from the manifest."""
    try:
        manifest = read_json(folder / 'manifest.json')
        if manifest['parameters'] != parameters or not manifest['digests']:
            return None
        files = {name: folder / f'{name}.npy' for name in manifest['digests']}
        if any(_digest(path) != manifest['digests'][name] for name, path in files.items()):
            return None
        return {name: read_array(path) for name, path in files.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _digest(path: Path) -> str:
    with path.open('rb') as file:
        return file_digest(file, partial(blake2b, digest_size=16)).hexdigest()
