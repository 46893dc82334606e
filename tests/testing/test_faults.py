"""Faults planted in a right function are found, and the right function has none."""

from functools import partial

import pytest

from graphattn.testing import Supports, check_attention, run
from tests.testing.faulty import FAULTS, REMEMBERED, attention

# Plain torch that refuses second derivatives, and whose Python torch does not trace.
SUPPORTS = Supports.everything(second_derivatives=False, compiles=False)


@pytest.mark.slow
def test_a_right_function_has_no_fault():
    report = check_attention(attention, form='indices', supports=SUPPORTS)
    assert report.counts().keys() == {'passed', 'refused', 'not supported'}
    assert not any(each.status == 'not supported' for each in report.outcomes
                   if each.check != 'torch.compile')


@pytest.mark.slow
@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_is_found(fault, monkeypatch):
    REMEMBERED.clear()
    if 'dropout' in FAULTS[fault]:  # whose cases become plainer in a way of their own
        monkeypatch.setattr(run, 'SHRINKING', 0.1)
    faulty = partial(attention, fault=fault)
    report = check_attention(faulty, form='indices', supports=SUPPORTS, checks=[FAULTS[fault]],
                             on_fail='report')
    finding, = report.findings
    assert finding.check == FAULTS[fault] and finding.kind in ('values', 'writes', 'varies',
                                                               'dtype')
