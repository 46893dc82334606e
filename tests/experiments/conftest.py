"""Training in a test draws no figures, unless a fixture of the module does it for all to see; and
the processes of measurements may be forks."""

from multiprocessing import get_context

import pytest
from matplotlib.figure import Figure


def draw_nothing(patch):
    for name in 'runs.run_folder.training_curves', 'tasks.digits.received_attention':
        patch.setattr(f'experiments.{name}', lambda *args, **kwargs: Figure(figsize=(1, 1)))


@pytest.fixture(autouse=True)
def plain_figures(monkeypatch):
    """Set after the fixtures of a module, so that the figures of their runs are the real ones."""
    draw_nothing(monkeypatch)


@pytest.fixture
def measured_in_forks(monkeypatch):
    """Other processes would import for ten seconds what this one has. Times and peaks of a fork are
    nobody's: it has the memory that this one has freed, and no peak above it."""
    for name in 'measure.get_context', 'measure.forkserver', 'distributed.forkserver':
        monkeypatch.setattr(f'experiments.benchmarks.{name}', lambda *start: get_context('fork'))
    monkeypatch.setattr('experiments.benchmarks.measure.A_ROUND', 0.)
