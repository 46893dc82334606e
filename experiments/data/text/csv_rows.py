"""Reader of the rows of CSV files."""

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from experiments.data.what_was_read import check_is_text, number_of, tell, unread
from graphattn.utils.reading import MAX_LINE_LENGTH, read_lines

SEPARATORS = {',': 'commas', ';': 'semicolons', '\t': 'tabs', '|': 'vertical bars'}
# Messages of the csv module, and what each means for the user.
MEANINGS = {
    'expected after': 'text follows a closing quotation mark; double each quotation mark inside '
                      'a quoted text, ""',
    'unexpected end of data': 'a quotation mark is never closed'}


def csv_rows(path: Path, separator: str = ',', *, used: Collection[str] | None
             ) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the first line and the columns of each row of a CSV file with a header,
    whose separator is named by a line such as ``sep=;`` or gives the most columns."""
    csv.field_size_limit(MAX_LINE_LENGTH)
    check_is_text(path)
    lines = (line for _, part in read_lines(path) for line in io.StringIO(part, newline=''))
    first, last = next(lines, ''), 0  # last is the number of the last line of the row before
    if said := re.fullmatch('sep=(.)\r?\n?', first):
        first, last = next(lines, ''), 1
    separator = said[1] if said else _separator(first, separator)
    between = f'between {SEPARATORS.get(separator, repr(separator))}'
    reader, skipped = csv.reader(chain([first], lines), delimiter=separator, strict=True), last
    rows = blank = 0
    try:
        names = [name.strip() for name in next(reader, [])]
        _check_names(names, f'{path}, line {last + 1}')
        last = skipped + reader.line_num
        for row in tqdm(reader, desc=f'reading {path.name}', unit=' rows', disable=None):
            where, is_blank = f'{path}, line {last + 1}', not any(map(str.strip, row))
            if not is_blank and (len(row) < len(names) or any(row[len(names):])):
                raise ValueError(f"{where}: expected {len(names)} columns {between} (got "
                                 f"{len(row)}); put texts that contain the separator in quotation "
                                 f"marks")
            rows, blank = rows + (not is_blank), blank + is_blank
            if not is_blank:
                yield last + 1, {name: value for name, value in zip(names, row) if name}
            last = skipped + reader.line_num
    except csv.Error as error:
        meaning = next((text for said, text in MEANINGS.items() if said in str(error)), error)
        raise ValueError(f'{path}, line {last + 1}: not CSV {between} ({meaning})') from error
    tell(path, f'{number_of("row", rows)} of {number_of("column", len(names))} {between}',
         {'blank rows': blank, 'columns without a name': names.count(''),
          **unread(names, names if used is None or not rows else used)})


def _separator(header: str, usual: str) -> str:
    """Return the separator that gives a header the most columns, or the usual separator in a
    tie."""
    def num_columns(separator: str) -> int:
        return len(next(csv.reader([header], delimiter=separator), []))

    return max((usual, *SEPARATORS), key=num_columns)


def _check_names(names: list[str], where: str) -> None:
    for name, count in Counter(names).items():
        if name and count > 1:
            raise ValueError(f"{where}: expected different column names (got {name!r:.60} twice); "
                             f"rename one of the columns")
