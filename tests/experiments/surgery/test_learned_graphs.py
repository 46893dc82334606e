"""Graphs that are learned from a fit, adapters, and other trainers."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from experiments import sparsify
from experiments.surgery import (
    Adaptation,
    LearnedGraphs,
    adapt,
    adaptation,
    learned_graphs,
    loss_of,
    mean_loss,
)
from graphattn.hugging_face import (
    attach,
    attachment,
    detach,
    fit,
    load_attached,
    profile,
    save_attached,
)
from graphattn.patterns import Causal, EdgeList, parse
from graphattn.sources import LearnedMaskSource, PatternSource
from tests.experiments.surgery.test_surgery import LENGTH, bert, command, folder, gpt2, ids

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.slow
__all__ = ['folder']  # a fixture
WHOLE = ids(padded=False)


def fitted(model, density=.4):
    return fit(profile(model, [ids(4, padded=False)]), density)


@pytest.mark.parametrize('build, is_causal', [(gpt2, True), (bert, False)])
def test_masks_begin_at_the_edges_of_the_fit(build, is_causal):
    model = build()
    chosen = fitted(model)
    learned = LearnedGraphs(model, chosen, WHOLE, is_causal)
    allowed = Causal() if is_causal else parse('Full()')
    expected = total = 0
    for number, name in enumerate(chosen.layers):
        source = model.get_submodule(name).graph_source
        assert isinstance(source, LearnedMaskSource)
        patterns = [parse(pattern) for pattern, at in zip(chosen.patterns, chosen.layer)
                    if at == number]
        for pattern, probability in zip(patterns, source.probability().detach()):
            on = (pattern & allowed).build(LENGTH).to_mask()
            assert (probability[on] > .94).all() and (probability[~on] < .05).all()
            expected += float(probability[allowed.build(LENGTH).to_mask()].sum())
            total += int(on.sum())
    itself = LENGTH * len(chosen.patterns)  # which are surer
    assert expected == pytest.approx(total, abs=.06 * itself) and float(learned.penalty()) < .2
    frozen = learned.freeze(chosen)
    for before, after in zip(chosen.patterns, frozen.patterns):
        on = (parse(before) & allowed).build(LENGTH)
        assert parse(after).build(LENGTH) == on
    assert frozen.density.mean() == pytest.approx(total / len(chosen.patterns) / (
        LENGTH * (LENGTH + 1) / 2 if is_causal else LENGTH**2))


@pytest.mark.parametrize('build, is_causal', [(gpt2, True), (bert, False)])
def test_edges_count_by_the_sequences_that_have_them(build, is_causal):
    model, tokens = build(), ids()
    chosen = fitted(model)
    learned = LearnedGraphs(model, chosen, tokens, is_causal)
    before = pairs_of(chosen, tokens, is_causal)
    assert learned.budget == pytest.approx(before.mean())
    with torch.no_grad():
        for logit in learned.logits:
            logit.add_(torch.randn(logit.shape) * (logit.abs() < 15))
    after = learned.freeze(chosen)
    np.testing.assert_allclose(after.density, pairs_of(after, tokens, is_causal))
    assert .95 * before.mean() < after.density.mean() <= before.mean() + 1e-9
    assert after.patterns != chosen.patterns


def pairs_of(chosen, tokens, is_causal):
    """The share of the pairs of all sequences that are edges, of each head."""
    lengths = (tokens >= 0).sum(1).tolist()
    allowed = Causal() if is_causal else parse('Full()')
    pairs = sum(length * (length + 1) // 2 if is_causal else length**2 for length in lengths)
    return np.array([sum((parse(pattern) & allowed).build(length, crop=True).num_edges
                         for length in lengths) / pairs for pattern in chosen.patterns])


def test_the_penalty_keeps_the_number_of_edges():
    model = gpt2()
    learned = LearnedGraphs(model, fitted(model), WHOLE, is_causal=True)
    assert learned.penalty() < .1
    with torch.no_grad():
        for logit in learned.logits:
            logit[logit.abs() < 10] = 3.
    assert 1 < learned.penalty() < 1 / .3
    before = float(learned.penalty())
    optimizer = torch.optim.Adam(learned.logits, lr=.5)
    for _ in range(20):
        optimizer.zero_grad()
        learned.penalty().backward()
        optimizer.step()
    assert learned.penalty() < .1 * before


def test_useful_edges_are_learned_and_others_are_lost():
    """The next token is the one two before. At first there are edges to the last five tokens, which
    are twice as many as there may be."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 19, (200, 3), generator=generator).repeat(1, LENGTH // 3)
    model = gpt2()
    chosen = fit(profile(model, [tokens[:4]], patterns=['SlidingWindow(4)']), 1.)
    learned = LearnedGraphs(model, chosen, tokens, is_causal=True)
    learned.budget /= 2
    losses = adapt(model, tokens, loss_of(model), Adaptation(120, 2e-2, 8),
                   penalty=learned.penalty)
    frozen = learned.freeze(chosen)
    assert losses[-1] < .7 * losses[0]
    kept, others = ([mask_at(parse(pattern), distance) for pattern in frozen.patterns]
                    for distance in (2, 3))
    assert max(kept) > .8 and max(kept) > 1.5 * max(others)
    assert frozen.density.mean() <= float(learned.budget) + 1e-6


