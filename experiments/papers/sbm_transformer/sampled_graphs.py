"""The graphs that trained block models sample for each test input."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.data.sequences import Sequences
from experiments.papers.sbm_transformer.density_runs import DensityRuns
from experiments.papers.study import restored
from experiments.runs.summary import read_summary
from experiments.tasks.long_range import collate

BATCH = 32


class OfInputs(NamedTuple):
    """Densities of the sampled graphs, and predictions, for each test input.

    Attributes:
        density (Tensor): Density of each graph, float64 ``[layers, heads, num_sequences]``; an
            example of two sequences has two graphs.
        predicted (Tensor): Predicted classes, int64 ``[num_examples]``.
    """

    density: Tensor
    predicted: Tensor


@torch.no_grad()
def of_inputs(model: nn.Module, sequences: Sequences, seed: int = 0) -> OfInputs:
    """Sample a graph for each head and sequence, and predict the class of each input.

    Args:
        model (nn.Module): A classifier in which each head has its own graph.
        sequences (Sequences): The inputs.
        seed (int): Seed of the graphs.
    """
    model.eval()
    torch.manual_seed(seed)
    densities, predicted = [], []
    for examples in tqdm(torch.arange(len(sequences.label)).split(BATCH), desc='inputs',
                         disable=None):
        batch = collate(sequences.take(examples.numpy()))
        logits, graphs = model(batch.tokens, batch.ptr, return_graphs=True)
        densities.append(torch.stack([graph.density(per_segment=True).view(model.encoder.heads, -1)
                                      for graph in graphs]))
        predicted.append(logits.argmax(dim=-1))
    return OfInputs(torch.cat(densities, dim=2), torch.cat(predicted))


def restored_model(run: Path) -> tuple[nn.Module, Sequences]:
    """Load the model of a finished run, and return it with the test part of its task."""
    training, data, _ = restored(run)
    data.setup()
    return training.model, data.data.parts['test']


def most_accurate(runs: DensityRuns, weight: str, seeds: range) -> Path:
    """Return the folder of the block model with the highest test accuracy among these seeds."""
    return max((runs.sampled(weight, seed) for seed in seeds),
               key=lambda run: read_summary(run)['accuracy'])
