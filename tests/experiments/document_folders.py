"""A collection of documents on disk, in aclImdb's layout."""

from pathlib import Path

import numpy as np

MOOD = (('dull', 'bad', 'poor'), ('fine', 'good', 'great'))
OTHERS = ('the', 'film', 'actor', 'scene', 'was', 'and', 'plot', 'a', 'music', 'end')


def write_imdb(folder: Path, num_train: int = 40, num_test: int = 11, longest: int = 30) -> Path:
    """Reviews of 3 to ``longest`` words; the mood of one word in three tells the class."""
    rng = np.random.default_rng(0)
    for part, count in (('train', num_train), ('test', num_test)):
        for label, name in enumerate(('neg', 'pos')):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                length = int(rng.integers(3, longest + 1))
                words = [rng.choice(MOOD[label] if place % 3 == 0 else OTHERS)
                         for place in range(length)]
                (folder / part / name / f'{number}_{label}.txt').write_text(' '.join(words))
    return folder
