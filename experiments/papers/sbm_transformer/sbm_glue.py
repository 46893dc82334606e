"""GLUE with full attention, a window, sampled graphs and baselines (SBM-Transformer, Table 4)."""

import json
import statistics

from experiments.modules.measures import LAST
from experiments.papers.figures import bars
from experiments.papers.sbm_transformer.long_range import baseline, baselines_at
from experiments.papers.sparsebert.texts import Texts, loss_of
from experiments.papers.study import (
    DENSITY,
    Table,
    config_options,
    mean_and_spread,
    over_seeds,
)
from experiments.runs.config_file import laid_over
from experiments.runs.summary import read_results
from graphattn.patterns import Full

FULL, WINDOW, SAMPLED = 'full', 'window', 'sampled + window'
BASELINES = 'Reformer', 'Performer', 'Linformer', 'Nystromformer'
# The paper's F1 and density in per cent (Table 4).
# F1 as the script of Nyströmformer computes it: of class 1, which on MNLI ignores every confusion
# with a third class. So accuracy and the mean F1 of all classes are reported as well.
PAPER = {FULL: {'SST-2': 89.8, 'QQP': 84.7, 'MNLI': 84.0, 'QNLI': 85.0, 'density': 100.},
         'Reformer': {'SST-2': 89.3, 'QQP': 84.4, 'MNLI': 83.9, 'QNLI': 84.0},
         'Performer': {'SST-2': 82.0, 'QQP': 65.6, 'MNLI': 71.4, 'QNLI': 59.3},
         'Linformer': {'SST-2': 82.0, 'QQP': 83.2, 'MNLI': 79.3, 'QNLI': 82.5},
         'Nystromformer': {'SST-2': 89.7, 'QQP': 83.2, 'MNLI': 84.1, 'QNLI': 84.9},
         SAMPLED: {'SST-2': 89.8, 'QQP': 85.2, 'MNLI': 83.5, 'QNLI': 83.6, 'density': 13.5}}


def main(texts: Texts) -> Table:
    tasks, seeds = texts.asked(('SST-2', 'QQP', 'MNLI', 'QNLI')), texts.each(1, 3, 1)
    # these override the configs of SparseBERT's studies
    configs = [texts.configs('sbm_transformer', name)
               for name in ('pretrain_mlm', 'pretrain_sbm', 'finetune_sbm')]
    masked_tokens, sampled, tuning = (config_options(*paths) for paths in configs)
    own = laid_over(*texts.configs('sparsebert', 'pretrain'), *configs[0], *configs[1])
    encoder = own['model']['init_args']['model']['init_args']['encoder']['init_args']
    window = encoder['source']['init_args']['fixed']
    pretrained = {FULL: texts.fixed('mlm_full', Full(), 0, *masked_tokens),
                  WINDOW: texts.fixed('mlm_window', window, 0, *masked_tokens),
                  SAMPLED: texts.pretrained('mlm_sbm-0', 0, *masked_tokens, *sampled)}
    sizes = {name: encoder[name] for name in ('channels', 'heads')}
    length = encoder['max_length']
    known = baselines_at(length, length // 2)  # 256 of 512 in the paper
    for name in BASELINES:
        changed = {'source': None, 'attention_dropout': 0.,  # baselines drop no weights
                   'attention': baseline(known[name], **sizes)}
        over = {'model': {'init_args': {'model': {
            'init_args': {'encoder': {'init_args': changed}}}}}}
        pretrained[name] = texts.pretrained(
            f'mlm_{name.lower()}-0', 0, *masked_tokens, *config_options(json.dumps(over)))
    rows = []
    for task in tasks:
        for attention, run in pretrained.items():
            tuned = [texts.tuned(run, task, seed, *tuning, name='mean') for seed in seeds]
            rows += _rows(task, attention, [read_results(run / 'dev.json')[LAST] for run in tuned],
                          is_glue=texts.glue is not None)
    rows += [{'task': 'masked tokens', 'attention': attention, 'loss': loss_of(run),
              **over_seeds([run], {'accuracy, %': ('mlm_accuracy', 100.)})}
             for attention, run in pretrained.items()]
    title = (f'Full attention, and a window with sampled graphs. The paper, on GLUE: equal F1, '
             f'with 13.5 % of the pairs.\n{texts.about}')
    return Table(rows, bars(rows, 'task', ['accuracy, %', DENSITY], title, series='attention'),
                 texts.about)


def _rows(task: str, attention: str, reports: list[dict], is_glue: bool) -> list[dict]:
    """Return a row for each development set of a task; only GLUE has results of the paper."""
    sets = [name.removeprefix('accuracy/') for name in reports[0] if name.startswith('accuracy/')]
    paper = PAPER.get(attention, {}) if is_glue else {}
    found = ([value for name, value in report.items() if name.startswith('density/')]
             for report in reports)
    density = [100 * statistics.mean(values) for values in found if values]
    rows = []
    for name in sets:
        published = 'published_f1' if f'published_f1/{name}' in reports[0] else 'f1'
        row = {'task': task if name == 'dev' else f'{task}, {name.removeprefix("dev_")}',
               'attention': attention}
        for label, metric in (('accuracy', 'accuracy'), ('macro F1', 'macro_f1'),
                              ('F1 as published', published)):
            row |= mean_and_spread(f'{label}, %', [100 * report[f'{metric}/{name}']
                                                   for report in reports])
        rows.append({**row, 'paper, F1': paper.get(task), **mean_and_spread(DENSITY, density),
                     'paper, density': paper.get('density')})
    return rows
