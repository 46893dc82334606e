r"""Comparison of local edges with pre-training on the inputs of a task: which replaces which?

    python -m experiments.papers.ours.local_or_pretrained --scale small --tasks '[ListOps]'

Transformers that are pre-trained on the inputs of a task, without labels, perform far better on
Long Range Arena (Amos et al., "Never train from scratch", 2024). A likely reason is that labels do
not teach attention to be local ("Towards understanding self-pretraining for sequence
classification", 2026). Local edges are local by construction. The study therefore trains full
attention, a window, a block model, and a block model with a window. Each is trained twice: from
scratch, and from an encoder that was pre-trained to predict next tokens.

The pre-training is causal and has as many steps as the training. Pre-trained models have therefore
twice as many steps in total.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.papers.figures import bars
from experiments.papers.sbm_transformer.long_range_runs import (
    BOTH,
    FULL,
    SAMPLED,
    WINDOW,
    LongRangeRuns,
    long_range_study,
)
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.summary import read_summary

SEEDS = {'smoke': 1, 'small': 3, 'paper': 3}
DEFAULT_TASKS = {'smoke': ('ListOps',), 'small': ('ListOps', 'Text', 'Image'),
                 'paper': ('ListOps', 'Text', 'Image')}
ATTENTIONS = (FULL, WINDOW, SAMPLED, BOTH)
SCRATCH, PRETRAINED = 'from scratch', 'pre-trained'
# Published accuracies of full attention, in per cent: Tay et al. (2021) and Amos et al. (2024).
PAPER = {SCRATCH: {'ListOps': 36.4, 'Text': 64.3, 'Retrieval': 57.5, 'Image': 42.4,
                   'Pathfinder': 71.4},
         PRETRAINED: {'ListOps': 59.2, 'Text': 88.8, 'Retrieval': 90.4, 'Image': 76.0,
                      'Pathfinder': 88.5}}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Train each kind of attention with and without pre-training, and compare the accuracies.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`long_range_study`.
    """
    runs, tasks, seeds = long_range_study('local_or_pretrained', scale, SEEDS[scale],
                                          DEFAULT_TASKS[scale], **kwargs)
    rows = [row(runs, task, name, seeds) for task in tasks for name in ATTENTIONS]
    baselines = {task: runs.baselines(task) for task in tasks}
    guesses = [{'task': task, 'attention': name, f'{SCRATCH}, %': accuracy}
               for task, found in baselines.items() for name, accuracy in found.items()]
    runs.study.report([*rows, *guesses], draw(rows, baselines, runs.about),
                      f'{runs.about}; seeds: {len(seeds)}')


def row(runs: LongRangeRuns, task: str, attention: str, seeds: range) -> dict:
    """Return a row of the table: the accuracies of a kind of attention, from scratch and
    pre-trained, and its loss on next tokens."""
    found = {how: runs.scored(task, attention, seeds, pretrained=how == PRETRAINED)
             for how in (SCRATCH, PRETRAINED)}
    columns = {'task': task, 'attention': attention}
    for how, scores in found.items():
        columns |= {f'{how}, %': scores['accuracy, %'],
                    f'{how}, spread': scores['accuracy, spread'],
                    f'{how}, density': scores['density, %'],
                    f'{how}, papers': PAPER[how][task] if attention == FULL else None}
    losses = [read_summary(runs.pretrained(task, attention, seed))['loss'] for seed in seeds]
    return {**columns, 'gain': columns[f'{PRETRAINED}, %'] - columns[f'{SCRATCH}, %'],
            'next token, loss': sum(losses) / len(losses)}


def draw(rows: list[dict], baselines: dict[str, dict[str, float]], about: str) -> Figure:
    """Draw accuracies with a panel for each task. Each kind of attention has two bars, from scratch
    and pre-trained. Baselines are lines."""
    trainings = [{**row, 'training': how, 'accuracy, %': row[f'{how}, %'],
                  'accuracy, spread': row[f'{how}, spread']}
                 for row in rows for how in (SCRATCH, PRETRAINED)]
    return bars(trainings, 'attention', ['accuracy, %'], 'With and without pre-training on the '
                f'inputs; lines are baselines.\n{about}', panel='task', series='training',
                levels=baselines)


if __name__ == '__main__':
    run_function(main)
