"""What trains in a test draws no figures, unless a fixture of the module does it for all to see;
and what measures in processes of its own may do so in forks of this one."""

from multiprocessing import get_context

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def plain_figures(monkeypatch):
    """Set after the fixtures of a module, so that the figures of their runs are the real ones."""
    for name in 'runs.run_folder.training_curves', 'tasks.digits.received_attention':
        monkeypatch.setattr(f'experiments.{name}', lambda *args, **kwargs: Figure())


@pytest.fixture
def measured_in_forks(monkeypatch):
    """A new process would import torch for seconds, and serve times that are nobody's here."""
    monkeypatch.setattr('experiments.benchmarks.measure.get_context',
                        lambda start: get_context('fork'))
