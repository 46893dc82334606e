"""Results as a printed table and a CSV file."""

import csv
from pathlib import Path

from graphattn.utils.files import csv_cell, write_whole


def report(rows: list[dict], name: str, out: Path) -> None:
    """Print the rows of a table, and write them to ``out/name.csv``."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(text) for text in texts) for texts in zip(columns, *cells)]
    for line in (columns, *cells):
        print('  '.join(text.rjust(width) for text, width in zip(line, widths)))

    def write(path: Path) -> None:
        with path.open('w', newline='', encoding='utf-8') as file:
            writer = csv.writer(file)
            writer.writerows(map(csv_cell, row) for row in (
                columns, *([row.get(column) for column in columns] for row in rows)))

    write_whole(out / f'{name}.csv', write)
    print(f'written to {out / name}.csv')


def _cell(value: object) -> str:
    if value is None:
        return '-'
    return f'{value:.3g}' if isinstance(value, float) else str(value)
