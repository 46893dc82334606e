"""Reports: findings can be repeated from their scripts, and declared limits are no failures."""

import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.testing import Supports, WrongAttention, check_attention, run
from graphattn.testing.call import FORMS
from graphattn.testing.case import GRAPHS, TERMS, draw, random_graph
from graphattn.testing.definition import define, tolerance
from graphattn.testing.run import smallest
from tests.testing.faulty import attention

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize('fault, check', [
    ('turns the sign of the gradient of keys', 'graphs'),
    ('drops the gradient of the gate', 'gate'),
    ('reads memory as if it were contiguous', 'strides'),
    ('pairs heads by the remainder', 'grouped queries'),
    ('clamps logits', 'sizes of logits'),
    ('drops the gradient of the sink', 'sink')])
def test_the_smallest_case_is_a_script_that_repeats_the_failure(fault, check, capsys, monkeypatch):
    monkeypatch.setattr(run, 'SHRINKING', 3.)
    faulty = partial(attention, fault=fault)
    supports = Supports.everything(second_derivatives=False, compiles=False)
    report = check_attention(faulty, form='indices', supports=supports, checks=[check],
                             on_fail='report')
    code = report.findings[0].code
    namespace = {'attention': faulty}
    exec(code, namespace)
    came, right = (eval(re.search(f'# {word}: +(.*)', code)[1], {'nan': math.nan})
                   for word in ('came', 'right'))
    printed = eval(capsys.readouterr().out.replace('\n', ' '), {
        'tensor': lambda x, **options: torch.tensor(x), 'torch': torch,
        **dict.fromkeys(('dtype', 'grad_fn'))})
    assert came != right and torch.allclose(printed, torch.tensor(came), atol=1e-4)
    assert sum(x.numel() for name, x in namespace.items()
               if name in ('query', 'key', 'value')) <= 30


def test_the_smallest_case_has_no_more_than_what_fails_needs():
    case = draw('', random_graph(30, 30), torch.float32, terms=('edge_bias',), heads=4)

    def fails(case):
        return case.graph.num_queries > 2 and case.tensors['query'].size(2) > 1

    found = smallest(case, fails, 30.)
    assert (found.graph.num_queries, found.graph.num_keys, found.graph.num_edges) == (3, 1, 1)
    assert (found.heads, found.channels, found.value_channels) == (1, 2, 1)
    assert not found.tensors['query'].any() and 'edge_bias' not in found.tensors


def test_a_declared_limit_is_no_failure():
    faulty = partial(attention, fault='divides 0 by 0')
    options = dict(form='indices', checks=['nothing to attend to'])
    full = Supports.everything(compiles=False)
    with pytest.raises(WrongAttention):
        check_attention(faulty, supports=full, **options)
    report = check_attention(faulty, supports=Supports.everything(
        compiles=False, limits={'nothing to attend to': 'NaN'}), **options)
    assert report.limits[0].check == 'nothing to attend to' and report.counts()['limit'] > 0


def test_what_cannot_be_passed_is_not_supported():
    def plain(query, key, value, indices):
        return attention(query, key, value, indices)

    report = check_attention(plain, form='indices', checks=['bias', 'scale', 'grouped queries'])
    statuses = {check: {each.status for each in outcomes}
                for check, outcomes in report.checks().items()}
    assert statuses == {'bias': {'not supported'}, 'scale': {'not supported'},
                        'grouped queries': {'passed'}}


def test_a_wrong_result_that_is_not_declared_should_have_been_refused():
    faulty = partial(attention, fault='computes float64 in float32')
    finding, = check_attention(faulty, form='indices', checks=['double precision'],
                               on_fail='report').findings
    assert finding.undeclared == ('dtypes',) and 'Neither right nor refused' in str(finding)


