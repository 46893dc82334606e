"""Small releases of Long Range Arena's data, in the formats of the true ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from experiments.data import cifar

TREES = [('( ( ( [MAX 2 ) 9 ) ] )', 9), ('( ( ( [MED 4 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )', 4),
         ('3', 3)]


def write_listops(folder: Path) -> None:
    for name in ('train', 'val', 'test'):
        rows = ''.join(f'{source}\t{target}\r\n' for source, target in TREES)
        (folder / f'basic_{name}.tsv').write_bytes(f'Source\tTarget\r\n{rows}'.encode())


def write_pairs(folder: Path) -> None:
    rows = b'1.0\tP05-1001\tW03\tthe "first" text\t\xff\xfe second\n0.0\tA\tB\tthird\tfourth\n'
    for name in ('train', 'eval', 'test'):
        (folder / f'new_aan_pairs.{name}.tsv').write_bytes(rows)


def write_pathfinder(folder: Path, lists: int = 2, pictures: int = 10) -> None:
    (folder / 'metadata').mkdir()
    for number in range(lists):
        (folder / 'imgs' / f'{number}').mkdir(parents=True)
        rows = ''
        for i in range(pictures):
            picture = np.full((32, 32), 10 * number + i, np.uint8)
            Image.fromarray(picture).save(folder / 'imgs' / f'{number}' / f'sample_{i}.png')
            rows += f'imgs/{number} sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n'
        (folder / 'metadata' / f'{number}.npy').write_text(rows)


def write_imdb(folder: Path) -> None:
    for part in ('train', 'test'):
        for name in ('neg', 'pos'):
            (folder / part / name).mkdir(parents=True)
            for i in range(20):
                text = f'{part} {name} {i} <br />'.encode() + b'\xff\x00'
                (folder / part / name / f'{i}_7.txt').write_bytes(text)


def write_cifar(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
        rows = rng.integers(0, 256, (cifar.IMAGES_PER_FILE, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / f'{name}.bin').write_bytes(rows.tobytes())
