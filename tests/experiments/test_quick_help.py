"""The help of a command is the same without the libraries that its work takes."""

import json
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import analysis
from experiments import studies

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
QUESTIONS = {module.name: f'analysis.{module.name}'
             for module in pkgutil.iter_modules(analysis.__path__) if module.ispkg}
STUDIES = {f'study {path.stem}': f'experiments.studies.{path.stem}'
           for path in Path(studies.__path__[0]).glob('*.py') if '__main__' in path.read_text()}


@pytest.mark.filterwarnings('ignore:.*prior to execution:RuntimeWarning')
@pytest.mark.parametrize('commands', [
    pytest.param(QUESTIONS | {'compile': 'graphattn.compile'}, id='questions'),
    pytest.param(STUDIES, id='studies', marks=pytest.mark.slow)])
def test_help_needs_no_libraries(commands, monkeypatch, capsys):
    process = subprocess.run([sys.executable, '-c', ANSWER, json.dumps(list(commands))], check=True,
                             capture_output=True, text=True)
    texts, imported = json.loads(process.stdout)
    assert not {'torch', 'scipy', 'networkx', 'matplotlib', 'numba', 'lightning'} & set(imported)
    for name, module in commands.items():
        monkeypatch.setattr(sys, 'argv', [f'graphattn {name}', '--help'])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name='__main__')
        text = without_subclasses(capsys.readouterr().out)
        assert end.value.code == 0 and without_subclasses(texts[name]) == text != ''


def without_subclasses(text: str) -> str:
    """Help without the classes that an option may name, of which tests add some."""
    return re.sub(r', known subclasses: [^)]*', '', ' '.join(text.split()))
