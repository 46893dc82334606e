"""Studies share what they train, among themselves and over the processes of a test run."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure


@pytest.fixture(scope='session')
def out(tmp_path_factory, worker_id) -> Path:
    """The folder of all studies."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == 'master' else folder.parent) / 'studies'
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope='module', autouse=True)
def plain_curves():
    """Nobody looks at the curves of these runs, of which there are many; other tests draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('experiments.runs.run_folder.training_curves', lambda history: Figure())
        yield
