"""Kernels of other libraries that are installed have no faults but those that the table names."""

import pytest
import torch

from graphattn.testing.adapters import ADAPTERS, examined, main

# FlexAttention is traced for each case, which takes long; our own backend runs its definition.
RUN_HERE = [name for name, adapter in ADAPTERS.items()
            if adapter.device == 'cpu' and 'flex' not in name]


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', RUN_HERE)
def test_a_kernel_is_right_but_for_its_limits(name):
    adapter = ADAPTERS[name]
    pytest.importorskip(adapter.package, reason=f'{name} needs {adapter.package}')
    checks = ['graphs', 'half precision', 'grouped queries', *adapter.supports.limits]
    report = adapter.check(checks=checks)
    assert {finding.check for finding in report.limits} == set(adapter.supports.limits)
    assert report.counts()['passed'] >= 14


@pytest.mark.skipif(torch.cuda.is_available(), reason='the kernels run here')
@pytest.mark.parametrize('name', [name for name, each in ADAPTERS.items()
                                  if each.device == 'cuda'])
def test_what_cannot_run_here_is_said_in_a_line(name):
    adapter = ADAPTERS[name]
    assert examined(adapter) in (f'{adapter.package} is not installed', 'there is no GPU')


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit, match='unknown: sdpa; there are .*big_bird, '):
        main(['sdpa'])


@pytest.mark.parametrize('name', [name for name, adapter in ADAPTERS.items()
                                  if adapter.graphs and adapter.form == 'mask'])
def test_kernels_that_know_their_graph_get_squares_or_rectangles_without_empty_rows(name):
    adapter = ADAPTERS[name]
    if name == 'big_bird':  # its random blocks are drawn by the module
        pytest.importorskip('transformers', reason='big_bird needs transformers')
    for graph in adapter.graphs().values():
        assert (graph.in_degree() > 0).all()
        assert graph.is_square or adapter.supports.rectangular