@pytest.mark.slow
def test_a_kernel_of_narrow_declarations_is_asked_for_the_rest_and_may_refuse_it():
    dtypes = torch.float16,

    def narrow(query, key, value, indices, *, scale=None):
        if query.dtype not in dtypes or query.size(2) not in (16, 64):
            raise ValueError('half precision with 16 or 64 channels')
        return attention(query, key, value, indices, scale=scale).detach()

    supports = Supports(gradients=False, dtypes=dtypes, scale=True,
                        channels=(16, 64), rectangular=True, grouped_queries=True,
                        exact_logits=True, empty_rows=True)
    report = check_attention(narrow, form='indices', supports=supports)
    refused = {each.check for each in report.outcomes if each.status == 'refused'}
    assert refused == {'double precision', 'widths of heads', 'large exact logits',
                       'half precision', 'nothing to attend to'}
    assert report.counts()['passed'] > 60


def test_a_report_is_a_table():
    report = check_attention(attention, form='indices', checks=['scale', 'gate', 'torch.compile'])
    first, _, header, *rows = str(report).splitlines()
    assert first == 'attention: 10 passed, 1 not supported'
    assert header.split()[:3] == ['check', 'passed', 'not']
    assert [row.split()[0] for row in rows] == ['gate', 'scale', 'torch.compile']


@pytest.mark.parametrize('form', ['graph', 'mask', 'edge_index', 'block_mask'])
@pytest.mark.parametrize('layout', ['nhc', 'bhnc'])
def test_forms_and_layouts_name_the_same_edges(form, layout):
    def plain(query, key, value, edges, *, edge_bias=None, edge_gate=None):
        if layout == 'bhnc':
            query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
            edge_bias, edge_gate = (x if x is None else x.squeeze(0).movedim(0, -1)
                                    for x in (edge_bias, edge_gate))
        graph = graph_of(form, edges, len(query), len(key))
        at = FORMS[form].positions(graph)[1]
        edge_bias, edge_gate = (x if x is None else x[at] for x in (edge_bias, edge_gate))
        from graphattn.functional import edge_attention
        out = edge_attention(query, key, value, graph, edge_bias=edge_bias, edge_gate=edge_gate)
        return out if layout == 'nhc' else out.transpose(0, 1).unsqueeze(0)

    supports = Supports.everything(compiles=False)
    checks = ['gate', 'bias'] + (['repeated edges'] if form == 'edge_index' else [])
    check_attention(plain, form=form, layout=layout, supports=supports, checks=checks)


def graph_of(form, edges, num_queries, num_keys):
    if form == 'mask':
        return BipartiteGraph.from_mask(edges)
    if form == 'edge_index':
        return BipartiteGraph.from_edge_index(edges, num_queries, num_keys)
    if form == 'block_mask':
        row, column = torch.meshgrid(torch.arange(num_queries), torch.arange(num_keys),
                                     indexing='ij')
        zero = torch.zeros_like(row)
        return BipartiteGraph.from_mask(edges.mask_mod(zero, zero, row, column))
    return edges


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_tolerances_are_small_beside_results_and_0_where_there_are_no_terms(dtype):
    case = draw('', GRAPHS['idle nodes'], dtype, terms=TERMS, softcap=1.5)
    right, allowed = define(case), tolerance(case)
    for name, result in right.items():
        has_terms = allowed[name] > 0
        assert has_terms.any() and not result[~has_terms].any()
        roundings = 40 if dtype.itemsize < 4 else 2_000
        assert allowed[name].max() < roundings * torch.finfo(dtype).eps * result.abs().max()


@pytest.mark.slow
def test_the_plug_in_gives_a_fixture_and_imports_nothing_heavy(tmp_path):
    (tmp_path / 'test_it.py').write_text('''
import sys
AT_START = 'torch' in sys.modules

def test_nothing_heavy_is_imported_at_the_start():
    assert not AT_START

def test_attention(check_attention):
    check_attention(lambda query, key, value, mask: query * 0, form='mask', checks=['scale'])

def test_wrong(check_attention):
    from graphattn.testing import run
    run.SHRINKING = 0.01
    check_attention(lambda query, key, value, mask: query * 0, form='mask', checks=['graphs'])
''')
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'experiments.entry.pytest_plugin', '-p',
         'no:cacheprovider', '-c', '/dev/null', '--rootdir', str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env={'PYTHONPATH': str(ROOT), 'PATH': ''})
    assert '1 failed, 2 passed' in result.stdout, result.stdout + result.stderr
    assert 'WrongAttention' in result.stdout and 'The smallest case found' in result.stdout
