"""Surgery on a tiny model: data, losses, adaptation that resumes, and the command."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch

from experiments import sparsify
from experiments.surgery import (
    Adaptation,
    adapt,
    adaptation,
    drawn_tokens,
    loss_of,
    mean_loss,
    read_tokens,
)
from experiments.surgery.clusters import with_clusters
from graphattn.hugging_face import attach, attached, attachment, fit, load_attached, profile

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.slow

NUM_TOKENS, LENGTH = 19, 24
SIZES = dict(vocab_size=NUM_TOKENS, bos_token_id=0, eos_token_id=1, pad_token_id=2)


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **SIZES, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()


def bert():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(
        **SIZES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=32)).eval()


def ids(rows=20, padded=True):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, NUM_TOKENS, (rows, LENGTH), generator=generator)
    if padded:
        lengths = torch.randint(4, LENGTH + 1, (rows, 1), generator=generator)
        tokens[torch.arange(LENGTH) >= lengths] = -1
    return tokens


# Data ################################################################################


def test_drawn_sequences_end_where_the_model_ends_them():
    tokens = drawn_tokens(gpt2(), 40, LENGTH, seed=3)
    assert torch.equal(tokens, drawn_tokens(gpt2(), 40, LENGTH, seed=3))
    assert not torch.equal(tokens, drawn_tokens(gpt2(), 40, LENGTH, seed=4))
    ends = (tokens == 1).sum(1)
    lengths = (tokens != -1).sum(1)
    assert set(ends.tolist()) == {0, 1} and lengths.min() >= 2 and (tokens[:, 0] == 0).all()
    for row, length, end in zip(tokens, lengths, ends):
        assert (row[:length] >= 0).all() and (row[length:] == -1).all()
        assert row[length - 1] == 1 if end else length == LENGTH


@pytest.mark.parametrize('array, match', [
    (np.zeros((4, 9), np.float32), 'integers'), (np.zeros((1, 30), int), 'at least two sequences'),
    (np.zeros((4, 9), int), 'use a smaller'), (np.full((4, 30), NUM_TOKENS), 'tokens from 0 to 18'),
    (np.full((4, 30), -2), 'tokens from 0 to 18'), (np.full((4, 30), -1), 'got row 0 of'),
    (np.r_['0,2', np.ones(24, int), np.r_[1, 2, -1, np.ones(21, int)]], 'got row 1 of'),
    (np.zeros((2, 2, 30), int), 'one or two dimensions')])
def test_arrays_that_are_refused(array, match, tmp_path):
    np.save(tmp_path / 'ids.npy', array)
    with pytest.raises(ValueError, match=f"'data' must .*{match}"):
        read_tokens(tmp_path / 'ids.npy', tmp_path, LENGTH, NUM_TOKENS)


def test_files_that_are_refused(tmp_path):
    (tmp_path / 'a.npy').write_text('no array')
    (tmp_path / 'a.txt').write_bytes(b'\xff\xfe\xff')
    (tmp_path / 'b.txt').write_text('words')
    for name, match in (('none.npy', 'there is no'), ('a.npy', '.npy file'), ('a.txt', 'UTF-8'),
                        ('b.txt', 'has no tokenizer')):
        with pytest.raises(ValueError, match=f"'data' must be .*{match}"):
            read_tokens(tmp_path / name, tmp_path, LENGTH, NUM_TOKENS)


def test_one_long_sequence_is_cut(tmp_path):
    np.save(tmp_path / 'ids.npy', np.arange(100) % NUM_TOKENS)
    tokens = read_tokens(tmp_path / 'ids.npy', tmp_path, LENGTH, NUM_TOKENS)
    assert tokens.shape == (4, LENGTH) and tokens.flatten().tolist() == [
        number % NUM_TOKENS for number in range(96)]


# Losses ##############################################################################


def test_the_loss_of_padded_sequences_is_transformers_own():
    model, tokens = gpt2(), ids(6)
    labels = tokens.masked_fill(tokens < 0, -100)
    with torch.no_grad():
        expected = model(input_ids=tokens.clamp(min=0), attention_mask=tokens >= 0,
                         labels=labels).loss
        alone = [model(input_ids=row[row >= 0][None], labels=row[row >= 0][None]).loss
                 for row in tokens]
    sizes = (tokens >= 0).sum(1)
    own = loss_of(model)(model, tokens, 0)
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(own, (torch.stack(alone) * (sizes - 1)).sum() / (sizes - 1).sum())
    assert mean_loss(model, tokens, loss_of(model), 4) == pytest.approx(float(expected), rel=.1)


@pytest.mark.parametrize('model, mask_token, match', [
    (bert, None, "'mask_token' must be"), (lambda: gpt2().transformer, None, "'model' must be")])
def test_models_without_a_loss_are_refused(model, mask_token, match):
    with pytest.raises(ValueError, match=match):
        loss_of(model(), mask_token)


# Adaptation ##########################################################################


@pytest.mark.parametrize('distill', [0., .5])
def test_an_interrupted_adaptation_ends_as_a_whole_one(distill, tmp_path, monkeypatch):
    monkeypatch.setattr(adaptation, 'SAVE_EVERY', 3)
    settings = Adaptation(steps=8, lr=1e-2, batch_size=3, distill=distill, seed=1)
    models = [attach(copy.deepcopy(gpt2()), 'SlidingWindow(2)') for _ in range(2)]
    teacher, loss, tokens = gpt2(), loss_of(gpt2()), ids()
    losses = adapt(models[0], tokens, loss, settings, teacher=teacher)
    calls = 0

    def stopped(*arguments):
        nonlocal calls
        calls += 1
        if calls > 5:
            raise KeyboardInterrupt
        return loss(*arguments)

    with pytest.raises(KeyboardInterrupt):
        adapt(models[1], tokens, stopped, settings, teacher=teacher, state=tmp_path / 'state.pt')
    fresh = attach(copy.deepcopy(gpt2()), 'SlidingWindow(2)')
    again = adapt(fresh, tokens, loss, settings, teacher=teacher, state=tmp_path / 'state.pt')
    assert losses == again and len(losses) == 8 and not fresh.training
    for one, other in zip(models[0].parameters(), fresh.parameters()):
        assert torch.equal(one, other)


def test_adaptation_lowers_the_loss_and_a_bad_rate_is_named():
    model, tokens = attach(gpt2(), 'SlidingWindow(2)'), ids(padded=False)
    before = mean_loss(model, tokens, loss_of(model), 8)
    adapt(model, tokens, loss_of(model), Adaptation(60, 1e-2, 8))
    assert mean_loss(model, tokens, loss_of(model), 8) < before - .05
    with pytest.raises(ValueError, match="'lr' must let the loss stay finite"):
        adapt(model, tokens, loss_of(model), Adaptation(30, 1e30, 8))


# The command #########################################################################


def command(folder, **options):
    arguments = dict(model=str(folder / 'model'), data=str(folder / 'ids.npy'),
                     out=str(folder / 'out'), density=.4, steps=4, length=LENGTH, profiled=4,
                     held_out=6, **options)
    sparsify.main(**arguments)
    return folder / 'out'


@pytest.fixture
def folder(tmp_path):
    gpt2().save_pretrained(tmp_path / 'model')
    np.save(tmp_path / 'ids.npy', ids().numpy())
    return tmp_path


@pytest.mark.parametrize('options', [dict(), dict(loss=1.05, leave_one_out=False, distill=.5)])
def test_the_command_leaves_a_model_that_loads_and_a_report(folder, options, capsys):
    out = command(folder, **options)
    results = json.loads((out / 'results.json').read_text())
    model, dense = load_attached(out).eval(), gpt2()
    held_out = ids()[:6]
    assert mean_loss(dense, held_out, loss_of(dense), 4) == pytest.approx(results['dense'])
    assert mean_loss(model, held_out, loss_of(model), 4) == pytest.approx(results['adapted'])
    assert len(results['heads']) == 4 and results['lengths'][-1]['length'] == 32
    if 'loss' in options:
        assert results['cut'] <= 1.05 * results['dense'] + 1e-9
    else:
        assert results['density'] <= .4
    assert {row['along'] for row in attachment(model)} <= {
        row['pattern'] for row in results['heads']}
    page = (out / 'report.html').read_text()
    for part in ('Loss', 'Time', 'Certificate', 'Heads', 'data:image/png'):
        assert part in page
    assert not (out / 'adapting.pt').exists()
    with pytest.raises(ValueError, match="'out' must be a new folder .*which contains results"):
        command(folder, **options)


def test_an_interrupted_command_goes_on_and_refuses_other_options(folder, monkeypatch):
    monkeypatch.setattr(sparsify, 'save_attached', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command(folder)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="with the same options .*another seed"):
        command(folder, seed=1)
    monkeypatch.setattr(sparsify, 'profile', lambda *_: 1 / 0)  # it is read
    monkeypatch.setattr(sparsify, 'head_costs', lambda *_: 1 / 0)
    assert (command(folder) / 'results.json').is_file()


@pytest.mark.parametrize('candidates', [['windows', 'strided'], ['clusters']])
def test_heads_attend_along_candidates_and_are_certified(folder, candidates):
    out = command(folder, candidates=candidates)
    results = json.loads((out / 'results.json').read_text())
    along = {row['along'] for row in attachment(load_attached(out))}
    assert along == {row['pattern'] for row in results['heads']}
    has_clusters = 'clusters' in candidates
    assert all(('keys of 32 clusters' in name) == has_clusters for name in along)
    page = (out / 'report.html').read_text()
    assert ('graphs of heads with clusters are those of one sequence' in page) == has_clusters


def test_bad_arguments_write_nothing(folder):
    for options, match in ((dict(batch_size=0), "'batch_size'"), (dict(lr=0.), "'lr'"),
                           (dict(distill=2.), "'distill'")):
        with pytest.raises(ValueError, match=match):
            command(folder, **options)
    known = dict(model=str(folder / 'model'), data=str(folder / 'ids.npy'), out=str(folder / 'out'))
    for options, match in ((dict(model=str(folder / 'none')), "'model' must be the folder"),
                           (dict(length=LENGTH, held_out=50), "'data' must contain more than 50"),
                           (dict(length=33), "'length' must be from 8 to 32")):
        with pytest.raises(ValueError, match=match):
            sparsify.main(**{**known, **options})
    assert not (folder / 'out').exists()
    (folder / 'out').mkdir()
    (folder / 'out/mine').write_text('')
    with pytest.raises(ValueError, match="'out' must be a new or empty folder"):
        command(folder)


# Clusters by content #################################################################


@pytest.mark.parametrize('sign', [1, -1])
def test_clusters_are_chosen_where_they_cost_less_loss(sign):
    model, tokens = gpt2(), ids(8, padded=False)
    for parameter in model.transformer.parameters():
        parameter.data.mul_(4)
    names = ['SlidingWindow(radius=0)', 'SlidingWindow(radius=3)', '3 keys of 6 clusters',
             '2 keys of 6 clusters', '9 keys of 6 clusters']
    measured = profile(model, [tokens], patterns=names)
    loss = partial(mean_loss, tokens=tokens, loss=loss_of(model), batch_size=8)
    chosen = fit(measured.among(names[:2]), .3)
    changed = with_clusters(model, chosen, measured, lambda model: sign * loss(model))
    for row in range(4):
        options, losses = [chosen.pattern(row), measured.pattern(row, 2)], []
        for along in options:
            with attached(model, along, layers=[int(measured.layer[row])],
                          heads=[int(measured.head[row])]):
                losses.append(sign * loss(model))
        is_tried = chosen.error[row] > .1 and (
            measured.pattern_edges[row, 2] <= chosen.density[row] * measured.keys[row])
        is_replaced = is_tried and losses[1] < losses[0]
        assert (row in changed.clusters) == is_replaced
        expected = (names[2], measured.pattern_error[row, 2]) if is_replaced else (
            chosen.patterns[row], chosen.error[row])
        assert (changed.patterns[row], changed.error[row]) == expected
    assert (changed.density <= chosen.density + 1e-9).all()
