"""Masked language modelling of long documents (Diffuser, Table S.2), in bits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.ngrams import ngram_bits
from experiments.data.text.corpus import is_held_out, read_documents
from experiments.papers.diffuser.tasks import DIFFUSER, FULL, ONE_HOP, Attentions, counting_rows
from experiments.papers.figures import bars
from experiments.papers.local_data import documentation
from experiments.papers.study import SHIPPED, Attention, Runs, Table, data_of, over_seeds
from experiments.runs.checkpoints import LAST
from graphattn.patterns import Full

DEFAULT = {'smoke': (FULL, DIFFUSER),
           'small': (FULL, 'Longformer', 'BigBird', ONE_HOP, DIFFUSER),
           'paper': ('Longformer', 'BigBird', ONE_HOP, DIFFUSER)}
ORDERS = (0, 2, 5)  # numbers of context bytes of the n-grams
UNITS = ('token', 'character', 'byte')
# The papers call the bits per token BPC.
BITS = {f'bits per {unit}': (f'bits_per_{unit}', 1.) for unit in UNITS}
AT_FIRST = 'bits per token, step 0'
# The paper's bits per token after 0 steps, after 10,000 steps, and at the end. The end is after
# 50,000 steps, except for RoBERTa, which is not trained further.
PAPER = {DIFFUSER: (3.52, 1.96, 1.68), 'Longformer': (None, None, 1.86),
         'BigBird': (None, None, 1.82), FULL: (None, None, 2.02)}
PRINTED = 'paper, 0 steps', 'paper, 10K', 'paper, in the end'
MAX_BYTES, MAX_TOKENS = 2**25, 2**23  # maximum size of each part, for the n-grams


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
    first = next(iter(kinds.values()))
    rows += [neighbours(study.begun('pretraining', first, 0)), *byte_models(study.text)]
    few = 'a little of ' if study.scale == 'smoke' else ''
    about = f'text: {study.corpus or f"{few}the documentation of this Python"}'
    return Table(rows, bars(rows, 'attention', ['bits per token', 'bits per character'],
                            f'Masked tokens; models that only count are grey.\n{about}'), about)


def neighbours(run: Path) -> dict:
    data = data_of(run)
    data.setup()
    parts = []
    for part in ('train', 'test'):
        corpus = data.examples[part].corpus
        ends = corpus.sentence_ptr[corpus.document_ptr]
        parts.append(np.split(corpus.tokens[:MAX_TOKENS], ends[(0 < ends) & (ends < MAX_TOKENS)]))
    bits = ngram_bits(*parts, 2, data.load_tokenizer().get_vocab_size(), both_sides=True)
    return {'attention': 'tokens, two neighbours', **{
        title: bits * data.size['tokens'] / data.size[f'{unit}s']
        for title, unit in zip(BITS, UNITS)}}


def byte_models(corpus: Path) -> list[dict]:
    """Return the rows of n-grams of bytes, counted in the training part of a corpus."""
    parts: dict[bool, list[np.ndarray]] = {True: [], False: []}
    left = {True: MAX_BYTES, False: MAX_BYTES}
    num_characters = 0
    for document in read_documents(corpus):
        held_out, text = is_held_out(document), ' '.join(document)
        content = np.frombuffer(text.encode(), np.uint8)
        if left[held_out] < content.size:
            continue
        left[held_out] -= content.size
        parts[held_out].append(content)
        num_characters += len(text) if held_out else 0
    num_bytes = sum(content.size for content in parts[True])
    return [{**row, 'bits per character': row['bits per byte'] * num_bytes / num_characters}
            for row in counting_rows(parts[False], parts[True], ORDERS)]
