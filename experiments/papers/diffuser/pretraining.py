"""Masked language modelling of long documents (Diffuser, Table S.2), in bits."""

from dataclasses import dataclass
from pathlib import Path

from experiments.papers.diffuser.tasks import DIFFUSER, FULL, ONE_HOP, Attentions
from experiments.papers.figures import bars
from experiments.papers.local_data import documentation
from experiments.papers.study import SHIPPED, Attention, Runs, Table, over_seeds
from experiments.runs.checkpoints import LAST
from graphattn.patterns import Full

DEFAULT = {'smoke': (FULL, DIFFUSER),
           'small': (FULL, 'Longformer', 'BigBird', ONE_HOP, DIFFUSER),
           'paper': ('Longformer', 'BigBird', ONE_HOP, DIFFUSER)}
UNITS = ('token', 'character', 'byte')
# The papers call the bits per token BPC.
BITS = {f'bits per {unit}': (f'bits_per_{unit}', 1.) for unit in UNITS}
AT_FIRST = 'bits per token, step 0'
# The paper's bits per token after 0 steps, after 10,000 steps, and at the end. The end is after
# 50,000 steps, except for RoBERTa, which is not trained further.
PAPER = {DIFFUSER: (3.52, 1.96, 1.68), 'Longformer': (None, None, 1.86),
         'BigBird': (None, None, 1.82), FULL: (None, None, 2.02)}
PRINTED = 'paper, 0 steps', 'paper, 10K', 'paper, in the end'


@dataclass(frozen=True)
class Pretraining(Attentions):
    """A study of masked tokens.

    Args:
        corpus: The corpus, see :class:`experiments.tasks.MaskedLanguage`; if omitted, the
            documentation of the installed Python.
        roberta: Initial weights, of a RoBERTa with the sizes of the scale. The training on short
            pieces is then skipped.
        tokenizer: A tokenizer.json; if omitted, a byte-pair tokenizer is trained on the corpus.
    """

    corpus: str | None = None
    roberta: str | None = None
    tokenizer: str | None = None

    @property
    def text(self) -> Path:
        return Path(self.corpus) if self.corpus else documentation(self)

    def trained_on(self, task: str, attention: Attention, seed: int, *options: str,
                   configs: tuple[Path, ...] = ()) -> Path:
        given = {'--data.init_args.tokenizer': self.tokenizer,
                 '--model.init_args.roberta': self.roberta}
        own = [part for option in given.items() if option[1] for part in option]
        whole = (SHIPPED / 'pretraining/diffuser.yaml',) if self.scale == 'paper' else self.configs(
            'diffuser', 'pretraining')
        return Runs(self, task, whole + configs, (
            '--data.init_args.corpus', str(self.text), *self.cache, *own)).trained(
                attention, seed, *options)

    def begun(self, task: str, attention: Attention, seed: int, *options: str) -> Path:
        """Train a model that begins as the models of all kinds of attention do."""
        if not self.roberta and self.scale != 'paper':
            pieces = self.trained_on('pieces', Attention('full', Full()), seed,
                                     configs=self.configs('diffuser', 'pieces'))
            options = '--model.init_args.pretrained', str(pieces / 'checkpoints' / LAST), *options
        return self.trained_on(task, attention, seed, *options)


def main(study: Pretraining) -> Table:
    kinds, seeds, rows = study.kinds(DEFAULT), study.each(1, 3, 1), []
    for name, attention in kinds.items():
        first = over_seeds((study.begun('pretraining-start', attention, seed,
                                        '--trainer.max_steps', '0') for seed in seeds),
                           {AT_FIRST: ('bits_per_token', 1.)})
        runs = [study.begun('pretraining', attention, seed) for seed in seeds]
        rows.append({'attention': name, AT_FIRST: first[AT_FIRST], **over_seeds(runs, BITS),
                     **dict(zip(PRINTED, PAPER.get(name, (None,) * 3)))})
    few = 'a little of ' if study.scale == 'smoke' else ''
    about = f'text: {study.corpus or f"{few}the documentation of this Python"}'
    return Table(rows, bars(rows, 'attention', ['bits per token', 'bits per character'],
                            f'Masked tokens.\n{about}'), about)
