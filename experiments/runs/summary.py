"""The summary of a run, ``summary.json``."""

import csv
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphattn.utils.files import write_whole
from graphattn.utils.reading import read_json
from graphattn.utils.schema import check_schema

NAME = 'summary.json'
METRIC = None, float
BASELINE_ACCURACY, BASELINE_MAE = 'baseline_accuracy', 'baseline_mae'
MEANING = {BASELINE_ACCURACY: 'by always predicting the most frequent class',
           BASELINE_MAE: 'by always predicting the median'}
SCHEMA = {'inputs?': {str: str}, 'versions?': {str: METRIC + (str,)}, 'seeds?': [int],
          'heads_without_edges?': [str], 'task?': str, 'reported?': [str],
          str: (*METRIC, {str: METRIC})}


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write ``folder/summary.json``."""
    text = json.dumps(without_nan(summary), indent=2, allow_nan=False) + '\n'
    write_whole(folder / NAME, lambda path: path.write_text(text))


def read_summary(folder: Path) -> dict[str, Any]:
    return read_results(folder / NAME)


def read_results(path: Path) -> dict[str, Any]:
    """Read the metrics of a run, such as ``dev.json``, of which a missing one is named."""
    results = read_json(path)
    check_schema(results, SCHEMA, str(path))
    return with_nan(results, path)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of each epoch of a run, none of a test alone."""
    path = folder / 'metrics.csv'
    if not path.exists():
        return []
    with path.open(newline='', encoding='utf-8') as file:
        return [{name: float(value) for name, value in row.items() if value}
                for row in csv.DictReader(file)]


def without_nan(value: Any) -> Any:
    """Return a value in which non-finite numbers, which JSON lacks, are replaced by ``None``."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(value: Any, path: Path) -> Any:
    """Return a value in which ``None`` is replaced by NaN, so that a metric that was not finite
    does not look missing."""
    if isinstance(value, dict):
        return _Results(path, {name: with_nan(part, path) for name, part in value.items()})
    return math.nan if value is None else value


class _Results(dict):
    def __init__(self, path: Path, results: dict[str, Any]):
        super().__init__(results)
        self.path = path

    def __missing__(self, name: str) -> None:
        raise ValueError(f'{self.path}: field {name!r} is missing (there are {", ".join(self)})')


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of values: ``None`` of one, NaN if not all are finite."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
