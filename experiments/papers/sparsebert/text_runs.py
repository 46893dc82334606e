"""Trainings of the studies of text: pre-trainings, which the studies share, and fine-tunings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

from experiments.data.text.corpus import distinct, installed_documents
from experiments.data.text.glue_files import TASKS
from experiments.data.text.local_glue import HEADERS, build_local_glue
from experiments.modules.fine_tuning import LAST
from experiments.papers.few_documents import few_documents, write_few_documents
from experiments.papers.runs import SOURCE, at_scale, chosen, config_options, pattern_source
from experiments.papers.sparsebert.glue_table import COLUMNS
from experiments.papers.study import ScaleName, Study
from experiments.runs.config_file import laid_over
from experiments.runs.summary import read_results
from graphattn.patterns import Fixed, LogSparse, Pattern, Star, Strided, get

CONFIGS = Path(__file__).parent / 'configs'
# Parameters with which SparseBERT's six masks have the printed sparsity at 128 tokens. Only
# Longformer's sparsity is a tenth of a point lower. Longformer's global tokens are the first
# tokens, because random tokens would differ at each length.
PATTERNS = {
    'Strided': Strided(4),
    'Fixed': Fixed(4),
    'Longformer': get('longformer', radius=5, num_global=2),
    'LogSparse': LogSparse(),
    'BigBird': get('bigbird', block=1, num_global=2, num_random=2),
    'Star': Star(),
}
# After the small pre-training, the scores on the other local tasks are at chance.
LOCAL_TASKS = {'smoke': ('RTE',), 'small': ('SST-2',), 'paper': tuple(HEADERS)}
LAMBDAS = ('1e-4', '1e-3', '1e-2', '1e-1')  # of DAM (Eq. 7)
# Smaller lambdas for trainings of a few hundred steps, where attention does not affect the loss in
# the first third. In this time, at the scale 'small', the penalty outweighs the task for lambda
# above about 6e-4 (structured) and 6e-3 (unstructured), and at 1e-2 and 1e-1 no pair was left.
# Afterwards, the penalty outweighs the task only above 0.4 and 1.
SMALL_LAMBDAS = ('1e-5', '1e-4', '1e-3', '1e-2')


@dataclass(frozen=True)
class TextRuns:
    """Pre-trainings and fine-tunings on text. Runs with the same arguments are trained once.

    Args:
        study (Study): The study. Its scale determines the configs, and its folder contains the
            runs.
        corpus (str, optional): The corpus, see :class:`experiments.tasks.MaskedLanguage`. If
            omitted, the documentation of the installed Python, or a small part of it at the scale
            ``smoke``.
        glue (Path, optional): A folder with a folder for each GLUE task. If omitted, the tasks are
            those of :mod:`experiments.data.text.local_glue`, which are not GLUE.
    """

    study: Study
    corpus: str | None = None
    glue: Path | None = None

    @cached_property
    def sizes(self) -> dict:
        """Return the arguments of the pre-trained encoder."""
        config = laid_over(*at_scale(CONFIGS, self.study.scale, 'pretrain.yaml'))
        return config['model']['init_args']['model']['init_args']['encoder']['init_args']

    def fixed(self, name: str, pattern: Pattern, seed: int = 0, *options: str) -> Path:
        """Pre-train a model with one pattern in all heads and layers, and return the folder of the
        run."""
        source = pattern_source(pattern, seed=seed)
        return self.pretrained(f'{name}-{seed}', seed, f'{SOURCE}={json.dumps(source)}', *options)

    def soft(self, seed: int = 0) -> Path:
        """Pre-train a model that learns soft masks (SparseBERT, Sec. 3.1), and return the folder of
        the run."""
        return self.pretrained(f'soft-{seed}', seed, *self._configs('pretrain_soft.yaml'))

    def dam(self, kind: Literal['s', 'u'], weight: str, seed: int = 0) -> Path:
        r"""Pre-train a model that learns masks (SparseBERT, Sec. 4.1), and return the folder of the
        run. Masks are structured (``'s'``) or unstructured (``'u'``), and ``weight`` is the weight
        lambda of their penalty."""
        mode = {'s': 'dam_structured', 'u': 'dam_unstructured'}[kind]
        return self.pretrained(f'dam_{kind}-{weight}-{seed}', seed,
                                *self._configs('pretrain_dam.yaml'),
                                f'{SOURCE}.init_args.mode', mode,
                                '--model.init_args.mask_weight', weight)

    def tuned(self, pretrained: Path, task: str, seed: int = 0, *options: str, name: str = '',
              masks: Path | list[str] | str | None = None) -> Path:
        """Fine-tune a pre-trained model, and return the folder of the run.

        Args:
            pretrained (Path): The folder of a pre-training on the same corpus.
            task (str): One of :attr:`tasks`.
            seed (int): Seed of batches, dropout and the new head.
            *options: Further command-line options.
            name (str): Part of the run's name that describes the options.
            masks (Path, str or list, optional): Edges that replace those of the pre-training: a
                file of masks, an expression, or an expression for each head.
        """
        if masks is not None:
            options = (*options, f'--model.init_args.source={json.dumps(pattern_source(masks))}')
        run = '-'.join(filter(None, ['tuned', pretrained.name, name, task, str(seed)]))
        return self.study.trained(
            run, *self._configs('finetune.yaml'), '--seed_everything', str(seed),
            '--model.init_args.pretrained', str(pretrained / 'checkpoints' / 'last.ckpt'),
            '--model.init_args.task', task, '--data.init_args.task', task,
            '--data.init_args.path', str(self.tasks_folder / task), *options)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the names of the fine-tuning tasks whose data are available."""
        if self.glue is None:
            return tuple(HEADERS)
        return tuple(task for task in TASKS if (self.glue / task).is_dir())

    @property
    def default_tasks(self) -> tuple[str, ...]:
        """Return the tasks of a study: all available GLUE tasks, or the local tasks that a
        pre-training of this scale helps."""
        return self.tasks if self.glue else LOCAL_TASKS[self.study.scale]

    @cached_property
    def tasks_folder(self) -> Path:
        """Return the folder of the fine-tuning tasks. Local tasks are made if they are missing."""
        if self.glue is not None:
            return self.glue
        if self.study.scale == 'smoke':
            return self.study.made('local_glue', lambda folder: build_local_glue(
                folder, few_documents(), num_train=64, num_dev=32))
        return self.study.made('local_glue', lambda folder: build_local_glue(
            folder, distinct(installed_documents())))

    @property
    def about(self) -> str:
        """Return a description of the data, for titles of figures."""
        tasks = f'GLUE in {self.glue}' if self.glue else 'local tasks in the formats of GLUE'
        few = 'a little of ' if self.study.scale == 'smoke' else ''
        corpus = self.corpus or f'{few}the documentation of this Python'
        return f'corpus: {corpus}; tasks: {tasks}'

    def pretrained(self, run: str, seed: int, *options: str) -> Path:
        return self.study.trained(run, *self._configs('pretrain.yaml'), *options,
                                  *self.corpus_options(seed))

    def corpus_options(self, seed: int) -> list[str]:
        """Return the command-line options for trainings on the corpus."""
        return ['--seed_everything', str(seed), '--data.init_args.seed', str(seed),
                '--data.init_args.corpus', self._corpus, *self.study.cache]

    @cached_property
    def _corpus(self) -> str:
        if self.corpus is not None or self.study.scale != 'smoke':
            return self.corpus or 'docs'
        return str(self.study.made('corpus', write_few_documents))

    def _configs(self, name: str) -> list[str]:
        return config_options(*at_scale(CONFIGS, self.study.scale, name))


