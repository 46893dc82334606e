r"""GLUE with full attention, a window, and a window with sampled graphs (SBM-Transformer, Table 4).

    python -m experiments.papers.sbm_transformer.sbm_glue --scale small

All models are pre-trained on masked tokens alone and fine-tuned with mean pooling (Sec. 5.3, Table
7). The paper follows Nyströmformer's protocol, and reports F1 as the script of Nyströmformer does:
F1 of class 1, which on MNLI ignores every confusion with a third class. Here, accuracy and the mean
F1 of all classes are reported as well. The window alone is not in the paper. The paper's Reformer,
Performer, Linformer and Nystromformer are not included.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from experiments.modules.fine_tuning import LAST
from experiments.papers.figures import bars
from experiments.papers.runs import at_scale, config_options, mean_and_spread
from experiments.papers.sparsebert.text_runs import TextRuns, text_study
from experiments.papers.study import ScaleName
from experiments.runs.command_line import run_function
from experiments.runs.config_file import laid_over
from experiments.runs.summary import read_results, read_summary
from graphattn.patterns import Full

CONFIGS = Path(__file__).parent / 'configs'
FULL, WINDOW, SAMPLED = 'full', 'window', 'sampled + window'
# The paper's F1 and density in per cent (Table 4).
PAPER = {FULL: {'SST-2': 89.8, 'QQP': 84.7, 'MNLI': 84.0, 'QNLI': 85.0, 'density': 100.},
         SAMPLED: {'SST-2': 89.8, 'QQP': 85.2, 'MNLI': 83.5, 'QNLI': 83.6, 'density': 13.5}}
TASKS = ('SST-2', 'QQP', 'MNLI', 'QNLI')
SEEDS = {'smoke': 1, 'small': 3, 'paper': 1}


def main(scale: ScaleName = 'small', **kwargs) -> None:
    """Pre-train and fine-tune full attention, a window, and a window with sampled graphs.

    Args:
        scale: Scale of the study: smoke, small or paper.
        **kwargs: Arguments of :func:`text_study`.
    """
    runs, tasks, seeds = text_study('sbm_glue', scale, SEEDS[scale], TASKS, **kwargs)
    masked_tokens, sampled, tuning = (
        config_options(*configs(runs, name))
        for name in ('pretrain_mlm', 'pretrain_sbm', 'finetune_sbm'))
    pretrained = {FULL: runs.fixed('mlm_full', Full(), 0, *masked_tokens),
                  WINDOW: runs.fixed('mlm_window', window_of(runs), 0, *masked_tokens),
                  SAMPLED: runs.pretrained('mlm_sbm-0', 0, *masked_tokens, *sampled)}
    rows = []
    for task in tasks:
        for attention, run in pretrained.items():
            reports = [_report(runs.tuned(run, task, seed, *tuning, name='mean'))
                       for seed in seeds]
            rows += _rows(task, attention, reports, is_glue=runs.glue is not None)
    rows += [{'task': 'masked tokens', 'attention': attention,
              'loss': read_summary(run)['mlm_loss'],
              'accuracy, %': 100 * read_summary(run)['mlm_accuracy'],
              **mean_and_spread('density, %', [
                  100 * statistics.mean(read_summary(run)['density'].values())])}
            for attention, run in pretrained.items()]
    title = (f'Full attention, and a window with sampled graphs. The paper, on GLUE: equal F1, '
             f'with 13.5 % of the pairs.\n{runs.about}')
    runs.study.report(rows, bars(rows, 'task', ['accuracy, %', 'density, %'], title,
                                 series='attention'), runs.about)


def configs(runs: TextRuns, name: str) -> tuple[Path, ...]:
    """Return the config files of a training called ``name``: those of SparseBERT's studies, and
    then those of this study, which override them."""
    return at_scale(CONFIGS, runs.study.scale, f'{name}.yaml')


def window_of(runs: TextRuns) -> str:
    """Return the pattern of the window that the sampled graphs include."""
    encoder = laid_over(*configs(runs, 'pretrain_sbm'))['model']['init_args']['model'][
        'init_args']['encoder']
    return encoder['init_args']['source']['init_args']['fixed']


def _report(run: Path) -> dict[str, float]:
    return read_results(run / 'dev.json')[LAST]


def _rows(task: str, attention: str, reports: list[dict], is_glue: bool) -> list[dict]:
    """Return a row for each development set of a task, with means over the seeds.

    Args:
        task: The task.
        attention: The kind of attention.
        reports: The metrics of the run of each seed.
        is_glue: Whether the task is GLUE's and not a stand-in, so that the paper has results for
            it.
    """
    sets = [name.removeprefix('accuracy/') for name in reports[0] if name.startswith('accuracy/')]
    paper = PAPER.get(attention, {}) if is_glue else {}
    density = [statistics.mean(value for name, value in report.items()
                               if name.startswith('density/')) for report in reports]
    rows = []
    for name in sets:
        published = 'published_f1' if f'published_f1/{name}' in reports[0] else 'f1'
        row = {'task': task if name == 'dev' else f'{task}, {name.removeprefix("dev_")}',
               'attention': attention}
        for label, metric in (('accuracy', 'accuracy'), ('macro F1', 'macro_f1'),
                              ('F1 as published', published)):
            row |= mean_and_spread(f'{label}, %', [100 * report[f'{metric}/{name}']
                                                   for report in reports])
        rows.append({**row, 'paper, F1': paper.get(task),
                     **mean_and_spread('density, %', [100 * value for value in density]),
                     'paper, density': paper.get('density')})
    return rows


if __name__ == '__main__':
    run_function(main)
