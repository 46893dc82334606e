"""What the README shows is what happens."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()


def test_examples_run_and_print_what_stands_there(capsys):
    exec('\n'.join(re.findall(r'```python\n(.*?)```', README, re.S)), {})
    graph_line = capsys.readouterr().out.splitlines()[0]
    assert f'# {graph_line}' in README


def test_every_file_that_is_named_exists():
    named = re.findall(r'\((?!http)([\w/]+\.\w+)\)|--config (experiments/[\w/]+\.yaml)', README)
    paths = {path for pair in named for path in pair if path and 'NAME' not in path}
    assert {'docs/received_attention.png', 'experiments/configs/digits/sbm.yaml'} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
