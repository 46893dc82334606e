"""Trainings of the studies of text: pre-trainings, which the studies share, and fine-tunings."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from experiments.data.text.glue_files import TASKS
from experiments.data.text.local_glue import HEADERS
from experiments.modules.measures import LAST
from experiments.papers import study as studies
from experiments.papers.local_data import documentation, local_glue
from experiments.papers.sparsebert.glue_table import COLUMNS
from experiments.runs.config_file import laid_over
from experiments.runs.summary import read_results, read_summary
from graphattn.patterns import Fixed, LogSparse, Pattern, Star, Strided, get

# Parameters with which SparseBERT's six masks have the printed sparsity at 128 tokens. Only
# Longformer's sparsity is a tenth of a point lower. Longformer's global tokens are the first
# tokens, because random tokens would differ at each length.
PATTERNS = {
    'Strided': Strided(4), 'Fixed': Fixed(4),
    'Longformer': get('longformer', radius=5, num_global=2), 'LogSparse': LogSparse(),
    'BigBird': get('bigbird', block=1, num_global=2, num_random=2), 'Star': Star()}
# After the small pre-training, the scores on the other local tasks are at chance.
LOCAL_TASKS = {'smoke': ('RTE',), 'small': ('SST-2',), 'paper': tuple(HEADERS)}
LAMBDAS = ('1e-4', '1e-3', '1e-2', '1e-1')  # of DAM (Eq. 7)
# Smaller lambdas for trainings of a few hundred steps, where attention does not affect the loss in
# the first third. In this time, at the scale 'small', the penalty outweighs the task for lambda
# above about 6e-4 (structured) and 6e-3 (unstructured), and at 1e-2 and 1e-1 no pair was left.
# Afterwards, the penalty outweighs the task only above 0.4 and 1.
SMALL_LAMBDAS = ('1e-5', '1e-4', '1e-3', '1e-2')
LOSS = 'masked tokens, loss'


@dataclass(frozen=True)
class Pretrainings(studies.Trained):
    """A study of models that are pre-trained on a corpus.

    Args:
        corpus: The corpus of the pre-training. If omitted, the documentation of the installed
            Python.
    """

    corpus: str | None = None

    @cached_property
    def length(self) -> int:
        config = laid_over(*self.configs('sparsebert', 'pretrain'))
        encoder = config['model']['init_args']['model']['init_args']['encoder']
        return encoder['init_args']['max_length']

    def fixed(self, name: str, pattern: Pattern | str, seed: int = 0, *options: str) -> Path:
        source = studies.source_option(pattern, seed=seed)
        return self.pretrained(f'{name}-{seed}', seed, source, *options)

    def lambdas(self, *smoke: str) -> tuple[str, ...]:
        return {'smoke': smoke, 'small': SMALL_LAMBDAS, 'paper': LAMBDAS}[self.scale]

    def soft(self, seed: int = 0) -> Path:
        """Pre-train a model that learns soft masks (SparseBERT, Sec. 3.1)."""
        return self.pretrained(f'soft-{seed}', seed, *self._config('pretrain_soft'))

    def dam(self, kind: Literal['s', 'u'], weight: str) -> Path:
        """Pre-train a model that learns structured or unstructured masks (SparseBERT, Sec. 4.1)."""
        mode = {'s': 'dam_structured', 'u': 'dam_unstructured'}[kind]
        return self.pretrained(f'dam_{kind}-{weight}-0', 0, *self._config('pretrain_dam'),
                               f'{studies.SOURCE}.init_args.mode', mode,
                               '--model.init_args.mask_weight', weight)

    def pretrained(self, run: str, seed: int, *options: str) -> Path:
        return self.trained(run, *self._config('pretrain'), *options, *self.corpus_options(seed))

    def corpus_options(self, seed: int) -> list[str]:
        corpus = self.corpus or (
            str(documentation(self, 'corpus')) if self.scale == 'smoke' else 'docs')
        return ['--seed_everything', str(seed), '--data.init_args.seed', str(seed),
                '--data.init_args.corpus', corpus, *self.cache]

    def _config(self, name: str) -> list[str]:
        return studies.config_options(*self.configs('sparsebert', name))

    @property
    def about(self) -> str:
        few = 'a little of ' if self.scale == 'smoke' else ''
        return f'corpus: {self.corpus or f"{few}the documentation of this Python"}'


@dataclass(frozen=True)
class Texts(Pretrainings):
    """A study of models that are pre-trained and fine-tuned.

    Args:
        glue: The folder of GLUE's tasks. If omitted, local tasks, which are not GLUE.
        tasks: The tasks. If omitted, those of the paper, or some local tasks.
    """

    glue: Path | None = None
    tasks: list[str] | None = None

    def asked(self, of_paper: Sequence[str] | None = None) -> tuple[str, ...]:
        known = tuple(HEADERS) if self.glue is None else tuple(
            task for task in TASKS if (self.glue / task).is_dir())
        if not known:
            raise ValueError(f"'glue' must be the folder of GLUE, with a folder for each task, "
                             f"such as {', '.join(TASKS)} (got {self.glue})")
        default = of_paper or known if self.glue else LOCAL_TASKS[self.scale]
        return studies.chosen('tasks', self.tasks or default, known)

    def tuned(self, pretrained: Path, task: str, seed: int = 0, *options: str, name: str = '',
              masks: Path | Sequence[Pattern] | None = None) -> Path:
        """Fine-tune a pre-trained model, whose edges ``masks`` may replace."""
        if masks is not None:
            source = json.dumps(studies.pattern_source(masks))
            options = (*options, f'--model.init_args.source={source}')
        run = '-'.join(filter(None, ['tuned', pretrained.name, name, task, str(seed)]))
        return self.trained(
            run, *self._config('finetune'), '--seed_everything', str(seed),
            '--model.init_args.pretrained', str(pretrained / 'checkpoints' / 'last.ckpt'),
            '--model.init_args.task', task, '--data.init_args.task', task,
            '--data.init_args.path', str((self.glue or local_glue(self)) / task), *options)

    def scores(self, pretrained: Path, tasks: Sequence[str], seed: int = 0,
               **options) -> dict[str, float]:
        """Fine-tune on each task, and return the metrics that the papers report."""
        return {column: score for task in tasks for column, score in scores(
            self.tuned(pretrained, task, seed, **options)).items()}

    @property
    def about(self) -> str:
        tasks = f'GLUE in {self.glue}' if self.glue else 'local tasks in the formats of GLUE'
        return f'{super().about}; tasks: {tasks}'


def loss_of(run: Path) -> float:
    return read_summary(run)['mlm_loss']


def scores(run: Path) -> dict[str, float]:
    """Return the metrics of a fine-tuning that the papers report, in per cent, by column."""
    report = read_results(run / 'dev.json')
    return {column: 100 * report[LAST][metric] for column, (task, metric) in COLUMNS.items()
            if task == report['task']}
