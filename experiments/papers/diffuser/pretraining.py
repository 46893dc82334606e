r"""Masked language modelling of long documents (Diffuser, Table S.2), in bits.

    graphattn study pretraining --scale small
    graphattn study pretraining --scale paper \
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
from experiments.data.text.corpus import is_held_out, read_documents
from experiments.data.text.encoding import EncodedCorpus
from experiments.papers.diffuser.documents import CONFIGS
from experiments.papers.diffuser.tasks import (
    COUNT,
    DIFFUSER,
    FULL,
    ONE_HOP,
    attentions,
    counting_rows,
)
from experiments.papers.figures import bars
from experiments.papers.local_data import documentation
from experiments.papers.study import (
    OUT,
    SHIPPED,
    Runs,
    ScaleName,
    Study,
    Table,
    at,
    at_scale,
    chosen,
    data_of,
    over_seeds,
)
from experiments.runs.checkpoints import LAST
from experiments.runs.command_line import run_function

DEFAULT = {'smoke': (FULL, DIFFUSER),
           'small': (FULL, 'Longformer', 'BigBird', ONE_HOP, DIFFUSER),
           'paper': ('Longformer', 'BigBird', ONE_HOP, DIFFUSER)}
ORDERS = (0, 2, 5)  # numbers of context bytes of the n-grams
UNITS = ('token', 'character', 'byte')
BITS = {f'bits per {unit}': (f'bits_per_{unit}', 1.) for unit in UNITS}
AT_FIRST = 'bits per token, step 0'
# The paper's bits per token after 0 steps, after 10,000 steps, and at the end. The end is after
# 50,000 steps, except for RoBERTa, which is not trained further.
PAPER = {DIFFUSER: (3.52, 1.96, 1.68), 'Longformer': (None, None, 1.86),
         'BigBird': (None, None, 1.82), FULL: (None, None, 2.02)}
PRINTED = 'paper, 0 steps', 'paper, 10K', 'paper, in the end'
MAX_BYTES, MAX_TOKENS = 2**25, 2**23  # maximum size of each part, for the n-grams


def main(scale: ScaleName = 'small', names: list[str] | None = None, corpus: str | None = None,
         roberta: str | None = None, tokenizer: str | None = None,
         seeds: PositiveInt | None = None, out: Path = OUT) -> None:
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
    study, known = Study('pretraining', scale, out), attentions(COUNT[scale])
    names = chosen('names', names or DEFAULT[scale], known)
    text = Path(corpus) if corpus else documentation(study)
    options = ('--data.init_args.corpus', str(text), *study.cache)
    options += ('--data.init_args.tokenizer', tokenizer) if tokenizer else ()
    options += ('--model.init_args.roberta', roberta) if roberta else ()
    configs = ((SHIPPED / 'pretraining/diffuser.yaml',) if scale == 'paper'
               else at_scale(CONFIGS, scale, 'pretraining.yaml'))
    runs, start = (Runs(study, name, configs, options) for name in
                   ('pretraining', 'pretraining-start'))
    pieces = Runs(study, 'pieces', configs + at_scale(CONFIGS, scale, 'pieces.yaml'), options)

    def trained(runs: Runs, name: str, seed: int, *more: str) -> Path:
        begin = () if roberta or scale == 'paper' else ('--model.init_args.pretrained', str(
            pieces.trained(known[FULL], seed) / 'checkpoints' / LAST))
        return runs.trained(known[name], seed, *begin, *more)

    numbers, rows = at(scale, (1, 3, 1), seeds), []
    for name in names:
        first = over_seeds((trained(start, name, seed, '--trainer.max_steps', '0')
                            for seed in numbers), {AT_FIRST: ('bits_per_token', 1.)})
        rows.append({'attention': name, AT_FIRST: first[AT_FIRST],
                     **over_seeds((trained(runs, name, seed) for seed in numbers), BITS),
                     **dict(zip(PRINTED, PAPER.get(name, (None,) * 3)))})
    rows += [neighbours(trained(runs, names[0], 0)), *byte_models(text)]
    few = 'a little of ' if scale == 'smoke' else ''
    about = f'text: {corpus or f"{few}the documentation of this Python"}'
    study.report(Table(rows, bars(
        rows, 'attention', ['bits per token', 'bits per character'],
        f'Masked tokens; models that only count are grey.\n{about}'), about))


def neighbours(run: Path) -> dict:
    """Return the row of a baseline that predicts each token from the two tokens beside it."""
    data = data_of(run)
    data.setup()
    train, test = (token_documents(data.examples[part].corpus) for part in ('train', 'test'))
    bits = ngram_bits(train, test, 2, data.load_tokenizer().get_vocab_size(), both_sides=True)
    return {'attention': 'tokens, two neighbours', **{
        title: bits * data.size['tokens'] / data.size[f'{unit}s']
        for title, unit in zip(BITS, UNITS)}}


def token_documents(corpus: EncodedCorpus) -> list[np.ndarray]:
    ends = corpus.sentence_ptr[corpus.document_ptr]
    return np.split(corpus.tokens[:MAX_TOKENS], ends[(0 < ends) & (ends < MAX_TOKENS)])


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


if __name__ == '__main__':
    run_function(main)
