"""The command ``graphattn``: short names for modules and configs, from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.commands import COMMANDS as QUESTIONS
from experiments import cli
from tests.forked import forked


@pytest.fixture
def started(monkeypatch):
    """Return the module that would have run, and the process's arguments."""
    calls = []
    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr(cli, '_execute', lambda module: calls.append((module, sys.argv)))
    return calls


@pytest.mark.parametrize('arguments, module, rest', [
    ('train --trainer.max_epochs 1', 'experiments.train', 'fit --trainer.max_epochs 1'),
    ('test --ckpt_path x', 'experiments.train', 'test --ckpt_path x'),
    ('study two_hop --scale smoke', 'experiments.papers.runner', 'two_hop --scale smoke'),
    ('benchmark layer --quick', 'experiments.benchmarks.layer', '--quick'),
    ('spectrum --n 8', 'analysis', 'spectrum --n 8'),
    ('compile --float64', 'experiments.compile', '--float64'),
    ('predict --run x --input y', 'experiments.predict', '--run x --input y')])
def test_a_command_is_a_module(arguments, module, rest, started):
    cli.main(arguments.split())
    (name, argv), = started
    assert name == module and argv[1:] == rest.split()


COMMANDS = ['train', 'train --config digits/sbm', 'compile', 'predict', *QUESTIONS, *(
    f'{group} {name}' for group, package in cli.GROUPS.items() for name in cli._runnable(package))]
ANSWER = """
import contextlib, sys
from experiments import cli
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        cli.main([*command.split(), '--help'])
print({'torch', 'scipy', 'networkx', 'matplotlib', 'numba'} & {*sys.modules}, file=sys.stderr)
"""


@pytest.mark.slow
def test_every_command_has_help_without_the_libraries_that_its_work_takes():
    ended = subprocess.run([sys.executable, '-Wignore', '-c', ANSWER, *COMMANDS],
                           capture_output=True, text=True)
    assert ended.stdout.count('usage: ') == len(COMMANDS) > 40
    assert '``' not in ended.stdout and ':func:' not in ended.stdout
    assert ended.stderr == 'set()\n'


def test_help_of_a_config_that_names_classes_of_a_library(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(['train', '--config', 'graphs/own', '--help'])
    assert ended.value.code == 0 and 'graphs.OwnGraphs' in capsys.readouterr().out


def test_a_command_is_the_main_module(monkeypatch):
    before, found = sys.modules['__main__'], []
    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr('experiments.runs.command.run_or_exit',
                        lambda _: found.append(sys.modules['__main__']))
    cli.main(['train', '--config', 'digits/sbm'])
    # What Lightning starts in other processes.
    assert found[0].__spec__.name == 'experiments.train' and hasattr(found[0], 'TrainCLI')
    assert sys.modules['__main__'] is before


def test_a_file_of_the_users_comes_first(started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('mine.yaml').write_text('{}')
    cli.main(['train', '--config', 'mine.yaml', '--config', '{"data": 1}'])
    assert started[0][1][2:] == ['--config', 'mine.yaml', '--config', '{"data": 1}']


@pytest.mark.parametrize('arguments, near', [
    (['spectrm'], "no command 'spectrm'; did you mean spectrum?"),
    (['study', 'two_hops'], "no study 'two_hops'; did you mean two_hop"),
    (['completion', 'tcsh'], "no shell 'tcsh'; there are bash, zsh, fish"),
    (['benchmark', 'layers'], "no benchmark 'layers'; did you mean layer"),
    (['train', '--config', 'digits/smb'], "no config 'digits/smb'; did you mean digits/sbm")])
def test_what_is_unknown_is_one_line_with_what_is_near(arguments, near, started, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert end.value.code == 2 and not started
    assert near in error and error.count('\n') == 1


def test_information_is_what_a_report_needs(capsys):
    cli.main(['info'])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
                 if not line.startswith(('backends', 'compiled')))
    assert {'graphattn', 'torch', 'threads', 'GPU'} <= lines.keys()


def test_an_interrupt_while_a_command_is_imported_is_one_line(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr(cli, '_execute', interrupt)
    with pytest.raises(SystemExit) as end:
        cli.main(['spectrum'])
    error = capsys.readouterr().err
    assert end.value.code == 130 and error.startswith('interrupted; run the same')
    assert error.count('\n') == 1


def test_completion_is_a_script_of_the_shell(capsys):
    cli.main(['completion'])
    assert 'eval "$(graphattn completion bash)"' in capsys.readouterr().out
    cli.main(['completion', 'bash'])
    subprocess.run(['bash', '-n'], input=capsys.readouterr().out, text=True, check=True)


@pytest.mark.parametrize('line, offered', [
    ('graphattn spec', ['spectrum']),
    ('graphattn completion ', ['bash', 'fish', 'zsh']),
    ('graphattn train --config digits/s', ['digits/sbm']),
    ('graphattn study estimators --s', ['--scale', '--seeds']),
    ('graphattn train --trainer.max_e', ['--trainer.max_epochs']),
    ('graphattn compile ', []),  # which argcomplete does not know, and does not run
    ('graphattn spectrm --p', [])])
def test_the_tab_key_offers_what_fits(line, offered, tmp_path):
    def press_tab() -> None:
        os.environ.update(_ARGCOMPLETE='1', COMP_LINE=line, COMP_POINT=str(len(line)),
                          COMP_TYPE='9', _ARGCOMPLETE_STDOUT_FILENAME=str(tmp_path / 'offered'))
        os.environ.pop('_ARGCOMPLETE_IFS', None)
        cli.main()

    forked(press_tab)
    written = tmp_path / 'offered'
    words = written.read_text().split('\v') if written.exists() else []
    assert sorted(word.strip() for word in words) == offered
