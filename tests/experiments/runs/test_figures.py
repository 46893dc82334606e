"""Curves of a run."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.runs.figures import training_curves

TRAIN = {'train/loss': 1., 'train/density/layer0/head0': 0.5}


@pytest.mark.slow
def test_a_single_epoch_is_seen():
    figure = training_curves([{'epoch': 0, 'step': 3, **TRAIN}])
    canvas = FigureCanvasAgg(figure)
    assert figure.axes
    for axes in figure.axes:
        line, = axes.lines
        pictures = []
        for visible in (True, False):
            line.set_visible(visible)
            canvas.draw()
            pictures.append(np.array(canvas.buffer_rgba()))
        assert (pictures[0] != pictures[1]).any()
