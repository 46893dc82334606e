"""Every page of the gallery runs, and shows what its kind shows."""

import re
from pathlib import Path

import pytest
from matplotlib import pyplot
from torch.utils.benchmark import Timer

from graphattn import patterns, sources
from graphattn.patterns.presets import PRESETS
from graphattn.sources import GraphSource

GALLERY = Path(__file__).parent.parent / 'docs/gallery'
PAGES = sorted(GALLERY.glob('*/*.py'))
# By the labels of their axes: mask, degrees, spectrum, receptive field, time.
SHOWN = [('key', 'query'), ('token', 'edges'), ('index', 'eigenvalue'),
         ('layers', 'keys that reach a query'), ('tokens', 'milliseconds')]


@pytest.fixture(autouse=True)
def in_short(monkeypatch):
    """Times are taken once, and figures closed."""
    pyplot.switch_backend('agg')
    monkeypatch.setattr(Timer, 'blocked_autorange', lambda timer, **_: timer.timeit(1))
    yield
    pyplot.close('all')


def shortened(code: str) -> str:
    """Two lengths in place of four, and two steps of training in place of hundreds."""
    code = re.sub(r'^for n in \(.*\):', 'for n in (64, 128):', code, flags=re.M)
    return re.sub(r'^for _ in range\(\d+\):', 'for _ in range(2):', code, flags=re.M)


@pytest.mark.slow
@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_a_page_shows_all_that_there_is_to_a_graph(page):
    exec(compile(shortened(page.read_text()), page, 'exec'), {})
    panels = [axes for number in pyplot.get_fignums() for axes in pyplot.figure(number).axes]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in panels]
    assert [label for label in SHOWN if label not in labels] == []
    assert any([text.get_text() for text in axes.get_yticklabels()] == ['queries', 'keys']
               for axes in panels)


def test_nothing_is_left_out():
    text = '\n'.join(page.read_text() for page in PAGES)
    named = [name for package, kind in ((patterns, patterns.Pattern), (sources, GraphSource))
             for name in package.__all__ if issubclass_of(getattr(package, name), kind)]
    combined = {'Cropped', 'Difference', 'Intersection', 'Union'}
    assert [name for name in named if name not in combined and not in_words(name, text)] == []
    assert [name for name in PRESETS if not in_words(name, text.lower())] == []


def issubclass_of(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def in_words(name: str, text: str) -> bool:
    return re.search(rf'\b{name}\b', text) is not None
