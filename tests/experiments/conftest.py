"""What trains in a test draws no figures, unless a fixture of the module does it for all to see;
and a server may start the processes in which something is measured."""

from multiprocessing import get_context

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def plain_figures(monkeypatch):
    """Set after the fixtures of a module, so that the figures of their runs are the real ones."""
    for name in 'runs.run_folder.training_curves', 'tasks.digits.received_attention':
        monkeypatch.setattr(f'experiments.{name}', lambda *args, **kwargs: Figure())


@pytest.fixture
def started_by_a_server(monkeypatch):
    """To spawn a process takes seconds, and serves times that are nobody's here. A fork of this one
    would have its freed memory, and no peak above it."""
    monkeypatch.setattr('experiments.benchmarks.measure.get_context',
                        lambda start: get_context('forkserver'))
    monkeypatch.setattr('experiments.benchmarks.measure.A_ROUND', 0.)
