"""The studies of Long Range Arena: their sizes, and at the scale of smoke tests their tables."""

import numpy as np
import pytest
from torch import nn

from experiments import train
from experiments.baselines import Combiner, Linformer, Sinkhorn, Synthesizer
from experiments.papers.sbm_transformer.long_range import (
    AS_PAPER,
    ATTENTIONS,
    BOTH,
    FULL,
    SAMPLED,
    TASKS,
    WINDOW,
    LongRange,
    baselines_at,
    patterns_at,
)
from experiments.papers.sbm_transformer.long_range_arena import CHOSEN, DEFAULT_TASKS, PAPER
from experiments.papers.study import data_of
from experiments.runs.config_file import bound_aliases, built
from experiments.runs.summary import read_summary
from graphattn.layers import GraphAttention
from graphattn.patterns import SlidingWindow, parse
from tests.experiments.test_configs import Parsed


@pytest.mark.slow
def test_every_attention_is_made_at_every_length():
    own = {SAMPLED, AS_PAPER, 'SBM + I', BOTH}
    for length in (64, 500, 1024, 4096):
        patterns, baselines = patterns_at(length), baselines_at(length, length // 8)
        assert patterns.keys() | baselines.keys() | own == set(ATTENTIONS)
        assert not patterns.keys() & baselines.keys()
        for pattern, _ in patterns.values():
            assert parse(str(pattern)) == pattern
            assert 0. < pattern.build(64, seed=0, crop=True).density() <= 1.
        assert patterns[WINDOW][0].build(length).density() == pytest.approx(1 / 16, abs=0.015)
    assert patterns_at(2048)[WINDOW][0] == SlidingWindow(64)


def test_baselines_have_the_papers_ranks_at_its_scale(tmp_path):
    runs = LongRange('long_range_arena', 'paper', tmp_path, protocol='sbm')
    for task in TASKS:
        for name, size in (('Linformer', 'rank'), ('Performer', 'features'),
                           ('Performer, ReLU', 'features'), ('Nystromformer', 'landmarks')):
            assert runs.encoder(task, name, 0)['attention']['init_args'][size] == 256


def test_the_papers_averages_are_those_of_their_rows():
    """But for that of Diffuser, which prints 57.31."""
    printed = {'SBM, Table 8': {FULL: 59.27, 'linear, released': 59.31, 'Reformer': 55.76,
                                'Performer, ReLU': 54.57, 'Linformer': 55.99,
                                'Nystromformer': 59.41, AS_PAPER: 59.93, 'SBM + I': 59.40},
               'Diffuser, Table S.6': {FULL: 54.39, WINDOW: 46.06, 'linear': 50.55,
                                       'Reformer': 50.67, 'Strided': 51.24, 'Linformer': 51.36,
                                       'Performer': 51.41, 'Sinkhorn': 51.48, 'Synthesizer': 52.88,
                                       'Combiner': 54.93, 'Longformer': 53.46, 'BigBird': 55.01,
                                       'Diffuser': 57.16, 'Diffuser, 1 hop': 52.36}}
    for column, averages in printed.items():
        assert averages.keys() == PAPER[column].keys()
        for name, average in averages.items():
            assert np.mean(PAPER[column][name]) == pytest.approx(average, abs=0.011), name


@pytest.mark.slow
@pytest.mark.parametrize('scale, protocol, task, kinds', [
    ('small', 'clean', 'Text', {'Linformer': Linformer, 'Sinkhorn': Sinkhorn,
                                BOTH: GraphAttention}),
    ('paper', 'official', 'Image', {'Synthesizer': Synthesizer, 'Combiner': Combiner,
                                    AS_PAPER: GraphAttention})], ids=['small', 'paper'])
def test_the_command_line_takes_every_attention(scale, protocol, task, kinds, tmp_path,
                                                monkeypatch):
    """For tasks that smoke tests do not train."""
    configs = {}
    bound_aliases()

    def parse(args):
        config = Parsed(args[0], args[1:]).config.as_dict()
        configs[config['trainer']['default_root_dir'].rpartition('-')[0]] = config

    monkeypatch.setattr(train, 'main', parse)
    monkeypatch.setattr('experiments.papers.sbm_transformer.long_range.package_docs',
                        lambda study: tmp_path)
    runs = LongRange('any', scale, tmp_path, protocol=protocol)
    for attention in kinds:
        runs.classifier(task, attention, 0)
    assert len(configs) == len(kinds)
    for config, kind in zip(configs.values(), kinds.values()):
        model = built({'model': config['model']['init_args']['model']}, model=nn.Module).model
        assert type(model.encoder.layers[0].attention) is kind
        assert config['seed_everything'] == config['data']['init_args']['seed'] == 0


def runs_of(out):
    return LongRange('any', 'smoke', out)


@pytest.mark.slow
def test_rows_are_those_of_the_runs(studied, out):
    rows = studied('long_range_arena').set_index(['task', 'attention'])
    for task in DEFAULT_TASKS['smoke']:
        for name in CHOSEN['smoke']:
            run = runs_of(out).classifier(task, name, 0)
            row = rows.loc[task, name]
            assert row['accuracy, %'] == pytest.approx(100 * read_summary(run)['accuracy'])
            printed = PAPER['SBM, Table 8'].get(name, [None] * 5)[list(TASKS).index(task)]
            assert row['SBM, Table 8'] == printed or printed is None
        assert rows.loc[(task, FULL), 'density, %'] == pytest.approx(100.)
        assert rows.loc[(task, WINDOW), 'density, %'] < rows.loc[(task, BOTH), 'density, %'] < 60.
        assert np.isnan(rows.loc[(task, 'Linformer'), 'density, %'])


@pytest.mark.slow
def test_guesses_are_right_as_often_as_counted(studied, out):
    rows = studied('long_range_arena').set_index(['task', 'attention'])['accuracy, %']
    for task in 'ListOps', 'Retrieval':
        data = data_of(runs_of(out).classifier(task, WINDOW, 0))
        parts = data.source.read(data.max_length).parts
        label = np.bincount(parts['train'].label).argmax()
        assert rows[task, 'most frequent class'] == pytest.approx(
            100 * (parts['test'].label == label).mean())
    assert rows['ListOps', 'most frequent class'] < rows['ListOps', 'root']
