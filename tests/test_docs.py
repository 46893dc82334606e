"""README and the guides show what happens."""

import os
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import cli
from tests.experiments.conftest import draw_nothing
from tests.forked import forked

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
# Of this project, as a line of a shell or within a line of text; what comes after its first words
# are options.
COMMAND = re.compile(r'(?:^|`)(?:python -m ([\w.]+)|graphattn ([\w-]+)(?: (\w+))?|make \w+)', re.M)
FIGURES = re.compile(r'^\|.*(?:\| *\**\d.*){3}$', re.M)  # a row with three numbers
pages = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)


@pytest.mark.slow
@pages
def test_examples_run_and_print_what_stands_there(page, capsys):
    code = '\n'.join(re.findall(r'```python\n(.*?)```', page.read_text(), re.S))
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    stated = re.findall(r'^print\(.*\) +# ([A-Z[(\d].*)$', code, re.M)
    assert [line for line in stated if line not in printed] == []


@pytest.mark.slow
def test_a_pattern_of_ones_own_comes_to_a_table(tmp_path):
    text = (ROOT / 'docs/extend.md').read_text()
    module, = re.findall(r'```py\n(.*?)```', text, re.S)
    (tmp_path / 'mine.py').write_text(module)
    commands, *_ = re.findall(r'```sh\n(.*?)```', text, re.S)

    def work():
        sys.modules.pop('mine', None)  # of another test
        os.chdir(tmp_path)
        draw_nothing(pytest.MonkeyPatch())
        for line in commands.splitlines():
            _, *words = shlex.split(line)
            cli.main([*words, *(['--scale=smoke'] if words[0] == 'study' else [])])

    ended, = forked(work)
    assert ended.returncode == 0, ended
    rows = (tmp_path / 'runs/studies/smoke/patterns/table.csv').read_text().splitlines()
    assert len(rows) == 1 + 4 and rows[1].startswith('comb,')


@pages
def test_every_file_that_is_named_exists(page):
    text = page.read_text()
    links = re.findall(r'\]\((?!http)([^)#]+)', text)
    configs = [name for name in re.findall(r'experiments/configs/[\w/]+\.yaml', text)
               if 'NAME' not in name]
    missing = [name for name in links if not (page.parent / name).exists()]
    assert missing + [name for name in configs if not (ROOT / name).exists()] == []


@pages
def test_every_picture_and_table_of_figures_has_its_command(page):
    text = page.read_text()
    captions = re.findall(r'^!\[.*\]\((.*)\)\n\n((?:.+\n)*)', text, re.M)
    assert len(captions) == len(re.findall(r'^!\[', text, re.M))
    assert [name for name, caption in captions if not COMMAND.search(caption)] == []
    sections = re.split(r'^#+ (?=.*\n\n)', text, flags=re.M)
    assert [section.splitlines()[0] for section in sections if FIGURES.search(section)
            and not COMMAND.search(section)] == []


@pages
def test_every_command_exists(page):
    known = set(re.findall(r'[\w-]+', cli.overview())) | {'study', 'benchmark'}
    for module, command, name in COMMAND.findall(page.read_text()):
        assert not module or find_spec(module), module
        assert not command or command in known, command
        assert command not in ('study', 'benchmark') or name in known, name


def test_every_guide_is_reached_from_the_front_page():
    index = (ROOT / 'docs/index.md').read_text()
    listed = {name for block in re.findall(r'```{toctree}(.*?)```', index, re.S)
              for name in re.findall(r'^[\w/]+$', block, re.M)}
    assert listed == {page.stem for page in PAGES[1:]} - {'index'} | {'gallery_pages/index'}
