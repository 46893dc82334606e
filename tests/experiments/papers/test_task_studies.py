"""Studies of questions, choices, pre-training and densities at the scale of smoke tests."""

import json

import numpy as np
import pytest

from experiments.data.text.local_questions import GAP
from experiments.data.text.question_files import Squad
from experiments.papers.diffuser.question_answering import PAPER
from experiments.papers.diffuser.tasks import DIFFUSER, FULL, NO_DIAGONAL, ONE_HOP, Attentions
from experiments.runs.summary import read_summary

pytestmark = pytest.mark.slow


def test_question_answering(studied, out):
    table = studied('question_answering').set_index('set')
    rows = table.loc['local_squad1'].set_index('attention')
    hop = read_summary(out / 'smoke/runs/local_triviaqa-linked-1-0-0')
    assert table.loc['local_triviaqa'].set_index('attention').loc[
        'window and equal words', 'F1, %'] == pytest.approx(100 * hop['f1'])
    assert PAPER['SQuAD 1.1, paper F1']['full'] == 87.1
    linked = read_summary(out / 'smoke/runs/local_squad1-linked-1-0-0')
    assert rows.loc['window and equal words', 'F1, %'] == pytest.approx(100 * linked['f1'])
    assert rows.loc['full', 'density, %'] == 100 > rows.loc['window and equal words', 'density, %']
    folder = out / 'smoke/local_questions/squad'
    parts = Squad(*(str(folder / f'{part}.json') for part in ('train', 'dev', 'test'))).read().parts
    for question in parts['test']:
        (number, begin, end), = question.spans
        assert (question.contexts[number][begin:end],) == question.accepted
        assert question.text.count(GAP) >= 1
    texts = [{context for question in part for context in question.contexts}
             for part in parts.values()]
    assert not texts[0] & texts[2]


def test_choices(studied, out):
    table = studied('choices').set_index('set')
    rows = table.loc[['local_swag']].set_index('attention')
    assert table.loc[['local_wikihop'], 'accuracy, %'].notna().all()
    assert rows.loc['full', 'accuracy, %'] == pytest.approx(
        100 * read_summary(out / 'smoke/runs/local_swag-full-1-0-0')['accuracy'])


def test_pretraining(studied, out):
    rows = studied('pretraining').set_index('attention')
    run = read_summary(out / 'smoke/runs/pretraining-diffuser-5-0.1-0')
    assert rows.loc['Diffuser', 'bits per token'] == pytest.approx(run['mlm_loss'] / np.log(2))
    assert rows.loc['Diffuser', 'bits per character'] <= rows.loc['Diffuser', 'bits per token']
    start = read_summary(out / 'smoke/runs/pretraining-start-diffuser-5-0.1-0')
    assert start['epochs'] == 0
    assert rows.loc['Diffuser', 'bits per token, step 0'] == pytest.approx(start['bits_per_token'])
    assert rows.loc['Diffuser', 'paper, in the end'] == 1.68
    options = json.loads((out / 'smoke/runs/pretraining-diffuser-5-0.1-0/options.json').read_text())
    assert options[options.index('--model.init_args.pretrained') + 1] == str(
        out / 'smoke/runs/pieces-full-1-0-0/checkpoints/last.ckpt')


def test_image_density(studied, out):
    rows = studied('image_density').set_index('attention')
    run = read_summary(out / 'smoke/runs/density-digits-diffuser-5-0.1-0')
    assert rows.loc['Diffuser', 'bits per byte'] == pytest.approx(run['bits_per_dim'])
    assert (out / 'smoke/runs/density-digits-diffuser-5-0.1-0/samples.png').stat().st_size > 1000


@pytest.mark.parametrize('scale', ['smoke', 'small', 'paper'])
def test_attentions_have_the_edges_that_they_name(scale, tmp_path):
    names = {scale: (FULL, NO_DIAGONAL, ONE_HOP, DIFFUSER)}
    known = Attentions('any', scale, tmp_path).kinds(names)
    density = {name: one.edges.build(1024, seed=0).density() for name, one in known.items()}
    assert density[FULL] == 1 and density[NO_DIAGONAL] == pytest.approx(1 - 1 / 1024)
    assert density[DIFFUSER] == density[ONE_HOP] < .6
    assert (known[DIFFUSER].hops, known[ONE_HOP].hops) == (5, 1)
