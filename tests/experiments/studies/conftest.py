"""Studies share what they train, among themselves and over the processes of a test run."""

from pathlib import Path

import pytest

from tests.experiments.conftest import draw_nothing


@pytest.fixture(scope='session')
def out(tmp_path_factory, worker_id) -> Path:
    """The folder of all studies."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == 'master' else folder.parent) / 'studies'
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope='module', autouse=True)
def plain_figures_of_modules():
    """Nobody looks at the figures of these runs, of which there are many; other tests draw them."""
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield
