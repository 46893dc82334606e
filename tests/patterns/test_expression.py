import pytest

from graphattn import patterns
from graphattn.patterns import (
    Causal,
    Cropped,
    Full,
    GlobalTokens,
    LogSparse,
    RandomKeys,
    SlidingWindow,
    Star,
    parse,
)


@pytest.mark.parametrize('expression, pattern', [
    ('SlidingWindow(3)', SlidingWindow(3)),
    (' SlidingWindow(radius=3, causal=True) ', SlidingWindow(3, causal=True)),
    ('SlidingWindow(3) | GlobalTokens((0, 5))', SlidingWindow(3) | GlobalTokens((0, 5))),
    ('(Full() - SlidingWindow(0)) & Causal()', (Full() - SlidingWindow(0)) & Causal()),
    ('star', Star()),
    ('Cropped(RandomKeys(2) | Star(), 9)', Cropped(RandomKeys(2) | Star(), 9)),
    ('Cropped(pattern=star(), size=9)', Cropped(Star(), 9)),
    ('logsparse(causal=True)', LogSparse(causal=True)),
    ('bigbird(block=4) | RandomKeys(1)', patterns.get('bigbird', block=4) | RandomKeys(1)),
])
def test_parse_equals_the_python_expression(expression, pattern):
    assert parse(expression) == pattern
    assert parse(repr(pattern)) == pattern


@pytest.mark.parametrize('expression, error, match', [
    ('SlidingWindow(', ValueError, 'must be an expression'),
    ('', ValueError, 'must be an expression'),
    ('SlidingWindo(3)', ValueError, "'SlidingWindo'.*did you mean 'SlidingWindow'"),
    ('bigbrid', ValueError, "did you mean 'bigbird'"),
    ('Pattern()', ValueError, 'unknown pattern'),
    ('_SetOperation(Full(), Full())', ValueError, 'unknown pattern'),
    ('get("star")', ValueError, 'unknown pattern'),
    ('SlidingWindow(3) + Star()', ValueError, "patterns, presets"),
    ('SlidingWindow(open("x"))', ValueError, "'expression'.*arguments"),
    ('Cropped(open("x"), 3)', ValueError, "'expression'.*arguments"),
    ('Cropped(open("x") | Star(), 3)', ValueError, "unknown pattern .got 'open'"),
    ('__import__("os").system("true")', ValueError, "'expression'.*patterns"),
    ('3', ValueError, "'expression'.*patterns"),
    ('bigbird(64)', TypeError, "must name the parameters of the preset 'bigbird'"),
    ('SlidingWindow(radios=3)', TypeError, 'radios'),
    ('SlidingWindow(-1)', ValueError, "'radius' must not be negative"),
    (3, TypeError, "'expression' must be a str .got int"),
    ('graphattn.patterns.Sta()', ValueError, "a class of graphattn.patterns .*did you mean 'Star'"),
    ('|'.join(['star'] * 20_000), ValueError, "'expression' must be nested at most 100 levels"),
    ('|'.join(['star'] * 400), ValueError, "'expression' must be nested at most 100 levels"),
    ('-' * 50_000 + 'star', ValueError, "'expression' must be nested at most 100 levels"),
    ('SlidingWindow(' + '[' * 50_000 + ')', ValueError, 'must be an expression'),
    ('SlidingWindow(radius=1, radius=2)', ValueError, "'expression' must name.*parameter"),
    ('SlidingWindow(**{"radius": 2})', ValueError, "'expression' must name.*parameter"),
    ('SlidingWindow({[]: 1})', ValueError, "'expression'.*arguments"),
])
def test_other_expressions_are_refused(expression, error, match):
    with pytest.raises(error, match=match):
        parse(expression)
