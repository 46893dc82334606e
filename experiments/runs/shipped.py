"""The configs of this project, which ``graphattn train --config NAME`` and ``base: NAME`` name."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

CONFIGS = Path(__file__).parents[1] / 'configs'
PARTS = CONFIGS / 'parts'  # of configs, which name them as their base
# the folders of the configs that change the attention of others: of sequences, and of graphs
OF_SEQUENCES, OF_GRAPHS = CONFIGS / 'attention', CONFIGS / 'graphs/gps'


def config_names() -> list[str]:
    return [path.relative_to(CONFIGS).with_suffix('').as_posix()
            for path in sorted(CONFIGS.rglob('*.yaml'))
            if path.parent != PARTS]


def attention_names(folder: Path) -> list[str]:
    # other configs in the folder of graphs change the data set
    return [path.stem for path in sorted(folder.glob('*.yaml'))
            if '\ndata:' not in path.read_text(encoding='utf-8')]


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Return the message of an unknown name, with those that are near."""
    return f"no {what} {name!r}{did_you_mean(name, known) or '; there are ' + ', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1)
    return f'; did you mean {close[0]}?' if close else ''
