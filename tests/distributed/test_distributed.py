"""Several processes compute what one does, refuse together, and end together."""

import copy
import json
import os
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from graphattn.distributed import sequence_parallel
from graphattn.layers import GraphAttention
from tests.distributed import cases, decoding, failing, overlapping, resuming
from tests.forked import forked


def in_worlds(cases_of_all, *worlds):
    """Each case in each world that runs it; where there are several processes, slowly."""
    return pytest.mark.parametrize('results, name', [
        pytest.param(world, name, marks=[pytest.mark.slow] * (world > 1))
        for world in worlds for name in cases.in_a_world_of(world, cases_of_all)],
        indirect=['results'])


@contextmanager
def group_of_one(folder):
    num_threads = torch.get_num_threads()
    dist.init_process_group('gloo', store=dist.FileStore(str(folder / 'store'), 1), rank=0,
                            world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(num_threads)


@pytest.fixture
def one_process(tmp_path):
    with group_of_one(tmp_path):
        yield


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """Return the results of one process."""
    with group_of_one(tmp_path_factory.mktemp('store')):
        return cases.run_all()


@pytest.fixture(scope='module')
def folder(tmp_path_factory, alone):
    """Return the folder with the results of two processes, and then four, with the loops that one
    has loaded before."""
    folder = tmp_path_factory.mktemp('worlds')
    for world in (2, 4):
        forked(lambda: cases.main(folder), ranks=world)
    return folder


@pytest.fixture(scope='module')
def results(request):
    """Return the results of every process, for so many."""
    world = request.param
    if world == 1:
        return [request.getfixturevalue('alone')]
    folder = request.getfixturevalue('folder')
    return [json.loads((folder / f'{world}.{rank}.json').read_text()) for rank in range(world)]


@pytest.mark.slow
@in_worlds(cases.CASES, 1, 2, 4)
def test_outputs_graphs_and_gradients_equal_one_process(results, name):
    for found in results:
        assert 'error' not in found[name], found[name]['error']
        for what, difference in found[name]['differences'].items():
            assert difference < 1e-10, what


MESSAGES = {
    'soft masks': r"ValueError: 'source' must be a frozen mask, .*mode='soft'",
    'ranges that overlap': r"ValueError: 'own' must assign each of the 83 tokens to one process",
    'ranges that do not cover': r"ValueError: 'own' must assign each of the 83 tokens to one",
    'a process without tokens': r"ValueError: 'own' must assign at least one token to each process",
    'fewer tokens than processes': r"ValueError: 'ptr' must cover at least one token for each of",
    'other parameters': r'ValueError: processes must not differ in parameters or settings',
    'other settings': r'ValueError: processes must not differ in parameters or settings',
    'other seeds': r'ValueError: processes must not differ in seeds',
    'other default seeds': r'ValueError: processes must not differ in seeds',
    'other sequences': r"ValueError: processes must not differ in 'ptr'",
    'one trains': r'ValueError: processes must not differ in whether they train',
    'a graph for another number of processes':
        r"ValueError: 'graph' must have the queries of its process .* build it for these processes",
    'a call that one process gets wrong':
        r"'generator' must be|ValueError: process 1 got invalid arguments",
    'a source without rows': r"TypeError: 'placement' is not an argument of WithoutRows",
    'a head that pools': r"ValueError: 'module' must take.* 'placement'.* SequenceParallel.gather",
    **{name: message for name, (_, message) in decoding.REFUSED.items()},
}


@in_worlds(cases.REFUSED, 2, 4)
def test_every_process_refuses(results, name):
    for found in results:
        assert re.search(MESSAGES[name], found[name].get('error', 'no error')), found[name]


@pytest.mark.slow
@pytest.mark.parametrize('world, how, seconds', [(2, 'hangs', 1), (2, 'killed', 0),
                                                 (4, 'killed', 0)])
def test_a_process_that_hangs_or_is_killed_ends_the_others(folder, world, how, seconds):
    """After its own timeout, or long before that of the group."""
    for rank in range(world - 1):
        found = json.loads((folder / f'{world}.{rank}.failures.json').read_text())[how]
        assert found['error'], found
        assert seconds - .1 < found['seconds'] < cases.TIMEOUT.total_seconds() / 4, found


@pytest.mark.slow
@pytest.mark.parametrize('world', [2, 3])
def test_near_edges_are_computed_between_the_start_and_the_end_of_a_message(alone, world):
    for done in forked(partial(overlapping.wait_for_one_another, world), ranks=world):
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout == ('send, attend, wait, attend, grads, send, grads, wait\n')


@pytest.mark.slow
@pytest.mark.parametrize('world, who, how, where, hops', [
    (3, 1, 'killed', 'layer', 1), (2, 0, 'killed', 'layer', 2), (3, 1, 'killed', 'forward', 2),
    (2, 1, 'killed', 'backward', 2), (3, 1, 'stopped', 'forward', 2),
    (3, 2, 'behind', 'layer', 1), (2, 1, 'behind', 'backward', 2)])
def test_the_others_name_a_process_that_fails(alone, world, who, how, where, hops):
    said = failing.errors(world, who, how, where, hops)
    assert len(said) == world - 1
    assert all(failing.is_named(error, who) for error in said), said


@pytest.mark.slow
def test_training_resumes_in_another_number_of_processes(alone, tmp_path):
    for world, steps, resume in (4, 2, False), (2, 1, True), (1, 1, True):
        for done in forked(partial(resuming.main, tmp_path, steps, resume), ranks=world):
            assert done.returncode == 0, done.stderr[-2000:]
            difference, = re.findall(r'^difference (\S+)$', done.stdout, re.M)
            assert float(difference) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize('how', ['by_ddp', 'by_model_parallel_strategy'])
def test_lightning_trains_to_the_parameters_of_one_process(how):
    pytest.importorskip('lightning')
    from tests.distributed import training
    for done in forked(getattr(training, how), ranks=2):
        assert done.returncode == 0, done.stderr[-2000:]
        difference, = re.findall(r'^difference (\S+)$', done.stdout, re.M)
        assert float(difference) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize('number, world', [(0, 4), (1, 2)])
def test_examples_of_the_guide_run_in_several_processes(number, world):
    page = (Path(__file__).parents[2] / 'docs/distributed.md').read_text()
    examples = re.findall(r'<!-- run by (\d) processes -->\n```py\n(.*?)```', page, re.S)
    assert [int(count) for count, _ in examples] == [4, 2]
    code = examples[number][1]
    assert len([line for line in code.splitlines() if line]) <= 30

    def run():
        torch.set_num_threads(1)
        variables = {}
        exec(code, variables)
        print('loss', float(variables['loss'].detach()))
        os._exit(0)  # the groups of the mesh cannot be left in good order

    for done in forked(run, ranks=world):
        assert done.returncode == 0, done.stderr[-2000:]
        assert re.search(r'^loss \d', done.stdout, re.M), done.stdout


def test_unsupported_modules_and_arguments_are_refused():
    with pytest.raises(ValueError, match=r"'module' must hold a GraphAttention \(got Linear\)"):
        sequence_parallel(torch.nn.Linear(3, 3))
    endless = GraphAttention(8, 2, hops=float('inf'), teleport=.1)
    with pytest.raises(ValueError, match=r"'module' must not have infinitely many hops"):
        sequence_parallel(endless)
    for name, arguments in (('module', (3,)), ('group', (endless, 3))):
        with pytest.raises(TypeError, match=f"'{name}' must be"):
            sequence_parallel(*arguments)
    with pytest.raises(TypeError, match=r"'timeout' must be a timedelta \(got int\)"):
        sequence_parallel(endless, timeout=3)


def test_attached_models_are_refused_without_rows_of_tokens():
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import TokenModel, attach
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2,
                                     num_attention_heads=2, intermediate_size=16)
    ptr, tokens = torch.tensor([0, 4, 9]), torch.arange(9)
    with pytest.raises(ValueError, match=r"'model' must have a graph attached .*'encoder.layer.0"):
        TokenModel(transformers.BertModel(config))
    bert = attach(transformers.BertModel(config), 'SlidingWindow(1)')
    with pytest.raises(ValueError, match=r"'module' must be called with \(x, ptr\) .*TokenModel"):
        sequence_parallel(bert)
    with pytest.raises(ValueError, match=r"'attention_mask' must be None in sequence parallelism"):
        TokenModel(bert)(tokens, ptr, attention_mask=torch.ones(1, 9))
    with pytest.raises(ValueError, match=r"'output_attentions' must be None in sequence"):
        TokenModel(bert)(tokens, ptr, output_attentions=True)
    classifier = attach(transformers.BertForSequenceClassification(config), 'SlidingWindow(1)')
    with pytest.raises(ValueError, match=r"'model' must return one row for each token"):
        TokenModel(classifier)(tokens, ptr)
    endless = attach(transformers.BertModel(config), 'SlidingWindow(1)', hops=float('inf'),
                     teleport=.1)
    with pytest.raises(ValueError, match=r"'module' must not have infinitely many hops"):
        sequence_parallel(TokenModel(endless))


