"""Studies share what they train, among themselves and over the processes of a test run."""

from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def out(tmp_path_factory, worker_id) -> Path:
    """The folder of all studies."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == 'master' else folder.parent) / 'studies'
    folder.mkdir(exist_ok=True)
    return folder
