"""The page on the architecture shows what is called, and counts what there is."""

import re
from pathlib import Path

import pytest

from docs import counts, walk
from tests.test_imports import LIBRARY

ROOT = Path(__file__).parent.parent
# Of all others, what travels together is one value, or the options of the layer below.
MANY_PARAMETERS = {
    ('attention', 'edge_attention'): 'independent terms of one formula',
    ('dense', 'pair_attention'): 'independent terms of one formula',
    ('graph_attention', 'forward'): 'tensors and choices of a call, few of which are given at once',
    ('graph_gps_conv', '__init__'): "the signature of PyG's layer",
    ('multihead_attention', '__init__'): "the signature of torch's layer",
}


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


@pytest.mark.slow
def test_modules_and_imports_of_the_library_are_counted():
    found = counts.counts(ROOT)
    assert found['modules of graphattn'] == len(LIBRARY)
    assert found['packages and modules at its top'] < found['arrows between these']


@pytest.mark.slow
def test_only_some_functions_have_many_parameters():
    found = counts.with_many_parameters(counts.trees_of(ROOT))
    assert sorted(found) == sorted(MANY_PARAMETERS)
