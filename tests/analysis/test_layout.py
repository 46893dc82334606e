"""Layout of a question's package: the question, its picture and its command apart."""

import pytest

from analysis.commands import COMMANDS
from tests.forked import run_anew

QUESTIONS = sorted(COMMANDS.keys() - {'figures', 'report'})

ASK = """
import importlib
for name in {questions}:
    importlib.import_module('analysis.' + name)
from analysis.hamiltonian import hamiltonian_path
from graphattn.patterns import SlidingWindow
assert hamiltonian_path(SlidingWindow(1).build(5)).exists
"""


@pytest.mark.slow
def test_asks_without_pictures_and_commands():
    result = run_anew(ASK.format(questions=QUESTIONS),
                      missing=['matplotlib', 'jsonargparse', 'analysis.command'])
    assert result.returncode == 0, result.stderr
