"""Curves of a run."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.runs.figures import training_curves

TRAIN = {'train/loss': 1., 'train/density/layer0/head0': 0.5}
VAL = {'val/loss': 1., 'val/density/layer0/head0': 0.4, 'val/density/layer0/head1': 0.3}


@pytest.mark.slow
@pytest.mark.parametrize('metrics, loss, density', [
    (TRAIN | VAL, ['training', 'development'], ['layer0 head0', 'layer0 head1']),
    (TRAIN, ['training'], ['layer0 head0'])], ids=['with development data', 'without'])
def test_heads_are_drawn_once(metrics, loss, density):
    """On development data if there are such."""
    figure = training_curves([{'epoch': 0, 'step': 3, **metrics}])
    assert {axes.get_title(): axes.get_legend_handles_labels()[1] for axes in figure.axes} == {
        'loss': loss, 'density': density}


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


@pytest.mark.slow
def test_twelve_heads_are_in_order_and_told_apart():
    places = [f'layer{layer}/head{head}' for layer in range(2) for head in range(12)]
    figure = training_curves([{'epoch': 0, 'step': 3, 'train/loss': 1.,
                               **{f'train/density/{place}': 0.5 for place in places}}])
    axes = figure.axes[1]
    assert axes.get_legend_handles_labels()[1] == [place.replace('/', ' ') for place in places]
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(places)
    FigureCanvasAgg(figure).draw()
    assert axes.get_legend().get_window_extent().height < figure.bbox.height
