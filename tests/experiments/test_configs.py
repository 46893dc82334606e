"""Every config that ships takes a step, on the shortest and the longest input of its task.

What is wide or deep is made small. Attention, hops, lengths, pooling and dropout are the config's,
for they decide whether a step can be taken at all. No data set is read but scikit-learn's digits.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor, nn

from experiments import train
from experiments.data.batch import TokenBatch
from experiments.runs.checkpoints import write_checkpoint
from experiments.runs.config_file import laid_over
from experiments.runs.shipped import OF_SEQUENCES, PARTS
from graphattn.models import CausalLanguageModel

pytestmark = pytest.mark.slow

EXPERIMENTS = Path(train.__file__).parent
CONFIGS, PAPERS = EXPERIMENTS / 'configs', EXPERIMENTS / 'papers'
# Configs of studies that are laid over others, and what a study says where a config is silent.
OVER = {'pretrain_dam': ['pretrain'], 'pretrain_soft': ['pretrain'], 'pretrain_mlm': ['pretrain'],
        'pretrain_sbm': ['pretrain', 'pretrain_mlm'], 'finetune_sbm': ['finetune'],
        'pieces': ['pretraining'], 'triviaqa': ['questions'], 'wikihop': ['choices']}
SOURCE = {'class_path': 'graphattn.sources.PatternSource',
          'init_args': {'pattern': 'diffuser(cls_global=True)'}}

SELF_PRETRAINING = CONFIGS / 'lra/self_pretraining.yaml'  # laid over any of the tasks
OWN_DATA = [CONFIGS / f'{name}.yaml' for name in ('text', 'image_folder', 'tokens')]
GRAPHS = CONFIGS / 'graphs'  # tests/experiments/test_graph_configs.py
FROM_PRETRAINING = CONFIGS / 'documents/from_pretraining.yaml'  # and over any of the collections


def whole_ones(folder: Path) -> list[Path]:
    """Return whole configs: those beside a folder of their name are laid under each config in
    there, and the user's own data and graphs have tests of their own."""
    return sorted(path for path in folder.rglob('*.yaml')
                  if not path.with_suffix('').is_dir()
                  and path not in (SELF_PRETRAINING, FROM_PRETRAINING, *OWN_DATA)
                  and GRAPHS not in path.parents and path.parent not in (OF_SEQUENCES, PARTS))


PATHS = whole_ones(CONFIGS)
paths = pytest.mark.parametrize('path', PATHS,
                                ids=lambda path: f'{path.parent.name}-{path.stem}')
# Those for smoke tests train in the tests of their studies.
study_paths = pytest.mark.parametrize(
    'path', [path for path in whole_ones(PAPERS) if 'smoke' not in path.parts],
    ids=lambda path: '-'.join(path.relative_to(PAPERS).with_suffix('').parts))


@paths
def test_a_config_takes_a_step_on_every_length(path, tmp_path):
    take_steps(*built(with_pretraining(whole(path), tmp_path)))


@pytest.mark.parametrize('name', ['imdb', 'amazon2048'])
def test_collections_are_classified_with_the_pre_trained_encoder(name, tmp_path):
    config = laid_over(CONFIGS / f'documents/{name}.yaml', FROM_PRETRAINING)
    config = with_pretraining(config, tmp_path)
    module, data = built(config)
    saved = torch.load(config['model']['init_args']['pretrained'], weights_only=True)['state_dict']
    for part, value in module.model.encoder.state_dict().items():
        assert torch.equal(value, saved[f'model.encoder.{part}'])
    take_steps(module, data)


def with_pretraining(config: dict, folder: Path) -> dict:
    """A config whose pre-training, if it has one, lies in a folder."""
    arguments = config['model']['init_args']
    if 'pretrained' in arguments:  # runs/GROUP/NAME/checkpoints/last.ckpt
        _, group, name, *_ = Path(arguments['pretrained']).parts
        pretraining = laid_over(CONFIGS / group / f'{name}.yaml')
        arguments['pretrained'] = write_pretraining(folder, pretraining)
    return config


@pytest.mark.parametrize('name', ['digits/sbm', 'lra/sbm/text', 'lra/clean/listops'])
def test_the_command_line_lays_a_config_over_its_base(name):
    path = CONFIGS / f'{name}.yaml'
    paths = [part for part in (path.parent.with_suffix('.yaml'), path) if part.exists()]
    parsed = Parsed('fit', [f'--config={part}' for part in paths]).config.as_dict()
    assert within(laid_over(*paths), parsed) == []


@pytest.mark.parametrize('names', [
    ['digits/sbm'], ['lra/sbm', 'lra/sbm/retrieval'],
    ['lra/clean', 'lra/clean/listops', 'lra/self_pretraining']])  # which takes other classes
