"""Exact match and F1, against the numbers that the official scripts print for these cases."""

import pytest

from experiments.data.text.answers import agreement, trivia_words

# Prediction, accepted answers, and what evaluate-v2.0.py makes of them.
CASES = [
    ('Denver Broncos', ['Denver Broncos'], 1, 1),
    ('the Denver Broncos!', ['Denver  broncos'], 1, 1),  # article, punctuation, case, blanks
    ('Broncos', ['Denver Broncos', 'The Broncos', 'Broncos of Denver'], 1, 1),  # the best
    ('Denver', ['Denver Broncos', 'Carolina'], 0, 2 / 3),
    ('a b c d', ['b c'], 0, 4 / 5),  # the article goes
    ('cat cat dog', ['cat dog dog'], 0, 2 / 3),  # as often as both have it
    ('an apple a day', ['apple the day'], 1, 1),
    ('U.S.A.', ['USA'], 1, 1), ("it's", ['its'], 1, 1), ('well-known', ['well known'], 0, 0),
    ('Größe', ['größe'], 1, 1), ('naïve café', ['naive cafe'], 0, 0),
    ('東京 タワー', ['東京 タワー'], 1, 1), ('“quoted”', ['quoted'], 0, 0),  # no ASCII
    ('ﬁsh', ['ﬁsh'], 1, 1), ('42', ['42.'], 1, 1),
    ('', [], 1, 1), ('something', [], 0, 0),  # no answer
    ('the', [], 1, 1),  # says nothing
    ('', ['something'], 0, 0), ('the', ['something'], 0, 0),
    ('', ['the'], 1, 1), ('x', ['the', 'x'], 1, 1), ('y', ['the', 'x'], 0, 0),
]


@pytest.mark.parametrize('said, accepted, exact, f1', CASES)
def test_scores_are_those_of_the_official_script(said, accepted, exact, f1):
    assert agreement(said, accepted) == (exact, pytest.approx(f1))


def test_triviaqa_separates_words_at_marks():
    assert trivia_words('The_Spice-Girls’ “hit”') == ['spice', 'girls', '“hit”']
    assert agreement('well-known', ['well known'], trivia_words) == (1, 1)
