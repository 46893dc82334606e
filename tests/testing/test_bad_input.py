"""Functions that are not attention at all are named, and the suite goes on."""

import os
import re
import time

import pytest

from graphattn.testing import Supports, WrongAttention, check_attention, run
from tests.testing.faulty import attention

CHECKS = ['scale', 'one head, many heads']  # seven small cases, the second with scale 2


def two_arguments(query, key):
    return query


def a_tuple(query, key, value, indices):
    return attention(query, key, value, indices), None


def another_shape(query, key, value, indices):
    return attention(query, key, value, indices).flatten(1)


def another_device(query, key, value, indices):
    return attention(query, key, value, indices).to('meta')


def another_dtype(query, key, value, indices):
    return attention(query, key, value, indices).half()


def without_gradients(query, key, value, indices):
    return attention(query, key, value, indices).detach()


def without_one_gradient(query, key, value, indices):
    return attention(query, key.detach(), value, indices)


def writes(query, key, value, indices):
    out = attention(query, key, value, indices)
    value.detach().zero_()
    return out


def raises(query, key, value, indices):
    raise RuntimeError('no luck\nand more about it')


@pytest.mark.parametrize('function, kind, words', [
    (two_arguments, 'raised', 'TypeError: two_arguments.. takes 2 positional arguments but 4'),
    (a_tuple, 'type', 'the output is tuple, not a Tensor'),
    (another_shape, 'shape', r'the shape of the output is \(\d+, \d+\), not \(\d+, \d+, \d+\)'),
    (another_device, 'device', 'the device of the output is meta, not cpu'),
    (another_dtype, 'dtype', 'the dtype of the output is torch.float16, not torch.float32'),
    (without_gradients, 'gradient', 'the output has no gradient'),
    (without_one_gradient, 'gradient', "'key' receives no gradient"),
    (writes, 'writes', "the call changed the argument 'value'"),
    (raises, 'raised', 'RuntimeError: no luck$'),
], ids=lambda each: getattr(each, '__name__', ''))
def test_what_is_no_attention_is_named(function, kind, words):
    report = check_attention(function, form='indices', checks=['threads'], on_fail='report')
    finding, = report.findings
    assert finding.kind == kind and re.search(words, finding.message)


@pytest.mark.slow
def test_a_loop_without_end_is_named_and_the_suite_goes_on():
    def loops(query, key, value, indices, scale=None):
        while scale == 2.:
            time.sleep(0.01)
        return attention(query, key, value, indices, scale=scale)

    report = check_attention(loops, form='indices', checks=CHECKS, time_limit=1, on_fail='report')
    finding, = report.findings
    assert finding.kind == 'hangs' and finding.message == 'the call took more than 1 s'
    assert [outcome.status for outcome in report.outcomes] == ['passed', 'failed', *['passed'] * 5]


def test_a_function_that_always_hangs_is_left_after_three_cases():
    def hangs(query, key, value, indices):
        time.sleep(100)

    report = check_attention(hangs, form='indices', checks=['graphs'], time_limit=0.05,
                             on_fail='report')
    assert report.counts()['failed'] == run.MAX_HANGS
    assert report.counts()['not run'] == len(report.outcomes) - run.MAX_HANGS


def dies(query, key, value, indices, scale=None):
    if scale == 2. and query.size(1) > 1:
        os._exit(7)
    return attention(query, key, value, indices, scale=scale)


@pytest.mark.slow
def test_a_function_that_ends_its_process_is_named_if_it_runs_apart():
    report = check_attention(dies, form='indices', checks=CHECKS, isolated=True, on_fail='report')
    finding, = report.findings
    assert finding.kind == 'ends' and 'ended with exit code 7' in finding.message
    assert [outcome.status for outcome in report.outcomes] == ['passed', 'failed', *['passed'] * 5]


@pytest.mark.slow
def test_a_loop_that_no_signal_ends_is_ended_if_it_runs_apart():
    def loops(query, key, value, indices, scale=None):
        while scale == 2.:
            try:
                time.sleep(10)
            except BaseException:
                pass
        return attention(query, key, value, indices, scale=scale)

    report = check_attention(loops, form='indices', checks=CHECKS, time_limit=1, isolated=True,
                             on_fail='report')
    finding, = report.findings
    assert finding.kind == 'hangs' and 'no signal ended it' in finding.message
    assert report.counts()['passed'] == 6


@pytest.mark.parametrize('options, words', [
    (dict(form='edges'), "'form' must be 'graph', 'mask', .*got 'edges'"),
    (dict(layout='nch'), "'layout' must be 'nhc', .*got 'nch'"),
    (dict(on_fail='warn'), "'on_fail' must be 'raise' or 'report' .*got 'warn'"),
    (dict(checks=['all']), "'checks' must be 'graphs', .*got 'all'"),
    (dict(supports=Supports(limits={'nan': ''})), "'limits' must be 'graphs', .*got 'nan'"),
])
def test_unknown_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        check_attention(attention, **options)


def test_an_error_says_all_that_was_found():
    with pytest.raises(WrongAttention, match='no luck') as caught:
        check_attention(raises, form='indices', checks=['threads'])
    report = check_attention(raises, form='indices', checks=['threads'], on_fail='report')
    assert str(caught.value.report) == str(report) and not report.is_right
    assert caught.value.findings == caught.value.report.findings
