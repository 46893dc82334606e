"""What README and the guides show is what happens."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
pages = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)


@pages
def test_examples_run_and_print_what_stands_there(page, capsys):
    code = '\n'.join(re.findall(r'```python\n(.*?)```', page.read_text(), re.S))
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    stated = re.findall(r'^print\(.*\) +# ([A-Z[(\d].*)$', code, re.M)
    assert [line for line in stated if line not in printed] == []


@pages
def test_every_file_that_is_named_exists(page):
    text = page.read_text()
    links = re.findall(r'\]\((?!http)([^)#]+)', text)
    configs = [name for name in re.findall(r'experiments/configs/[\w/]+\.yaml', text)
               if 'NAME' not in name]
    missing = [name for name in links if not (page.parent / name).exists()]
    assert missing + [name for name in configs if not (ROOT / name).exists()] == []


def test_every_guide_is_reached_from_the_front_page():
    index = (ROOT / 'docs/index.md').read_text()
    listed = {name for block in re.findall(r'```{toctree}(.*?)```', index, re.S)
              for name in re.findall(r'^[\w/]+$', block, re.M)}
    assert listed == {page.stem for page in PAGES[1:]} - {'index'} | {'gallery_pages/index'}


def test_the_front_page_is_short():
    assert len((ROOT / 'README.md').read_text().splitlines()) <= 150