def test_defaults_of_nested_classes_are_those_that_jsonargparse_fills_in(names, monkeypatch):
    options = [f"--config={json.dumps(laid_over(CONFIGS / f'{name}.yaml'))}" for name in names]
    parsed = Parsed('fit', options).config
    monkeypatch.setattr(train, 'Parser', LightningArgumentParser)
    monkeypatch.setattr(train, '_PARSERS', {})
    assert Parsed('fit', options).config == parsed
    encoder = parsed['model']['init_args']['model']['init_args']['encoder']['init_args']
    assert encoder['embedding_std'] == 0.02  # which no config says


@pytest.mark.parametrize('name', ['clean/listops', 'clean/retrieval', 'official/text', 'sbm/image'])
def test_self_pretraining_takes_a_step_on_every_length(name):
    config = whole(CONFIGS / f'lra/{name}.yaml')
    make_small(config)
    cli = train.TrainCLI('fit', ['--config', json.dumps(config), '--config', str(SELF_PRETRAINING),
                                '--trainer.accelerator', 'cpu'])
    take_steps(cli.model, cli.datamodule)


@study_paths
def test_a_config_of_a_study_takes_a_step_on_every_length(path, tmp_path):
    config = of_study(path)
    if path.stem.startswith('finetune'):
        pretraining = of_study(path.with_stem(path.stem.replace('finetune', 'pretrain')))
        config['model']['init_args'] |= {'task': 'RTE',
                                         'pretrained': write_pretraining(tmp_path, pretraining)}
        config['data']['init_args'] |= {'task': 'RTE', 'path': 'data'}
    take_steps(*built(config))


def test_no_two_configs_leave_their_runs_in_one_folder():
    folders = [whole(path)['trainer']['default_root_dir'] for path in PATHS]
    assert len(folders) == len(set(folders)) > 0


# Models ##############################################################################


class Parsed(train.TrainCLI):
    """The command line up to the moment when anything would be made of what it says."""

    def instantiate_classes(self):
        pass


def within(expected: dict, found: dict, where: str = '') -> list[str]:
    """Return the places where a config differs from what is expected."""
    return [place for name, value in expected.items()
            for place in (within(value, found[name], f'{where}.{name}') if isinstance(value, dict)
                          else [] if str(value).strip('[]') in str(found.get(name))
                          else [f'{where}.{name}'])]


def built(config: dict) -> tuple[L.LightningModule, L.LightningDataModule]:
    """Build a config as the command line does, small."""
    make_small(config)
    config['data']['init_args']['batch_size'] = 8
    config['trainer'] |= {'accelerator': 'cpu', 'enable_progress_bar': False}
    cli = train.TrainCLI('fit', config)
    return cli.model, cli.datamodule


def make_small(config: dict) -> None:
    """Makes of whatever has layers two narrow ones, of one head unless the source is for more."""
    for value in config.values():
        if isinstance(value, dict):
            make_small(value)
    if 'num_layers' in config:
        slot = config.get('source') or config.get('attention')
        slot = slot.get('init_args', {}) if isinstance(slot, dict) else {}  # or a source per layer
        heads = slot.get('heads', 1)
        config |= {'num_layers': min(config['num_layers'], 2), 'heads': heads,
                   'channels': 4 * heads, 'hidden_channels': 8}
        if 'channels' in slot:
            slot['channels'] = 4 * heads
    if 'head_channels' in config:
        config['head_channels'] = 4


def whole(path: Path) -> dict:
    """A config, on top of the one that is laid under it."""
    return laid_over(*(part for part in (path.parent.with_suffix('.yaml'), path) if part.exists()))


def of_study(path: Path) -> dict:
    """A study's config on top of those below it, with edges where it leaves them to the study."""
    below = [next(PAPERS.glob(f'*/configs/{path.parent.name}/{name}.yaml'))
             for name in OVER.get(path.stem, [])]
    if path.parent.name == 'lra':
        below = [CONFIGS / 'lra/clean.yaml', CONFIGS / 'lra/clean' / path.name,
                 path.parent.with_suffix('.yaml')]
    config = laid_over(*below, path)
    model = config['model']['init_args'].get('model')
    if model is not None and 'encoder' in model['init_args']:
        model['init_args']['encoder']['init_args'].setdefault('source', deepcopy(SOURCE))
    return config


def write_pretraining(folder: Path, config: dict) -> str:
    """The checkpoint of a run of ``config``, which has not learned anything."""
    module, _ = built(config)
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    path = folder / 'checkpoints/last.ckpt'
    path.parent.mkdir()
    write_checkpoint({'state_dict': module.state_dict()}, path)
    return str(path)


# Steps ###############################################################################


def take_steps(module: L.LightningModule, data: L.LightningDataModule) -> None:
    torch.manual_seed(0)
    module.train()
    for batch in batches(module, data):
        module.zero_grad()
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='You are trying to `self.log')
            loss = module.training_step(batch, 0)
        loss.backward()
        assert loss.isfinite()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()
                     if parameter.grad is not None}
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        assert bool(module.model.encoder.token_embedding.weight.grad.any())


