"""The command ``graphattn``: short names for modules and configs, from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import cli
from tests.forked import forked, run_anew


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
    ('study two_hop --scale smoke', 'experiments.papers.diffuser.two_hop', '--scale smoke'),
    ('benchmark layer --quick', 'experiments.benchmarks.layer', '--quick'),
    ('spectrum --n 8', 'analysis.spectrum', '--n 8'),
    ('compile --float64', 'experiments.compile', '--float64')])
def test_a_command_is_a_module(arguments, module, rest, started):
    cli.main(arguments.split())
    (name, argv), = started
    assert name == module and argv[1:] == rest.split()


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [[], ['study'], ['predict']], ids=str)
def test_help_is_printed_where_ascii_alone_can_be(arguments):
    ended = subprocess.run(
        [sys.executable, '-m', 'experiments.cli', *arguments, '--help'], capture_output=True,
        env={**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'})
    assert ended.returncode == 0 and b'usage: graphattn' in ended.stdout, ended.stderr


def test_a_command_is_the_main_module(monkeypatch):
    before, found = sys.modules['__main__'], []
    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr('experiments.runs.command.run_or_exit',
                        lambda _: found.append(sys.modules['__main__']))
    cli.main(['train', '--config', 'digits/sbm'])
    # What Lightning starts in other processes.
    assert found[0].__spec__.name == 'experiments.train' and hasattr(found[0], 'TrainCLI')
    assert sys.modules['__main__'] is before


def test_a_study_has_the_options_that_it_passes_on():
    help_of_study = subprocess.run([sys.executable, '-m', 'experiments.cli', 'study', 'stages',
                                    '--help'], capture_output=True, text=True, check=True).stdout
    assert 'graphattn study stages' in help_of_study
    assert {'--out', '--seeds', '--glue'} <= set(help_of_study.split())


@pytest.mark.parametrize('given', [['--config', 'digits/sbm'], ['--config=digits/sbm']])
def test_configs_that_ship_have_names(given, started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.main(['train', *given])
    path = Path(started[0][1][-1].removeprefix('--config='))
    assert path.is_absolute() and path.parts[-3:] == ('configs', 'digits', 'sbm.yaml')


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


def test_help_names_every_command_that_there_is(capsys):
    cli.main(['--help'])
    text = capsys.readouterr().out
    for name in ('train', 'study', 'spectrum', 'universality', 'two_hop', 'layer', 'digits/sbm'):
        assert name in text
    cli.main(['completion'])
    assert 'eval "$(graphattn completion bash)"' in capsys.readouterr().out
    cli.main(['study'])
    assert 'finding repeated tokens' in capsys.readouterr().out.lower()


def test_information_is_what_a_report_needs(capsys):
    cli.main(['info'])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
                 if not line.startswith(('backends', 'compiled')))
    assert {'graphattn', 'torch', 'threads', 'GPU'} <= lines.keys()


def test_what_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr(cli, '_execute', lambda _: __import__('no_such_package'))
    with pytest.raises(SystemExit) as end:
        cli.main(['spectrum'])
    assert end.value.code == 2 and "No module named 'no_such_package'" in capsys.readouterr().err


def test_an_interrupt_while_a_command_is_imported_is_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr(cli, '_execute', interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main(['spectrum'])
    assert end.value.code == 130 and capsys.readouterr().err == 'interrupted\n'


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [['spectrum', '--n', '64'], ['train', '--config', 'text']])
def test_without_matplotlib_a_command_is_one_line(arguments):
    process = run_anew(f'from experiments import cli\ncli.main({arguments})',
                       missing=['matplotlib'])
    line, = process.stderr.splitlines()
    assert process.returncode == 2 and 'matplotlib' in line and 'pip install' in line


def test_who_reads_only_the_beginning_sees_no_error():
    def main() -> None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        sys.stdout = os.fdopen(1, 'w')
        cli.main(['--help'])

    process, = forked(main)
    assert process.returncode == 1 and process.stderr == ''


def test_completion_is_a_script_of_the_shell(capsys):
    cli.main(['completion', 'bash'])
    subprocess.run(['bash', '-n'], input=capsys.readouterr().out, text=True, check=True)


@pytest.mark.parametrize('line, offered', [
    ('graphattn spec', ['spectrum']),
    ('graphattn study estim', ['estimators']),
    ('graphattn completion ', ['bash', 'fish', 'zsh']),
    ('graphattn train --config digits/s', ['digits/sbm']),
    ('graphattn spectrum --p', ['--pattern']),
    ('graphattn benchmark layer --keep', ['--keep_freed_memory']),
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
