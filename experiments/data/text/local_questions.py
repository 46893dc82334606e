r"""Replacements of SQuAD, SWAG, WikiHop and TriviaQA, in their file formats, made from installed
documentation.

    python -m experiments.data.text.local_questions --out data/local_questions

They are none of these data sets, and results on them are not results on these data sets. They are
made from docstrings of the installed Python and its packages.
:func:`experiments.data.text.document_files.part_of` divides the docstrings by their text into
training, development and testing.

- ``squad/train.json``, ``dev.json``, ``test.json``: the first sentence of a docstring, or a
  definition in it, has a gap. The answer is the word of the rest of the docstring that fills the
  gap. On request, some words do not occur in the rest, as in SQuAD 2.0.
- ``swag/train.csv``, ``val.csv``, ``test.csv``: the answer is which of four sentences follows a
  given sentence. The other three sentences are from other docstrings.
- ``wikihop/train.json``, ``dev.json``, ``test.json``, and ``triviaqa/`` with the same names and the
  folder ``evidence``: the gaps of ``squad`` again, to be filled from the text of the gap and those
  of two other gaps.
"""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.data.sequences import check_at_least
from experiments.data.text.choice_files import NUM_ENDINGS
from experiments.data.text.corpus import Document, distinct, installed_docstrings, new_data
from experiments.data.text.document_files import PARTS, part_of
from experiments.runs.command_line import run_function

GAP = '_'
MIN_CONTEXT = 20  # words
MAX_SENTENCES, MAX_GAPS = 8, 3
NUM_OTHERS, MAX_QUESTION = 2, 40  # texts without the answer; words
SWAG_NAMES = {'train': 'train', 'dev': 'val', 'test': 'test'}
SWAG_COLUMNS = ('', 'video-id', 'fold-ind', 'startphrase', 'sent1', 'sent2', 'gold-source',
                *(f'ending{number}' for number in range(NUM_ENDINGS)), 'label')
_DEFINES = re.compile(r'\b(is|are) (a|an|the|any|one)\b|\b(means|denotes|defines|refers to)\b')
_WORD = re.compile(r'(?<![\w-])[a-z]{4,}(?![\w-])')
COMMON = frozenset('''about also been both each else even from given gives have here into itself
just like many more most much must none only other over same should some such than that their them
then there these they this those thus used uses using very want well were what when where whether
which while will with within without would your'''.split())


def build_local_questions(out: Path, documents: Iterable[tuple[str, Document]],
                          share_without: float = 0., seed: int = 0) -> None:
    """Write the files of all replacements. Either all files are written or none."""
    if not 0. <= share_without < 1.:
        raise ValueError(f"'share_without' must be in [0, 1) (got {share_without})")
    check_at_least(0, seed=seed)
    parts: dict[str, list[Document]] = {part: [] for part in PARTS}
    with new_data(out) as folder:
        for _, document in documents:
            parts[part_of(' '.join(document))].append(document)
        for name in ('squad', 'swag', 'wikihop', 'triviaqa/evidence/wikipedia'):
            (folder / name).mkdir(parents=True)
        for number, (part, some) in enumerate(parts.items()):
            rng = np.random.default_rng((seed, number))
            paragraphs = [paragraph for document in some
                          for paragraph in gaps(document, share_without, rng)]
            rows = following_sentences(some, rng)
            if not paragraphs or not rows:
                raise ValueError(f"'documents' must be enough for questions in every part (got "
                                 f"{len(paragraphs)} gaps and {len(rows)} choices for {part}); "
                                 f"pass more documents")
            rows_of_part = (row for paragraph in paragraphs for row in paragraph['qas'])
            for place, row in enumerate(rows_of_part):
                row['id'] = f'{part}-{place}'
            content = {'version': 'local', 'data': [{'title': part, 'paragraphs': paragraphs}]}
            (folder / 'squad' / f'{part}.json').write_text(
                json.dumps(content, ensure_ascii=False, indent=1) + '\n', encoding='utf-8')
            with (folder / 'swag' / f'{SWAG_NAMES[part]}.csv').open(
                    'w', encoding='utf-8', newline='') as file:
                csv.writer(file).writerows([SWAG_COLUMNS, *rows])
            write_with_other_texts(folder, part, paragraphs, rng)


