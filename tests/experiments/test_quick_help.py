"""The help of a command is the same without the libraries that its work takes."""

import json
import pkgutil
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import analysis
from experiments import benchmarks, cli, papers

ANSWER = """
import contextlib, io, json, sys
from experiments import cli
texts = {}
for name in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        cli.main([*name.split(), '--help'])
    texts[name] = said.getvalue()
print(json.dumps([texts, list(sys.modules)]))
"""
QUESTIONS = [module.name for module in pkgutil.iter_modules(analysis.__path__) if module.ispkg]
GROUPS = {group: [f'{group} {path.stem}' for path in Path(package.__path__[0]).rglob('*.py')
                  if '__main__' in path.read_text()]
          for group, package in (('study', papers), ('benchmark', benchmarks))}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*prior to execution:RuntimeWarning')
@pytest.mark.parametrize('commands', [
    pytest.param([*QUESTIONS, 'train', 'compile', 'predict'], id='questions'),
    *(pytest.param(commands, id=group) for group, commands in GROUPS.items())])
def test_help_needs_no_libraries(commands, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '100')  # for lines may be broken within words
    process = subprocess.run([sys.executable, '-c', ANSWER, json.dumps(commands)], check=True,
                             capture_output=True, text=True)
    texts, imported = json.loads(process.stdout)
    assert not {'torch', 'scipy', 'networkx', 'matplotlib', 'numba'} & set(imported)
    monkeypatch.setattr(sys, 'argv', ['graphattn'])
    monkeypatch.setattr(cli, 'without_libraries', nullcontext)
    for name in commands:
        with pytest.raises(SystemExit) as end:
            cli.main([*name.split(), '--help'])
        text = without_subclasses(capsys.readouterr().out)
        assert end.value.code == 0 and without_subclasses(texts[name]) == text != ''


def without_subclasses(text: str) -> str:
    """Help without the classes that an option may name, of which tests add some, and with one order
    in a union: typing gives back the first that was made of the same types."""
    text = ' '.join(text.split()).replace('Union[int, float,', 'Union[float, int,')
    return re.sub(r', known subclasses: [^)]*', '', text)
