"""The page on the architecture shows what is called, and counts what there is."""

import re
from pathlib import Path

import pytest

from docs import walk

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope='module')
def walks():
    return walk.walks()


@pytest.mark.slow
@pytest.mark.parametrize('name', walk.WALKS)
def test_a_walk_goes_from_the_layer_through_source_and_driver_to_the_kernel(walks, name):
    calls = walks[name]
    floors = [call.floor for call in calls if walk.LANDMARKS.fullmatch(call.name)]
    order = [floors.index(floor) for floor in ('layers', 'sources', 'functional', 'ops')]
    assert order == sorted(order)
    found = walk.counts(calls)
    assert len(set(call.file for call in calls)) == found['files'] < found['calls'] == len(calls)
    assert 0 < found['calls that check'] < found['calls'] / 2
    assert all((ROOT / 'graphattn' / call.file).exists() for call in calls)


@pytest.mark.slow
def test_every_walk_has_a_panel_and_a_row(walks):
    figure = walk.draw(walks)
    assert [axes.get_title(loc='left').split(':')[0] for axes in figure.axes] == [*walks]
    page = (ROOT / 'docs/architecture.md').read_text()
    rows = [re.escape(line.split('|')[1]) for line in walk.table(walks).splitlines()]
    assert [row for row in rows if not re.search(rf'^\|{row}\|', page, re.M)] == []
