r"""Masked language modelling of long documents (Diffuser, Table S.2), in bits.

    python -m experiments.papers.diffuser.pretraining --scale small
    python -m experiments.papers.diffuser.pretraining --scale paper \
        --corpus data/books_news_wikipedia \
        --roberta data/roberta-base/model.safetensors --tokenizer data/roberta-base/tokenizer.json

All models have the same initialisation and number of steps. The scale ``paper`` starts from
RoBERTa's weights. At smaller scales, each seed first trains a model with full attention on short
pieces, and all models start from it. On long documents alone, a small model learns little but token
frequencies for a long time.

The papers call the bits per token BPC, as Longformer's script does. Here, bits per character and
per byte are reported as well. There are two kinds of baselines. Unigrams and n-grams of bytes
predict every byte from the bytes before, whereas masked models see both sides and most of the text.
The other baseline predicts every token from its two visible neighbours.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jsonargparse.typing import PositiveInt

from experiments.data.ngrams import ngram_bits
from experiments.data.text.corpus import build_docs, is_held_out, read_documents
from experiments.data.text.encoding import EncodedCorpus
from experiments.papers.diffuser.document_runs import CONFIGS
from experiments.papers.diffuser.task_runs import (
    COUNT,
    DIFFUSER,
    FULL,
    TaskRuns,
    attentions,
    counting_rows,
)
from experiments.papers.few_documents import write_few_documents
from experiments.papers.figures import bars
from experiments.papers.runs import SHIPPED, at_scale, chosen
from experiments.papers.study import ScaleName, Study, data_of
from experiments.runs.command_line import run_function

SEEDS = {'smoke': 1, 'small': 3, 'paper': 1}
DEFAULT = {'smoke': (FULL, DIFFUSER),
           'small': (FULL, 'Longformer', 'BigBird', 'Diffuser, 1 hop', DIFFUSER),
           'paper': ('Longformer', 'BigBird', 'Diffuser, 1 hop', DIFFUSER)}
ORDERS = (0, 2, 5)  # numbers of context bytes of the n-grams
UNITS = ('token', 'character', 'byte')
BITS = {f'bits per {unit}': (f'bits_per_{unit}', 1.) for unit in UNITS}
AT_FIRST = 'bits per token, step 0'
# The paper's bits per token after 0 steps, after 10,000 steps, and at the end. The end is after
# 50,000 steps, except for RoBERTa, which is not trained further.
PAPER = {DIFFUSER: (3.52, 1.96, 1.68), 'Longformer': (None, None, 1.86),
         'BigBird': (None, None, 1.82), FULL: (None, None, 2.02)}
MAX_BYTES, MAX_TOKENS = 2**25, 2**23  # maximum size of each part, for the n-grams


def main(scale: ScaleName = 'small', names: list[str] | None = None, corpus: str | None = None,
         roberta: str | None = None, tokenizer: str | None = None,
         seeds: PositiveInt | None = None, out: Path = Path('runs/studies')) -> None:
    """Pre-train a model with each kind of attention.

    Args:
        scale: Scale of the study: smoke, small or paper.
        names: Names of the kinds of attention.
        corpus: The corpus, see :class:`experiments.tasks.MaskedLanguage`; if omitted, the
            documentation of the installed Python.
        roberta: Initial weights, of a RoBERTa with the sizes of the scale. The training on short
            pieces is then skipped.
        tokenizer: A tokenizer.json; if omitted, a byte-pair tokenizer is trained on the corpus.
        seeds: Number of trainings of each kind of attention.
        out: The folder of all studies.
    """
    study = Study('pretraining', scale, out)
    known = attentions(COUNT[scale])
    names = chosen('names', names or DEFAULT[scale], known)
    text = Path(corpus) if corpus else local_corpus(study)
    options = ['--data.init_args.corpus', str(text), *study.cache]
    options += ['--data.init_args.tokenizer', tokenizer] if tokenizer else []
    configs = ((SHIPPED / 'pretraining/diffuser.yaml',) if scale == 'paper'
               else at_scale(CONFIGS, scale, 'pretraining.yaml'))
    begin = None
    if roberta:
        options += ['--model.init_args.roberta', roberta]
    elif scale != 'paper':
        begin = TaskRuns(study, 'pieces', configs + at_scale(CONFIGS, scale, 'pieces.yaml'),
                         tuple(options))
    runs = TaskRuns(study, 'pretraining', configs, tuple(options), begin)
    number, rows = range(seeds or SEEDS[scale]), []
    for name in names:
        first = runs.scored(known[name], number, {AT_FIRST: ('bits_per_token', 1.)},
                            '--trainer.max_steps', '0', suffix='-start')
        rows.append({'attention': name, AT_FIRST: first[AT_FIRST],
                     **runs.scored(known[name], number, BITS), **dict(zip(
                         ('paper, 0 steps', 'paper, 10K', 'paper, in the end'),
                         PAPER.get(name, (None,) * 3)))})
    rows += [neighbours(runs.trained(known[names[0]], 0)), *byte_models(text)]
    few = 'a little of ' if scale == 'smoke' else ''
    about = f'text: {corpus or f"{few}the documentation of this Python"}'
    figure = bars(rows, 'attention', ['bits per token', 'bits per character'],
                  f'Masked tokens; models that only count are grey.\n{about}')
    study.report(rows, figure, about)


def local_corpus(study: Study) -> Path:
    """Return the folder of the documentation of the installed Python. At the scale smoke, it is a
    small part."""
    return study.made('documentation',
                      write_few_documents if study.scale == 'smoke' else build_docs)


def neighbours(run: Path) -> dict:
    """Return the row of a baseline that predicts each token from the two tokens beside it, on the
    data of a run."""
    data = data_of(run)
    data.setup()
    train, test = (token_documents(data.examples[part].corpus) for part in ('train', 'test'))
    bits = ngram_bits(train, test, 2, data.load_tokenizer().get_vocab_size(), both_sides=True)
    return {'attention': 'tokens, two neighbours', **{
        title: bits * data.size['tokens'] / data.size[f'{unit}s']
        for title, unit in zip(BITS, UNITS)}}


def token_documents(corpus: EncodedCorpus) -> list[np.ndarray]:
    """Return the tokens of the first documents of a corpus, one array for each, up to
    ``MAX_TOKENS`` tokens in total."""
    ends = corpus.sentence_ptr[corpus.document_ptr]
    return np.split(corpus.tokens[:MAX_TOKENS], ends[(0 < ends) & (ends < MAX_TOKENS)])


def byte_models(corpus: Path) -> list[dict]:
    """Return the rows of n-grams of bytes. The n-grams are counted in the training part of a
    corpus, and evaluated on its development part."""
    parts: dict[bool, list[np.ndarray]] = {True: [], False: []}
    left = {True: MAX_BYTES, False: MAX_BYTES}
    num_characters = 0
    for document in read_documents(corpus):
        held_out = is_held_out(document)
        text = ' '.join(document)
        content = np.frombuffer(text.encode(), np.uint8)
        if left[held_out] < content.size:
            continue
        left[held_out] -= content.size
        parts[held_out].append(content)
        num_characters += len(text) if held_out else 0
    num_bytes = sum(content.size for content in parts[True])
    return [{**row, 'bits per character': row['bits per byte'] * num_bytes / num_characters}
            for row in counting_rows(parts[False], parts[True], ORDERS)]


if __name__ == '__main__':
    run_function(main)
