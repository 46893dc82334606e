import numpy as np
import pytest
from scipy.ndimage import binary_dilation, label

from experiments.data.pathfinder import SETTINGS, GeneratedPathfinder, draw_images, show_images
from experiments.data.sequences import PARTS

SMALL = dict(num_train=70, num_dev=10, num_test=10)


@pytest.fixture(scope='module')
def drawn():
    return draw_images(np.random.default_rng(0), 400, SETTINGS[32])


@pytest.mark.slow
def test_the_shares_of_the_distribution(drawn):
    assert set(drawn.label.tolist()) == {0, 1}
    assert drawn.label.mean() == pytest.approx(0.5, abs=0.1)
    assert (drawn.contour > 0.5).all(axis=1).mean() < 0.01  # contours keep their distance
    assert (drawn.image == 0).mean() == pytest.approx(0.66, abs=0.02)
    assert 250 < drawn.attempts.mean() < 380  # until a pair of contours finds room


def ends(drawn, i, which):
    """Return whether each disc of an image has ink of one of its contours in its middle."""
    return [drawn.contour[i, which, y, x] > 0. for y, x in drawn.disc[i]]


@pytest.mark.slow
def test_the_label_says_whether_one_contour_has_both_discs(drawn):
    for i, one in enumerate(drawn.label):
        has_both = any(all(ends(drawn, i, which)) for which in range(2))
        is_between = any(ends(drawn, i, which) in ([True, False], [False, True])
                         for which in range(2))
        assert has_both if one else is_between or has_both


def test_a_contour_is_one_piece_but_for_the_gaps_between_dashes(drawn):
    reach = SETTINGS[32].margins[0] + 1  # a gap is twice the margin, and is closed from both sides
    for i in range(50):
        for which in range(2):
            ink = drawn.contour[i, which] > 0.2
            pieces = label(binary_dilation(ink, np.ones((3, 3)), iterations=reach))[1]
            assert pieces == 1
            assert label(ink, np.ones((3, 3)))[1] > 3  # it is dashed


@pytest.mark.slow
def test_discs_are_at_full_intensity(drawn):
    settings = SETTINGS[32]
    for i, image in enumerate(drawn.image):
        middle = image[tuple(drawn.disc[i].T)]
        # Distractors alone have more contrast than discs, and all is scaled to the lightest.
        assert middle.min() >= 255 / settings.distractor_contrast
        assert image.max() == 255 and image.min() == 0
    assert np.mean([drawn.image[i][tuple(drawn.disc[i].T)] for i in range(400)]) > 200
    assert draw_images(np.random.default_rng(0), 1, SETTINGS[128]).image.max() == 255


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
    (dict(size=33), "'size' must be one of 32, 64, 128 .got 33"),
    (dict(num_test=0), "'num_test' must be at least 1"),
    (SMALL, "'max_length' must.*least 1024,.*pixels.*got 1000"),  # or an image would be cut
])
def test_bad_arguments(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        GeneratedPathfinder(**options, cache=str(tmp_path)).read(1000)


def test_a_picture_of_few_images_has_no_empty_axes(drawn):
    figure = show_images(drawn.image[:3], drawn.label[:3])
    assert [axes.axison for axes in figure.axes] == [True] * 3 + [False] * 7
