"""Files as users bring them: a table, a folder of images, token ids. Each class says itself."""

import csv
import json

import numpy as np
from PIL import Image

WORDS = {'food': 'bread cheese apple soup'.split(), 'weather': 'rain snow sun wind'.split()}
CLASSES = list(WORDS)


def texts(number, seed=0):
    """(text, label), no text twice."""
    rng = np.random.default_rng(seed)
    labels = [CLASSES[i % 2] for i in range(number)]
    return [(f'{seed} {i}, {" ".join(rng.choice(WORDS[label], 4))}', label)
            for i, label in enumerate(labels)]


def write_table(path, number=40, seed=0):
    rows = texts(number, seed)
    if path.suffix == '.csv':
        with path.open('w', newline='') as file:
            csv.writer(file).writerows([('text', 'label'), *rows])
    else:
        path.write_text('\n'.join(json.dumps({'text': text, 'label': label})
                                  for text, label in rows))
    return path


def write_images(folder, number=40, seed=0, shape=(3, 4, 3)):
    rng = np.random.default_rng(seed)
    for place in range(number):
        name, level = [('dark', 40), ('light', 200)][place % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        image = rng.integers(level - 40, level + 40, shape).astype(np.uint8)
        Image.fromarray(image).save(folder / name / f'{place:03}.png')
    return folder


def write_tokens(path, number=40, seed=0, length=6):
    rng = np.random.default_rng(seed)
    label = np.arange(number) % 2
    tokens = rng.integers(1, 300, (number, length)) + 300 * label[:, None]
    np.savez(path, tokens=tokens, label=label)
    return path