def mask_at(pattern, distance):
    """The share of queries that attend to the key at a distance."""
    return pattern.build(LENGTH).to_mask().diagonal(-distance).float().mean().item()


def test_long_sequences_are_refused(folder, monkeypatch):
    with pytest.raises(ValueError, match="'length' must be at most 1024 to learn graphs"):
        LearnedGraphs(gpt2(), None, torch.zeros(1, 1025), is_causal=True)
    monkeypatch.setattr(learned_graphs, 'MAX_TOKENS', LENGTH - 1)
    with pytest.raises(ValueError, match="'length' must be at most 23 to learn graphs"):
        command(folder, learn_graphs=True)
    assert not (folder / 'out').exists()


# The command #########################################################################


@pytest.mark.parametrize('options', [
    dict(learn_graphs=True), dict(candidates=['windows', 'keys', 'offsets', 'strided']),
    dict(candidates=['keys'], learn_graphs=True)])
def test_the_command_leaves_a_model_that_loads(folder, options):
    out = command(folder, **options)
    results = json.loads((out / 'results.json').read_text())
    model, held_out = load_attached(out).eval(), ids()[:6]
    assert mean_loss(model, held_out, loss_of(model), 4) == pytest.approx(results['adapted'])
    assert ('learned' in results) == options.get('learn_graphs', False)
    assert (results['share'] is None) == ('learned' in results)
    along = {row['along'] for row in attachment(model).as_table()}
    assert along == {row['pattern'] for row in results['heads']}
    if 'learned' in results:
        assert all('EdgeList' in pattern for pattern in along)
    listed = any('EdgeList' in pattern for pattern in along)
    assert results['lengths'][-1]['length'] == (LENGTH if listed else 32)
    page = (out / 'report.html').read_text()
    for part in ('hamiltonian path', 'universal', 'self loops', *along):
        assert part in page
    assert not (out / 'learning.pt').exists()


@pytest.mark.parametrize('options', [dict(learn_graphs=True), dict(lora=2, learn_graphs=True)])
def test_an_interrupted_command_ends_as_a_whole_one(folder, options, monkeypatch):
    if 'lora' in options:
        pytest.importorskip('peft')
    whole = json.loads((command(folder, **options) / 'results.json').read_text())
    (folder / 'out').rename(folder / 'whole')
    monkeypatch.setattr(sparsify, 'save_attached', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(folder, **options)
    monkeypatch.undo()
    monkeypatch.setattr(adaptation, '_objective', lambda *_: 1 / 0)  # all steps are done
    again = json.loads((command(folder, **options) / 'results.json').read_text())
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


@pytest.mark.parametrize('learn_graphs', [False, True])
def test_adapters_are_trained_and_merged(folder, learn_graphs):
    pytest.importorskip('peft')
    out = command(folder, lora=2, lr=1e-2, learn_graphs=learn_graphs)
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


# Other trainers ######################################################################


SOURCES = {'a pattern': lambda: 'SlidingWindow(2)',
           'listed edges': lambda: PatternSource([EdgeList(LENGTH, torch.stack([
               torch.arange(LENGTH), torch.arange(LENGTH)])), parse('SlidingWindow(1)')]),
           'a learned mask': lambda: LearnedMaskSource(2, LENGTH, mode='dam_unstructured')}


def assert_trained(model, before):
    """All parameters have changed, also those of sources."""
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name
    assert not torch.isnan(mean_loss_tensor(model))


def mean_loss_tensor(model):
    return torch.tensor(mean_loss(model, ids(4, padded=False), loss_of(model), 4))


@pytest.mark.parametrize('source', SOURCES)
def test_a_trainer_of_transformers_trains_an_attached_model(source, tmp_path):
    pytest.importorskip('accelerate')
    model = attach(gpt2(), SOURCES[source]())
    before = copy.deepcopy(dict(model.named_parameters()))
    data = [{'input_ids': row, 'labels': row} for row in ids(12, padded=False)]
    settings = transformers.TrainingArguments(
        str(tmp_path / 'runs'), max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2,
        report_to='none', disable_tqdm=True, use_cpu=True, save_strategy='no')
    trainer = transformers.Trainer(model, settings, train_dataset=data)
    trainer.train()
    assert_trained(model, before)
    save_attached(trainer.model, tmp_path / 'saved')
    again = load_attached(tmp_path / 'saved')
    assert mean_loss_tensor(again) == mean_loss_tensor(model.eval())


@pytest.mark.parametrize('source', SOURCES)
def test_a_lightning_module_trains_an_attached_model(source, tmp_path):
    lightning = pytest.importorskip('lightning')

    class Language(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, tokens):
            return self.model(input_ids=tokens, labels=tokens).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model = attach(gpt2(), SOURCES[source]()).train()
    before = copy.deepcopy(dict(model.named_parameters()))
    data = torch.utils.data.DataLoader(ids(12, padded=False), batch_size=4)
    lightning.Trainer(max_steps=3, accelerator='cpu', logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False,
                      default_root_dir=tmp_path).fit(Language(model), data)
    assert_trained(model, before)
    save_attached(model, tmp_path / 'saved')
    again = load_attached(tmp_path / 'saved')
    assert mean_loss_tensor(again) == mean_loss_tensor(model.eval())
    assert not hasattr(detach(model), 'graph_attachment')
