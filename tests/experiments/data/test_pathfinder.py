import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt, label

from experiments.data.pathfinder import (
    FINER,
    SIDE,
    STEP,
    WHITE,
    GeneratedPathfinder,
    draw_contours,
    draw_fine,
    draw_image,
)
from experiments.data.sequences import PARTS

SMALL = dict(num_train=70, num_dev=10, num_test=10)


@pytest.fixture(scope='module')
def drawn():
    return draw_contours(np.random.default_rng(0), 200)


@pytest.mark.slow
def test_labels_are_those_that_the_picture_shows(drawn):
    """A contour is one piece if its gaps are closed, and contours remain apart."""
    for dashes, discs, one in zip(drawn.dashes, drawn.discs, drawn.label):
        paper = draw_fine(dashes, discs[:0]) == 0
        assert label(~paper)[1] > 2 * 10  # it is dashed
        piece = label(distance_transform_edt(paper) < FINER)[0]
        first, second = (piece[int(FINER * y), int(FINER * x)] for x, y in discs)
        assert 0 < min(first, second) and (first == second) == one


@pytest.mark.slow
def test_the_discs_are_where_the_picture_is_brightest(drawn):
    for dashes, discs in zip(drawn.dashes, drawn.discs):
        image = draw_image(dashes, discs)
        assert image.shape == (SIDE, SIDE) and image.min() == 0
        assert all(image[int(y), int(x)] == WHITE for x, y in discs)


@pytest.mark.slow
def test_half_of_the_images_has_each_label_whatever_the_distance_of_the_discs(drawn):
    assert drawn.label.mean() == 0.5
    distance = np.linalg.norm(drawn.discs[:, 0] - drawn.discs[:, 1], axis=1)
    right = [((distance > least) == drawn.label).mean() for least in np.arange(SIDE)]
    assert 0.4 < min(right) and max(right) < 0.6
    assert (distance > 2 * STEP).mean() > 0.9


@pytest.mark.slow
def test_images_depend_on_the_seed_alone(tmp_path):
    first = GeneratedPathfinder(**SMALL, cache=str(tmp_path / 'a')).read(1024)
    again = GeneratedPathfinder(**SMALL, cache=str(tmp_path / 'b')).read(1024)
    other = GeneratedPathfinder(**SMALL, seed=1, cache=str(tmp_path / 'a')).read(1024)
    for part, number in zip(PARTS, (70, 10, 10)):
        assert first.parts[part].tokens.shape == (number * 1024,)
        assert np.array_equal(first.parts[part].tokens, again.parts[part].tokens)
        assert not np.array_equal(first.parts[part].tokens, other.parts[part].tokens)


@pytest.mark.parametrize('options, match', [
    (dict(num_test=0), "'num_test' must be at least 1"),
    (SMALL, "'max_length' must.*least 1024.*got 1000"),  # or an image would be cut
])
def test_bad_arguments(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        GeneratedPathfinder(**options, cache=str(tmp_path)).read(1000)