def write_with_other_texts(folder: Path, part: str, paragraphs: list[dict],
                           rng: np.random.Generator) -> None:
    texts = [paragraph['context'] for paragraph in paragraphs]
    answers = sorted({row['answers'][0]['text'] for paragraph in paragraphs
                      for row in paragraph['qas'] if row['answers']})
    hop, trivia = [], []
    for number, text in enumerate(texts):
        page = f'{part}-{number}.txt'
        (folder / 'triviaqa/evidence/wikipedia' / page).write_text(text, encoding='utf-8')
        for row in paragraphs[number]['qas']:
            if not row['answers'] or len(row['question'].split()) > MAX_QUESTION:
                continue
            answer = row['answers'][0]['text']
            read = rng.permutation([number, *rng.integers(len(texts), size=NUM_OTHERS)])
            others = set(rng.choice(answers, NUM_ENDINGS - 1).tolist())
            hop.append({'id': row['id'], 'query': row['question'], 'answer': answer,
                        'candidates': sorted({answer} | others),
                        'supports': [texts[place] for place in read]})
            pages = [{'Filename': f'{part}-{place}.txt'} for place in dict.fromkeys(read.tolist())]
            names = {'Value': answer, 'Aliases': [answer], 'NormalizedAliases': [answer]}
            trivia.append({'QuestionId': row['id'], 'Question': row['question'], 'Answer': names,
                           'EntityPages': pages})
    whole = {'Domain': 'Wikipedia', 'VerifiedEval': False, 'Data': trivia}
    for name, content in (('wikihop', hop), ('triviaqa', whole)):
        (folder / name / f'{part}.json').write_text(
            json.dumps(content, ensure_ascii=False, indent=1) + '\n', encoding='utf-8')


def gaps(document: Document, share_without: float, rng: np.random.Generator) -> list[dict]:
    """Return the paragraphs that a docstring contributes to the replacement of SQuAD, each with the
    gaps of one sentence: the first of the docstring, or a definition."""
    asked = [0, *(place for place, sentence in enumerate(document[1:], 1)
                  if _DEFINES.search(sentence))]
    paragraphs = []
    for place in asked:
        first = max(0, place - MAX_SENTENCES // 2)
        rest = document[first:place] + document[place + 1:first + MAX_SENTENCES + 1]
        context = ' '.join(rest)
        if len(context.split()) < MIN_CONTEXT:
            continue
        words: dict[bool, list[re.Match]] = {True: [], False: []}
        for found in _WORD.finditer(document[place]):
            if found[0] not in COMMON:
                words[_place_of(found[0], context) is None].append(found)
        rows = []
        for _ in range(MAX_GAPS):
            own = words[bool(rng.random() < share_without)]
            if own:
                rows.append(_gap(document[place], own.pop(rng.integers(len(own))), context))
        if rows:
            paragraphs.append({'context': context, 'qas': rows})
    return paragraphs


def _gap(sentence: str, word: re.Match, context: str) -> dict:
    place = _place_of(word[0], context)
    answers = [] if place is None else [{'text': word[0], 'answer_start': place}]
    return {'id': '', 'question': sentence[:word.start()] + GAP + sentence[word.end():],
            'is_impossible': place is None, 'answers': answers}


def _place_of(word: str, text: str) -> int | None:
    found = re.search(rf'(?<![\w-]){word}(?![\w-])', text)
    return None if found is None else found.start()


def following_sentences(documents: list[Document],
                        rng: np.random.Generator) -> list[tuple[object, ...]]:
    """Return the rows that replace SWAG, each with a sentence, four possible next sentences, and
    the index of the right one."""
    pairs = [pair for document in documents for pair in zip(document, document[1:])]
    if len(pairs) <= NUM_ENDINGS:
        return []
    rows = []
    for number, (first, second) in enumerate(pairs):
        others = rng.choice(len(pairs) - 1, NUM_ENDINGS - 1, replace=False)
        endings = [pairs[other + (other >= number)][1] for other in others]
        label = int(rng.integers(NUM_ENDINGS))
        endings.insert(label, second)
        rows.append((number, f'local_{number}', number, first, first, '', 'gold', *endings, label))
    return rows


def main(out: str = 'data/local_questions', share_without: float = 0., seed: int = 0) -> None:
    """Make stand-ins for SQuAD, SWAG, WikiHop and TriviaQA from installed documentation.

    Args:
        out: The folder to write.
        share_without: Probability that no word of the rest of the docstring fills a gap.
        seed: Seed of the gaps and of the wrong sentences.
    """
    build_local_questions(Path(out), distinct(installed_docstrings()), share_without, seed)
    print(f'written to {out}')


if __name__ == '__main__':
    run_function(main)
