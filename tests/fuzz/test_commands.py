"""Command lines that nobody meant: each ends in a result, or in one line and status 2."""

import contextlib
import importlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from analysis.commands import COMMANDS
from experiments import train
from experiments.benchmarks.measure import run_benchmark
from experiments.papers import runner
from experiments.papers.sparsebert import glue_table
from experiments.runs.command import run_or_exit
from tests.fuzz.budget import cases

HERE = {'folder': '.', 'file': 'file.txt', 'below a file': 'file.txt/x', 'no folder': '/proc/x/y'}
NUMBERS = ['0', '-1', '1', '2', '5', '12', '1e11', '100000000000', '9' * 30, '1.5', '-0.1', 'nan',
           '-inf', '1e-300']
WORDS = ['', 'x', '--', '-', '[', '[]', '{}', '{', '[1]', 'null', 'true', '\n', 'a b', 'é\u2028',
         '\ud800', 'x' * 5000, '&a [*a]', '!!python/object:os.system {}', '../..', '%s', '0x1f']
PATTERNS = ['star', 'Star()', 'SlidingWindow(2)', 'SlidingWindow(-1)', 'RandomKeys(3)', 'Full() -',
            'RandomKeys(99)', 'SlidingWindow(10**9)', '(' * 99, 'a.b', 'Full() | Full()']
VALUES = st.sampled_from([*NUMBERS, *WORDS, *PATTERNS, *HERE.values(), 'edges.txt', 'none.npz'])

BASE = {'--n': '12', '--out': 'results', '--pattern': 'SlidingWindow(2)', '--seed': '0'}
QUESTIONS = {
    'attention': ['--teleport', '--weights'],
    'communication': ['--processes', '--heads', '--channels', '--value_bytes', '--node_size',
                      '--latency', '--bandwidth', '--edge_flops'],
    'diffusion': ['--hops', '--teleport', '--time', '--queries', '--queries_seed', '--spectra'],
    'expander': ['--symmetrization', '--weights'],
    'hamiltonian': ['--directed', '--time_limit'],
    'mixing': ['--steps', '--epsilon', '--lazy', '--teleport', '--starts', '--starts_seed'],
    'report': ['--time_limit'],
    'speed': ['--heads', '--head_channels', '--hops', '--backward', '--at_least'],
    'spectrum': ['--extremes', '--laplacian', '--symmetrization', '--weights'],
    'universality': ['--clusters', '--hops', '--max_layers', '--time_limit'],
}
GRAPHS = ['--n', '--out', '--pattern', '--seed', '--samples', '--example', '--graph',
          '--checkpoint', '--unknown', '']
STUDIES = 'masks', 'planted', 'rolling'
BENCHMARKS = ['attention', 'diffusion', 'layer', 'length', 'scaling', 'windows']


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder in which commands run, with pictures that cost nothing."""
    (tmp_path / 'file.txt').write_text('neither a folder nor a graph')
    (tmp_path / 'edges.txt').write_text('0 1\n1 2\n2 0\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Figure, 'savefig', lambda self, target, **_: (
        target.write if isinstance(target, io.IOBase) else Path(target).write_bytes)(b'.'))


def check(command: Callable[[], object]) -> None:
    """Asserts that a command succeeds, or ends with one line and status 2."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            command()
        except SystemExit as stop:
            if stop.code == 0:  # an option that is short for help
                return
            assert stop.code == 2
            lines = [line for line in said.getvalue().splitlines() if line.strip()
                     and 'it/s' not in line and '?it' not in line and '%|' not in line]
            assert len(lines) == 1 and 'error: ' in lines[0]


def options(*names: str, most: int = 3) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=most)


def listed(given: dict[str, str]) -> list[str]:
    return [part for option in given.items() for part in option if part]


@pytest.mark.parametrize('name', QUESTIONS)
@cases(12)
@given(data=st.data())
def test_analysis(name, data):
    main = COMMANDS[name]
    given = BASE | data.draw(options(*GRAPHS, *QUESTIONS[name]))
    check(lambda: main(listed(given)))


@cases(12)
@given(name=VALUES | st.just('sbm-3'), given=options('--out', '--seed', '--unknown', ''))
def test_figures(name, given):
    main = COMMANDS['figures']
    check(lambda: main([name, *listed({'--out': 'results'} | given)]))


@pytest.mark.parametrize('name', BENCHMARKS)
@cases(4)
@given(given=options('--nodes', '--densities', '--heads', '--channels', '--rounds', '--hops',
                     '--clusters', '--keys', '--pattern', '--only', '--out', '--unknown', ''))
def test_benchmarks(name, given):
    main = importlib.import_module(f'experiments.benchmarks.{name}').main
    # What is right is not measured.
    check(lambda: run_benchmark(main, [*listed(given), '--out', 'file.txt']))


@pytest.mark.parametrize('name', STUDIES)
@cases(4)
@given(given=options('--scale', '--seeds', '--corpus', '--glue', '--tasks', '--documents',
                     '--unknown', ''))
def test_studies(name, given):
    check(lambda: run_or_exit(lambda: runner.run_words(name, *listed(given), '--out', 'file.txt')))


@cases(12)
@given(given=options('--glue', '--tasks', '--seeds', '--pretrained', '--config', ''))
def test_glue_table(given):
    needed = {'--config': 'x', '--pretrained': 'x', '--glue': '.'}
    check(lambda: run_or_exit(lambda: glue_table.main(
        listed(needed | given | {'--out': 'file.txt'}))))


CONFIG = str(Path(__file__).parents[2] / 'experiments/configs/digits/sbm.yaml')
ENCODER = '--model.model.init_args.encoder.init_args'


@cases(6)
@given(command=st.sampled_from(['fit'] * 6 + ['test', 'validate', 'x', '']), given=options(
    '--config', '--seed_everything', '--checkpoint_every', '--ckpt_path', '--unknown', '',
    '--trainer.max_epochs', '--trainer.devices', '--trainer.accelerator', '--trainer.precision',
    '--trainer.default_root_dir', '--trainer.callbacks', '--model.lr', '--model.class_path',
    '--data.batch_size', '--data.path', '--data', f'{ENCODER}.heads', f'{ENCODER}.channels',
    f'{ENCODER}.num_layers', f'{ENCODER}.source', f'{ENCODER}.hops'))
def test_training_up_to_its_start(command, given, monkeypatch):
    monkeypatch.setattr(train.TrainCLI, 'run', lambda self: None)
    needed = {'--config': CONFIG, '--trainer.default_root_dir': 'run',
              '--trainer.accelerator': 'cpu'}
    check(lambda: run_or_exit(lambda: train.main([command, *listed(needed | given)])))
