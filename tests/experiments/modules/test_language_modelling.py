"""Pre-training: the loss and its parts, what a run leaves, and resuming within an epoch."""

import json
import math
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments import train
from experiments.data.batch import TextBatch
from experiments.data.text.encoding import EncodedCorpus
from experiments.modules import LanguageModelling
from graphattn.models import Encoder, MaskedLanguageModel
from graphattn.patterns import Full
from graphattn.sources import LearnedMaskSource, PatternSource
from graphattn.sources.mask_graph import MaskGraph
from tests.experiments.data.text.traceable import write_traceable
from tests.forked import forked

HERE = Path(__file__).parent
CONFIG = str(HERE / 'mlm.yaml')


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp('corpus')
    write_traceable(folder)
    return folder


def options(corpus, folder):
    return ['fit', '--config', CONFIG, '--trainer.default_root_dir', str(folder),
            '--data.init_args.corpus', str(corpus / 'text.txt'),
            '--data.init_args.tokenizer', str(corpus / 'vocab.txt'),
            '--data.init_args.cache', str(corpus / 'cache')]


def recording(path, kill_at=-1):
    return ['--trainer.callbacks+=tests.experiments.callbacks.RecordBatches',
            f'--trainer.callbacks.path={path}', f'--trainer.callbacks.kill_at={kill_at}']


def run(corpus, folder, *more, ranks=1):
    return forked(lambda: train.main([*options(corpus, folder), *more]), ranks=ranks)


def recorded(path):
    """Pairs of the step and the digest of its batch."""
    return [(int(step), digest) for step, digest in
            map(str.split, Path(path).read_text().splitlines())]


@pytest.fixture(scope='module')
def finished_run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    train.main([*options(corpus, folder / 'run'), *recording(folder / 'batches')])
    return folder / 'run', recorded(folder / 'batches.rank0')


@pytest.mark.slow
def test_a_run_leaves_metrics_masks_pictures_and_the_tokenizer(finished_run, corpus):
    folder, batches = finished_run
    assert {path.name for path in folder.iterdir()} == {
        'config.yaml', 'metrics.csv', 'summary.json', 'checkpoints', 'curves.png', 'masks.npz',
        'masks.png', 'tokenizer.json'}
    # A run with a summary is finished, so that nothing is written after it.
    written = {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()}
    assert written[folder / 'summary.json'] == max(written.values())
    metrics = pd.read_csv(folder / 'metrics.csv')
    assert {f'{stage}/{name}' for stage in ('train', 'val') for name in (
        'loss', 'mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy',
        'density/all_layers/head0', 'density/all_layers/head1')} <= set(metrics.columns)
    assert metrics['val/perplexity'].tolist() == pytest.approx(
        metrics['val/mlm_loss'].map(math.exp).tolist(), rel=1e-5)
    summary = json.loads((folder / 'summary.json').read_text())
    assert summary['perplexity'] == pytest.approx(math.exp(summary['mlm_loss']), rel=1e-5)
    assert summary['loss'] == pytest.approx(summary['mlm_loss'] + summary['nsp_loss'], rel=1e-6)
    assert metrics['val/loss'].tolist() == pytest.approx(
        (metrics['val/mlm_loss'] + metrics['val/nsp_loss']).tolist(), rel=1e-6)
    size = EncodedCorpus(next(corpus.glob('cache/encoded-*')) / 'val').size
    bits = summary['mlm_loss'] / math.log(2)
    for name in ('token', 'character', 'byte'):
        assert summary[f'bits_per_{name}'] == pytest.approx(
            bits * size['tokens'] / size[f'{name}s'], rel=1e-5)
    entropy = metrics['val/mlm_loss/unigram_entropy']
    assert (entropy == entropy[0]).all() and summary['mlm_loss/unigram_entropy'] > 5
    assert len(batches) == len({digest for _, digest in batches}) == len(batches) // 2 * 2


