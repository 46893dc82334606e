"""Draw the kept measurements of all backends: ``python -m docs.atlas``.

It writes the pictures and the tables of the page on the atlas, from the files in
``docs/atlas_times/``.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from statistics import median

import pandas as pd

from experiments.benchmarks.atlas import figure
from graphattn.style import in_style

HERE = Path(__file__).parent
FILES = sorted((HERE / 'atlas_times').glob('*.csv'))
PAGE = HERE / 'measurements_atlas.md'


def backends(row: dict) -> tuple[str, ...]:
    """Return the backends of an atlas."""
    return tuple(name.removesuffix(' ms') for name in row if name.endswith(' ms')
                 and name != 'auto ms')


def table(rows: list[dict]) -> str:
    """Return the times of backends over that of 'auto', by structure and run, in Markdown."""
    names = backends(rows[0])
    head = ['edges', 'run', 'points', *(f'`{name}` over `auto`' for name in names),
            '`auto` over the fastest']
    lines = [head, ['---'] * len(head)]

    def key(row: dict) -> tuple[str, str]:
        return row['structure'], row['run']

    for (structure, run), group in groupby(sorted(rows, key=key), key):
        own = list(group)
        ratios = ([row[f'{name} ms'] / row['auto ms'] for row in own] for name in names)
        lines.append([structure, run, str(len(own)), *map(spread, ratios),
                      spread([row['auto / best'] for row in own])])
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def spread(ratios: list[float]) -> str:
    """Return the median, and the lowest and highest ratio in parentheses."""
    return f'{median(ratios):.2g} ({min(ratios):.2g} to {max(ratios):.2g})'


def section(file: Path, rows: list[dict]) -> str:
    """Return the heading, the picture and the table of a machine, in Markdown."""
    machine, threads, torch, numba = (rows[0][name] for name in
                                      ('machine', 'threads', 'torch', 'numba'))
    return (f'## {machine}, {threads} threads\n\ntorch {torch}, numba {numba}; all values are in '
            f'`docs/atlas_times/{file.name}`.\n\n![Time of each backend over that of auto, by '
            f'density, a panel for each structure](atlas_{file.stem}.png)\n\n*Times of '
            f'`graphattn atlas`, drawn by `python -m docs.atlas`.*\n\n{table(rows)}')


@in_style()
def main() -> None:
    sections = []
    for file in FILES:
        rows = read(file)
        figure(rows, backends(rows[0])).savefig(HERE / f'atlas_{file.stem}.png')
        sections.append(section(file, rows))
    before, *_ = re.split('^## ', PAGE.read_text(), maxsplit=1, flags=re.M)
    PAGE.write_text(before + '\n'.join(sections))


def read(file: Path) -> list[dict]:
    return pd.read_csv(file).to_dict('records')


if __name__ == '__main__':
    main()
