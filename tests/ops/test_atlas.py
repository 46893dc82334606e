"""The choice of backend='auto' is nearly the fastest at every measured point of every machine."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from graphattn.functional.choose import choose
from graphattn.ops import LogitTerms

FILES = sorted((Path(__file__).parents[2] / 'atlas').glob('*.csv'))
AT_MOST = 1.15  # times the best


def chosen(row: dict[str, str]) -> str:
    """Return the choice for a graph of one sequence."""
    edges, ptr = int(row['edges']), torch.tensor([0, int(row['tokens'])])
    tokens = int(row['tokens'])
    graph = SimpleNamespace(device=torch.device('cpu'), num_edges=edges, num_pairs=tokens**2,
                            num_queries=tokens, num_keys=tokens, num_segments=1,
                            segments=SimpleNamespace(ptrs=(ptr, ptr)), is_listed=True)
    x = torch.empty(1, int(row['heads']), int(row['channels']), dtype=getattr(torch, row['dtype']),
                    requires_grad=row['run'] == 'training')
    return choose('auto', x, x, x, graph, LogitTerms()).name


@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_the_choice_is_nearly_the_fastest(file):
    slow = []
    with file.open() as lines:
        for row in csv.DictReader(lines):
            times = {name.removesuffix(' ms'): float(value) for name, value in row.items()
                     if name.endswith(' ms') and name != 'auto ms'}
            ratio = times[chosen(row)] / min(times.values())
            if ratio > AT_MOST:
                slow.append((row['structure'], row['tokens'], row['density'], row['heads'],
                             row['dtype'], row['run'], chosen(row), round(ratio, 2)))
    assert slow == []


def test_an_atlas_is_kept():
    assert FILES