@pytest.mark.slow
def test_a_killed_run_sees_the_batches_of_an_uninterrupted_one(finished_run, corpus, tmp_path):
    folder, expected = finished_run
    kill_at, saved_at = 19, 18
    assert len(expected) == 2 * saved_at  # it stops where an epoch ends
    workers = ['--data.init_args.num_workers', '2']
    killed, = run(corpus, tmp_path / 'run', *workers, *recording(tmp_path / 'first', kill_at))
    assert killed.returncode == -signal.SIGKILL, killed
    last = tmp_path / 'run/checkpoints/last.ckpt'
    assert torch.load(last, weights_only=True)['global_step'] == saved_at

    train.main([*options(corpus, tmp_path / 'run'), *workers, *recording(tmp_path / 'second'),
                '--ckpt_path', str(last)])
    first, second = recorded(tmp_path / 'first.rank0'), recorded(tmp_path / 'second.rank0')
    assert [step for step, _ in first] == list(range(kill_at))
    assert first[:saved_at] + second == expected
    mine, theirs = (torch.load(path / 'checkpoints/last.ckpt', weights_only=True)['state_dict']
                    for path in (tmp_path / 'run', folder))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def model(source=None, share_source=True, **kwargs):
    source = source or LearnedMaskSource(heads=2, size=8, mode='dam_unstructured')
    torch.manual_seed(0)
    return MaskedLanguageModel(Encoder(
        source, num_tokens=20, max_length=8, channels=8, heads=2, num_layers=3, num_segments=2,
        share_source=share_source), **kwargs)


def quiet(training):
    """The training without a trainer to log to."""
    training.logged = {}
    training.log = lambda name, value, **_: training.logged.update({name: value})
    training.log_dict = lambda values, **_: training.logged.update(values)
    return training


BATCH = TextBatch(
    tokens=torch.tensor([2, 7, 4, 3, 9, 3, 2, 4, 3, 11, 12, 3]), ptr=torch.tensor([0, 6, 12]),
    segments=torch.tensor([0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]), selected=torch.tensor([2, 7, 9]),
    target=torch.tensor([8, 10, 11]), label=torch.tensor([0, 1]))


@pytest.mark.parametrize('share_source, num_norms', [(True, 1), (False, 3)])
def test_the_loss_is_that_of_eq_7(share_source, num_norms):
    training = quiet(LanguageModelling(model(share_source=share_source), mask_weight=0.01))
    graphs = []
    training.model.register_forward_hook(lambda module, args, out: graphs.extend(out[2]))
    loss = training.training_step(BATCH, 0)
    masks = {id(graph): graph for graph in graphs}
    assert len(graphs) == 3 and len(masks) == num_norms
    assert all(isinstance(mask, MaskGraph) for mask in graphs)
    torch.manual_seed(0)
    penalty = 0.01 * sum(mask.values.sum() for mask in masks.values())  # one for each pair
    expected = training.logged['train/mlm_loss'] + training.logged['train/nsp_loss'] + penalty
    assert loss.item() == pytest.approx(expected.item())
    loss.backward()
    assert all((source.logit.grad != 0).any() for source in training.mask_sources)


def test_both_losses_are_means_of_cross_entropies():
    training = quiet(LanguageModelling(model(PatternSource(Full()))))
    training.validation_step(BATCH, 0)
    token_logits, sequence_logits = training.model(BATCH.tokens, BATCH.ptr,
                                                   segments=BATCH.segments)
    mlm = F.cross_entropy(token_logits[BATCH.selected], BATCH.target)
    nsp = F.cross_entropy(sequence_logits, BATCH.label)
    assert training.logged['val/mlm_loss'].item() == pytest.approx(mlm.item())
    assert training.logged['val/nsp_loss'].item() == pytest.approx(nsp.item())
    right = token_logits[BATCH.selected].argmax(dim=1) == BATCH.target
    assert float(training.logged['val/mlm_accuracy']) == pytest.approx(float(right.float().mean()))


def test_masked_tokens_alone():
    training = quiet(LanguageModelling(model(PatternSource(Full()), next_sentence=False)))
    loss = training.training_step(BATCH._replace(label=torch.empty(0)), 0)
    assert loss.item() == pytest.approx(training.logged['train/mlm_loss'].item())
    assert not [name for name in training.logged if 'nsp' in name]
    nothing = BATCH._replace(selected=BATCH.selected[:0], target=BATCH.target[:0])
    assert float(training.training_step(nothing, 0).detach()) == 0.


def test_masks_norms_and_biases_do_not_decay():
    training = LanguageModelling(model(), lr=1e-3, weight_decay=0.1, mask_lr=0.5)
    groups = training.parameter_groups()
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    settings = {id(p): (group['lr'], group['weight_decay'])
                for group in optimizer.param_groups for p in group['params']}
    assert len(settings) == len(list(training.parameters()))
    encoder = training.model.encoder
    assert settings[id(encoder.source.logit)] == (0.5, 0.)
    assert settings[id(encoder.token_embedding.weight)] == (1e-3, 0.1)
    assert settings[id(encoder.norm.weight)] == settings[id(training.model.token_bias)] == (
        1e-3, 0.)