@pytest.mark.slow
def test_copies_have_their_own_group(one_process):
    parallel = sequence_parallel(cases.encoder(cases.PatternSource(cases.SlidingWindow(1))))
    tokens, _ = cases.inputs(parallel.module)
    out = parallel(tokens, cases.PTR)
    again = copy.deepcopy(parallel)
    assert torch.equal(again(tokens, cases.PTR), out) and again.group is not parallel.group


def test_a_mesh_of_two_dimensions_is_refused(one_process):
    mesh = init_device_mesh('cpu', (1, 1), mesh_dim_names=('data', 'tokens'))
    module = cases.encoder(cases.PatternSource(cases.SlidingWindow(1)))
    with pytest.raises(ValueError, match=r"'group' must be a mesh of one dimension \(got \('data'"):
        sequence_parallel(module, mesh)
    tokens, _ = cases.inputs(module)
    out = sequence_parallel(module, mesh['tokens'])(tokens, cases.PTR)
    assert torch.equal(out, module(tokens, cases.PTR))


def test_a_backend_without_all_to_all_is_refused():
    def run() -> None:
        dist.Backend.register_backend(
            'poor', lambda _, rank, size, __: dist.ProcessGroup(rank, size), devices=['cpu'])
        dist.init_process_group('poor', store=dist.HashStore(), rank=0, world_size=1)
        module = cases.encoder(cases.PatternSource(cases.SlidingWindow(1)))
        sequence_parallel(module, dist.group.WORLD)(cases.inputs(module)[0], cases.PTR)

    done, = forked(run)
    assert "RuntimeError: 'group' must have a backend that supports all_to_all" in done.stderr
    assert "(got 'poor')" in done.stderr


def test_without_a_process_group_the_error_says_how_to_start_one(monkeypatch):
    monkeypatch.setattr(dist, 'is_initialized', lambda: False)
    parallel = sequence_parallel(cases.encoder(cases.PatternSource(cases.SlidingWindow(1))))
    with pytest.raises(RuntimeError, match='start the processes with torchrun'):
        parallel.share(cases.PTR)
