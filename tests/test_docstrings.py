"""Documentation has one place: pages of public names. Of all other names, a sentence or none."""

from pathlib import Path

from docs.counts import docstring_counts

# Mean lines of the docstrings that there are, and the share of private functions that have one.
MOST = {'mean lines, private': 1.5, 'mean lines, internal': 2.5, 'private functions with one': 0.2}


def test_names_that_are_not_public_have_a_sentence_or_none():
    counts = docstring_counts(Path(__file__).parent.parent)
    assert {name: counts[name] for name in MOST if counts[name] > MOST[name]} == {}
