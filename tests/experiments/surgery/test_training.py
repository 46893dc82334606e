"""Adapters, options of the command, and other trainers."""

import copy
import json
from importlib.util import find_spec

import lightning
import pytest
import torch

from experiments import sparsify
from experiments.surgery import adaptation, loss_of, mean_loss
from graphattn.hugging_face import attach, detach, load_attached, save_attached
from graphattn.patterns import EdgeList, parse
from graphattn.sources import LearnedMaskSource, PatternSource
from tests.experiments.surgery.test_surgery import LENGTH, command, folder, gpt2, ids

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.slow
__all__ = ['folder']  # a fixture


def test_an_interrupted_command_with_adapters_ends_as_a_whole_one(folder, monkeypatch):
    pytest.importorskip('peft')
    whole = json.loads((command(folder, lora=2) / 'results.json').read_text())
    (folder / 'out').rename(folder / 'whole')
    monkeypatch.setattr(sparsify, 'save_attached', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(folder, lora=2)
    monkeypatch.undo()
    monkeypatch.setattr(adaptation, '_objective', lambda *_: 1 / 0)  # all steps are done
    again = json.loads((command(folder, lora=2) / 'results.json').read_text())
    for results in (whole, again):
        del results['lengths']  # which have times
    assert again == whole


@pytest.mark.parametrize('options, match', [
    (dict(candidates=['window']), "'candidates' must contain only .*windows, .*got 'window'"),
    (dict(candidates=[]), "'candidates' must contain only names from .*got 'nothing'"),
    (dict(lora=0), "'lora' must be positive")])
def test_options_that_are_refused(folder, options, match):
    with pytest.raises(ValueError, match=match):
        command(folder, **options)
    assert not (folder / 'out').exists()


@pytest.mark.skipif(find_spec('peft') is not None, reason='peft is there')
def test_the_package_of_adapters_is_named(folder):
    with pytest.raises(ValueError, match="'lora' needs the package peft .*pip install peft"):
        command(folder, lora=4)


def test_adapters_are_trained_and_merged(folder):
    pytest.importorskip('peft')
    out = command(folder, lora=2, lr=1e-2)
    results = json.loads((out / 'results.json').read_text())
    model, dense = load_attached(out).eval(), gpt2()
    assert mean_loss(model, ids()[:6], loss_of(model), 4) == pytest.approx(results['adapted'])
    names = dict(dense.named_parameters())
    trained = {name for name, value in model.named_parameters() if name in names
               and not torch.equal(value, names[name])}
    assert trained and all(name.endswith('weight') and 'ln' not in name and 'wte' not in name
                           for name in trained)
    for name in trained:  # by matrices of low rank
        change = (dict(model.named_parameters())[name] - names[name]).detach()
        assert torch.linalg.matrix_rank(change, rtol=1e-4) <= 2


SOURCES = {'a pattern': lambda: 'SlidingWindow(2)',
           'listed edges': lambda: PatternSource([EdgeList(LENGTH, torch.stack([
               torch.arange(LENGTH), torch.arange(LENGTH)])), parse('SlidingWindow(1)')]),
           'a learned mask': lambda: LearnedMaskSource(2, LENGTH, mode='dam_unstructured')}


def train_by_transformers(model, folder):
    pytest.importorskip('accelerate')
    data = [{'input_ids': row, 'labels': row} for row in ids(12, padded=False)]
    settings = transformers.TrainingArguments(
        str(folder / 'runs'), max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2,
        report_to='none', disable_tqdm=True, use_cpu=True, save_strategy='no')
    transformers.Trainer(model, settings, train_dataset=data).train()


class Language(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train_by_lightning(model, folder):
    data = torch.utils.data.DataLoader(ids(12, padded=False), batch_size=4)
    lightning.Trainer(max_steps=3, accelerator='cpu', logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False,
                      default_root_dir=folder).fit(Language(model), data)


@pytest.mark.parametrize('train, source', [
    *((train_by_transformers, source) for source in SOURCES),
    (train_by_lightning, 'a learned mask')])
def test_a_trainer_trains_an_attached_model(train, source, tmp_path):
    model = attach(gpt2(), SOURCES[source]()).train()
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, tmp_path)
    for name, value in model.named_parameters():  # also those of sources
        assert not torch.equal(value, before[name]), name
    save_attached(model, tmp_path / 'saved')
    losses = [mean_loss(one.eval(), ids(4, padded=False), loss_of(model), 4)
              for one in (model, load_attached(tmp_path / 'saved'))]
    assert losses[0] == losses[1]
    assert not hasattr(detach(model), 'graph_attachment')
