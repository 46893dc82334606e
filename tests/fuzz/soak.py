"""Memory over many training steps on sequences of ever other lengths.

    python -m tests.fuzz.soak <steps> <seed>

Prints what is resident as training goes on, and at the end its slope with the standard error,
of the second half.
"""

from __future__ import annotations

import os

# torch's oneDNN keeps a program for each of the last 1,024 shapes, which would look like a leak for
# some ten thousand steps. Set before torch is loaded.
os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'] = '0'

import sys

import psutil
import torch
import torch.nn.functional as F
from scipy.stats import linregress
from torch import Tensor

from graphattn.models import Encoder, SequenceClassifier
from graphattn.sources import BlockModelSource

EVERY = 50  # steps


def main(num_steps: int, seed: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = SequenceClassifier(Encoder(
        BlockModelSource(heads=2, head_channels=8, clusters=4), num_tokens=50, max_length=64,
        channels=16, heads=2, num_layers=2, hops=2, teleport=0.1, dropout=0.1), 3)
    optimizer, steps, resident = torch.optim.AdamW(model.parameters(), 1e-3), [], []
    for step in range(num_steps):
        train(model, optimizer)
        if step % EVERY == 0:
            steps.append(step / 1000)
            resident.append(psutil.Process().memory_info().rss / 2**20)
        if step % (20 * EVERY) == 0:
            print(f'step {step:7,d}: {resident[-1]:.1f} MiB', flush=True)
    warm = slice(len(steps) // 2, None)
    line = linregress(steps[warm], resident[warm])
    print(f'{line.slope:.4f} +- {line.stderr:.4f} MiB per 1,000 steps')


def train(model: SequenceClassifier, optimizer: torch.optim.Optimizer) -> None:
    ptr = F.pad(torch.randint(1, 64, (4,)).cumsum(0), (1, 0))
    optimizer.zero_grad()
    out: Tensor = model(torch.randint(50, (int(ptr[-1]),)), ptr)
    F.cross_entropy(out, torch.randint(3, (4,))).backward()
    optimizer.step()


if __name__ == '__main__':
    main(*map(int, sys.argv[1:]))