def batches(module: L.LightningModule, data: L.LightningDataModule) -> Iterator[tuple]:
    """Batches as the task makes them, random but for the digits: of the shortest sequences that it
    can give, and of a longest one beside such."""
    if hasattr(data, 'draw'):  # all are of one length
        return iter([data.draw(np.random.default_rng(0))])
    name = type(data).__name__
    if name not in BATCHES:
        pytest.fail(f"BATCHES must say what batches of {name} are like")
    return BATCHES[name](module.model, data, sys.modules[type(data).__module__])


def digits(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    data.setup()
    yield task.collate_images([data.train[number] for number in range(2)])


def documents(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """The shortest is of no words: [CLS] [SEP]."""
    label = torch.tensor(model.num_classes - 1)
    for lengths in ragged(2, data.max_length):
        yield task.collate([(random_ids(model, length), label) for length in lengths])


def glue(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """The shortest has one word in each sentence: [CLS] x [SEP] y [SEP]."""
    num_sentences, num_classes = len(task.TASKS[data.task].text), len(task.TASKS[data.task].classes)
    label = torch.tensor(num_classes - 1 if num_classes else 2.5)
    for lengths in ragged(2 * num_sentences + 1, data.max_length):
        yield task.collate([(random_ids(model, length), torch.tensor(length // num_sentences),
                             label) for length in lengths])


def long_range(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """The shortest has one token, and [CLS] if the task has it; such a one is in every pair. What
    predicts the next token has one to predict."""
    predicts = isinstance(model, CausalLanguageModel)
    label = [0, 0] if predicts else [model.num_classes - 1] * (2 // model.sequences_per_example)
    for lengths in ragged(1 + data.cls + predicts, data.max_length):
        some = [random_ids(model, length).numpy() for length in lengths]
        yield task.collate(task.Sequences.of(some, label))


def masked_language(model: nn.Module, data: L.LightningDataModule,
                    task: ModuleType) -> Iterator[tuple]:
    """The shortest has one word in each segment; one token of the longer sequence is hidden."""
    for lengths in ragged(5 if data.next_sentence else 3, data.max_length):
        ptr = torch.tensor([0, *lengths]).cumsum(0)
        segments = [(torch.arange(length) > length // 2) & data.next_sentence
                    for length in lengths]
        label = torch.tensor([0, 1] if data.next_sentence else [])
        yield task.TextBatch(random_ids(model, sum(lengths)), ptr, torch.cat(segments).long(),
                             torch.tensor([1]), random_ids(model, 1), label.long())


def questions(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """The shortest window has a word of the question, and one of the text, which is the answer."""
    for lengths in ragged(task.NUM_SPECIAL + 2, data.max_length):
        ptr = torch.tensor([0, *lengths]).cumsum(0)
        tokens = random_ids(model, sum(lengths))
        segments = torch.cat([torch.arange(length) > 2 for length in lengths]).long()
        yield task.QuestionBatch(tokens, ptr, segments, torch.tensor([3, 3]), ptr[:-1] + 3,
                                 ptr[1:] - 2, torch.tensor([0, 1, 2]),
                                 torch.zeros(len(tokens), 2).long(), ['', ''], ['0', '1'], [(), ()])


def choices(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """Two questions of two choices, each in a sequence of its own, or both in one."""
    is_alone = type(data.questions).__name__ == 'Swag'
    for lengths in ragged(task.Choices.shortest, data.max_length):
        lengths = [length for length in lengths for _ in range(2 if is_alone else 1)]
        ptr = torch.tensor([0, *lengths]).cumsum(0)
        segments = torch.cat([torch.arange(length) > 2 for length in lengths]).long()
        selected = ptr[:-1] if is_alone else torch.stack([ptr[:-1] + 1, ptr[:-1] + 3]).T.flatten()
        yield task.ChoiceBatch(random_ids(model, sum(lengths)), ptr, segments,
                               torch.full((len(lengths),), 0 if is_alone else 4), selected,
                               torch.arange(4), torch.tensor([0, 2, 4]), torch.tensor([1, 0]))


def images(model: nn.Module, data: L.LightningDataModule, task: ModuleType) -> Iterator[tuple]:
    """All are of one size; the model's last entry is none of a pixel."""
    tokens = random_ids(model, 2 * data.max_length).clamp(
        max=model.encoder.token_embedding.num_embeddings - 2)
    yield TokenBatch(tokens, data.max_length * torch.arange(3), torch.zeros(2).long())


def ragged(shortest: int, longest: int) -> Iterator[tuple[int, int]]:
    return ((length, shortest) for length in (shortest, longest))


def random_ids(model: nn.Module, length: int) -> Tensor:
    return torch.randint(model.encoder.token_embedding.num_embeddings, (length,))


BATCHES = {'Choices': choices, 'Digits': digits, 'Documents': documents, 'Glue': glue,
           'Images': images, 'LongRange': long_range, 'MaskedLanguage': masked_language,
           'Questions': questions}
