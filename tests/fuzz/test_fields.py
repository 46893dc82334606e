"""Each field of each file of ours: with another type or range, missing, and beside an unknown one.
A reader refuses it by the name of the file, without the memory or time that a number asks for."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

from experiments.runs.checkpoints import write_checkpoint
from tests.fuzz.test_readers import READERS, child, valid  # noqa: F401

pytestmark = pytest.mark.slow
OTHERS = (None, True, -1, 10**9, 10**30, .5, float('nan'), 'x', 'some-org/some-kernel', [], {},
          [99], [[.5]], 'ab')


class Form(NamedTuple):
    """How the content of a file becomes a tree, and a tree the file."""

    read: Callable[[Path], Any]
    write: Callable[[Any, Path], object]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


JSON = Form(lambda path: json.loads(path.read_text()),
            lambda tree, path: path.write_text(json.dumps(tree)))
YAML = Form(lambda path: yaml.safe_load(path.read_text()),
            lambda tree, path: path.write_text(yaml.safe_dump(tree)))
ARRAYS = Form(read_arrays, lambda tree, path: np.savez(path, **tree))
CHECKPOINT = Form(lambda path: torch.load(path, weights_only=True), write_checkpoint)
# Each file of ours, its form, and the fields that may have some other values too.
FILES = {
    'manifest': (JSON, {'layers[0].num_heads', 'layers[0].heads', 'layers[0].teleport',
                        'layers[0].backend', 'layers[0].is_named', 'layers[0].learn_teleport',
                        'layers[0].hops', 'implementations', 'implementations.', 'files',
                        'layers[0].arguments'}),
    'profile': (ARRAYS, {'cluster_query', 'cluster_key', 'cluster_edges', 'pattern_error',
                         'lengths', 'format'}), 'masks': (ARRAYS, set()),
    'summary': (JSON, {'accuracy', 'loss', 'density.layer 0', 'epochs', 'seconds', 'density',
                       'versions.torch', 'inputs', 'versions', 'heads_without_edges', '',
                       'inputs.data.path'}),
    'a whole run, config': (YAML, None), 'a whole run, checkpoint': (CHECKPOINT, None)}
OF_OTHERS = 'layers[0].arguments.', 'files.'  # which the classes and the folder check
AT_MOST = 60  # changes of a file that are tried


def nodes(tree: Any, name: str = '', place: tuple = ()) -> Iterator[tuple[str, tuple]]:
    """Yield the name and the place of each field."""
    yield name, place
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(
        tree, list) else ()
    for key, part in parts:
        inner = f'{name}[{key}]' if isinstance(tree, list) else f'{name}.{key}' if name else key
        yield from nodes(part, inner, (*place, key))


def at(tree: Any, place: tuple) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def others_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield changed values of a field, with what was changed."""
    if isinstance(value, np.ndarray):
        yield 'type', value.astype(str) if value.dtype.kind != 'U' else np.zeros(value.shape)
        yield 'type', value[None]
        if value.ndim and value.size:
            yield 'range', value[:-1]
        if value.dtype.kind in 'if' and value.size:
            limits = np.iinfo if value.dtype.kind == 'i' else np.finfo
            for number in limits(value.dtype).min, limits(value.dtype).max:
                yield 'range', np.full_like(value, number)
    elif isinstance(value, torch.Tensor):
        yield from (('type', other) for other in (None, 3, value[None], value * torch.nan))
    else:
        yield from ((f'{other!r}', other) for other in OTHERS if not (
            type(other) is type(value) and other == value))


def changes(tree: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of a field, what was changed, and the changed tree."""
    for name, place in nodes(tree):
        for how, other in others_of(at(tree, place)) if place else ():
            changed = copy.deepcopy(tree)
            at(changed, place[:-1])[place[-1]] = other
            yield name, how, changed
        if isinstance(at(tree, place), dict):
            changed = copy.deepcopy(tree)
            at(changed, place)['unknown'] = np.zeros(3) if isinstance(
                next(iter(at(tree, place).values()), 0), np.ndarray) else 'x'
            yield name, 'extra', changed
        if place and isinstance(place[-1], str):
            changed = copy.deepcopy(tree)
            del at(changed, place[:-1])[place[-1]]
            yield name, 'missing', changed


@pytest.mark.parametrize('name', FILES)
def test_each_field_is_checked(name, child, valid, tmp_path):  # noqa: F811
    form, free = FILES[name]
    path = valid(name) / READERS[name].file
    every = list(changes(form.read(path)))
    every = random.Random(0).sample(every, min(len(every), AT_MOST))
    read = []
    for field, how, changed in every:
        form.write(changed, tmp_path / path.name)
        outcome = child.outcome(name, valid(name), (tmp_path / path.name).read_bytes())
        assert outcome in {'read', 'refused'}, (field, how, outcome)
        if outcome == 'read':
            read.append((field, how))
    print(read)
    if free is not None:
        assert all(field in free or field.startswith(OF_OTHERS) for field, _ in read), read
