"""Layout of a question's package: the question, its picture and its command apart."""

import importlib
import pkgutil

import pytest

import analysis
from tests.forked import run_anew

QUESTIONS = [module.name for module in pkgutil.iter_modules(analysis.__path__)
             if module.ispkg and module.name not in ('figures', 'report')]

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


@pytest.mark.parametrize('name', QUESTIONS)
def test_every_question_has_the_same_parts(name):
    package = importlib.import_module(f'analysis.{name}')
    assert all(hasattr(package, public) for public in package.__all__)
    question = importlib.import_module(f'analysis.{name}.question')
    asked = [public for public in package.__all__ if callable(getattr(question, public, None))]
    assert asked
    assert callable(importlib.import_module(f'analysis.{name}.drawing').draw)
    assert callable(importlib.import_module(f'analysis.{name}.__main__').main)
