"""Files in the formats of GLUE's eight tasks, and a small pre-trained model."""

from pathlib import Path

import numpy as np
import torch
import yaml

from experiments.data.text.tokenizer import train_tokenizer
from experiments.runs.checkpoints import write_checkpoint
from graphattn.models import Encoder, MaskedLanguageModel
from graphattn.patterns import Full
from graphattn.sources import LearnedMaskSource, PatternSource

WORDS = 'the a cat dog house tree sees finds likes red old small big near under not'.split()
MNLI_FRONT = ['index', 'promptID', 'pairID', 'genre', 'sentence1_binary_parse',
              'sentence2_binary_parse', 'sentence1_parse', 'sentence2_parse', 'sentence1',
              'sentence2']
# Header lines as in the files that GLUE distributes; CoLA's have none.
HEADERS = {
    'MNLI': [*MNLI_FRONT, 'label1', 'gold_label'],
    'QQP': ['id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate'],
    'QNLI': ['index', 'question', 'sentence', 'label'],
    'SST-2': ['sentence', 'label'],
    'STS-B': ['index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1',
              'sentence2', 'score'],
    'MRPC': ['Quality', '#1 ID', '#2 ID', '#1 String', '#2 String'],
    'RTE': ['index', 'sentence1', 'sentence2', 'label'],
}
MNLI_DEV = [*MNLI_FRONT, *(f'label{number}' for number in range(1, 6)), 'gold_label']
LABELS = {'MNLI': ['contradiction', 'neutral', 'entailment'],
          'QNLI': ['entailment', 'not_entailment'], 'RTE': ['entailment', 'not_entailment'],
          'STS-B': ['0.0', '1.25', '3.8', '5.000']}


def line_of(task: str, first: str, second: str, label: str, dev: bool = False) -> str:
    """One line, with the columns that nobody reads filled in as the real ones are."""
    if task == 'CoLA':
        return '\t'.join(['gj04', label, '' if label == '1' else '*', first])
    if task == 'SST-2':
        return '\t'.join([first + ' ', label])
    columns = MNLI_DEV if task == 'MNLI' and dev else HEADERS[task]
    known = {'sentence1': first, 'sentence2': second, 'question1': first, 'question2': second,
             'question': first, 'sentence': second, '#1 String': first, '#2 String': second,
             'label': label, 'gold_label': label, 'is_duplicate': label, 'score': label,
             'Quality': label}
    return '\t'.join(known.get(column, f'( {column} )') for column in columns)


def write_task(folder: Path, task: str, num_train: int = 12, num_dev: int = 7,
               seed: int = 0) -> dict[str, list[tuple[str, str, str]]]:
    """Writes a task's files; what they hold, by file, as first and second sentence and label.

    The label is that of the first word, so the task can be learned.
    """
    rng = np.random.default_rng(seed)
    labels = LABELS.get(task, ['0', '1'])
    devs = ['dev_matched', 'dev_mismatched'] if task == 'MNLI' else ['dev']
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name, size in (('train', num_train), *((dev, num_dev) for dev in devs)):
        rows[name] = []
        for number in range(size):
            first, second = (' '.join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(2))
            choice = number % len(labels)
            rows[name].append((f'{WORDS[2 + choice]} {first}', second, labels[choice]))
        header = MNLI_DEV if name.startswith('dev_') else HEADERS.get(task)
        lines = [line_of(task, *row, dev=name != 'train') for row in rows[name]]
        (folder / f'{name}.tsv').write_text(
            '\n'.join([*(['\t'.join(header)] if header else []), *lines]) + '\n')
    return rows


def write_pretrained(folder: Path, source: str = 'full', num_tokens: int = 120,
                     max_length: int = 40) -> tuple[Path, MaskedLanguageModel]:
    """The folder of a pre-training run: config.yaml, tokenizer.json and a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(lambda: [' '.join(WORDS)] * 3, 100)
    tokenizer.save(str(folder / 'tokenizer.json'))
    sources = {
        'full': (PatternSource(Full()), 'graphattn.sources.PatternSource', {'pattern': 'Full'}),
        'learned': (LearnedMaskSource(2, max_length, init_std=1.),
                    'graphattn.sources.LearnedMaskSource', {'heads': 2, 'size': max_length}),
    }
    object_, class_path, arguments = sources[source]
    sizes = {'num_tokens': num_tokens, 'max_length': max_length, 'channels': 16, 'heads': 2,
             'num_layers': 2, 'num_segments': 2, 'norm_first': False,
             'share_source': source == 'learned'}
    torch.manual_seed(0)
    model = MaskedLanguageModel(Encoder(object_, **sizes)).eval()
    encoder = {'class_path': 'graphattn.models.Encoder', 'init_args': {
        **sizes, 'source': {'class_path': class_path, 'init_args': arguments}}}
    config = {'model': {
        'class_path': 'experiments.modules.LanguageModelling',
        'init_args': {'model': {'class_path': 'graphattn.models.MaskedLanguageModel',
                                'init_args': {'encoder': encoder}}}}}
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    checkpoint = folder / 'checkpoints/last.ckpt'
    checkpoint.parent.mkdir()
    state = {f'model.{name}': value for name, value in model.state_dict().items()}
    write_checkpoint({'state_dict': state}, checkpoint)
    return checkpoint, model