def scores(run: Path) -> dict[str, float]:
    """Return the metrics of a fine-tuning after its last epoch that the papers report, in per cent,
    as columns of a table."""
    report = read_results(run / 'dev.json')
    return {column: 100 * report[LAST][metric] for column, (task, metric) in COLUMNS.items()
            if task == report['task']}


def text_study(
    name: str,
    scale: ScaleName,
    num_seeds: int,
    glue_tasks: Sequence[str] | None = None,
    *,
    corpus: str | None = None,
    glue: Path | None = None,
    tasks: list[str] | None = None,
    seeds: PositiveInt | None = None,
    out: Path = Path('runs/studies'),
) -> tuple[TextRuns, tuple[str, ...], range]:
    """Return the trainings of a study of text, its fine-tuning tasks and its seeds.

    Args:
        name: Name of the study.
        scale: Scale of the study: smoke, small or paper.
        num_seeds: Default number of seeds.
        glue_tasks: GLUE tasks of the paper. If omitted, all available tasks.
        corpus: The corpus of the pre-training. If omitted, the documentation of the installed
            Python.
        glue: The folder of GLUE's tasks. If omitted, local tasks, which are not GLUE.
        tasks: The tasks. If omitted, those of the paper, or some local tasks.
        seeds: Number of trainings of each kind.
        out: The folder of all studies.
    """
    runs = TextRuns(Study(name, scale, out), corpus, glue)
    default = glue_tasks if glue and glue_tasks else runs.default_tasks
    return runs, chosen('tasks', tasks or default, runs.tasks), range(seeds or num_seeds)
