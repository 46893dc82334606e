"""Windows of the texts of questions, offsets of answers, what comes of them, and choices."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.data.batch import ChoiceBatch
from experiments.data.text.choice_files import ChoiceQuestion, ChoiceSource
from experiments.data.text.question_files import Question, QuestionData
from experiments.data.text.tokenizer import special_tokens, train_tokenizer
from experiments.modules import MultipleChoice, QuestionAnswering
from experiments.modules.question_answering import Answered, best_threshold, span_loss
from experiments.tasks import Choices, Questions
from experiments.tasks.choices import EncodedChoices
from experiments.tasks.questions import EncodedQuestions, tokens_of, window_spans
from graphattn.models import Encoder, MultipleChoiceModel, SpanModel

WORDS = [f'{first}{last}' for first in 'bcdfg' for last in ('amp', 'ell', 'ird', 'ook')]
SIZES = {'num_tokens': 200, 'max_length': 24, 'channels': 8, 'heads': 2, 'num_layers': 1}


@pytest.fixture(scope='module')
def tokenizer():
    return train_tokenizer(lambda: [' '.join(WORDS) + ' öäü é ß . , 東京'] * 5, 200)


def question(number, length, begin=None, end=None, text='bamp bell?'):
    """The answer is the words from ``begin`` to before ``end``."""
    rng = np.random.default_rng(number)
    words = rng.choice(WORDS, length).tolist()
    context = ' '.join(words)
    if begin is None:
        return Question(str(number), text, (context,), (), ())
    answer = ' '.join(words[begin:end])
    first = len(' '.join(words[:begin])) + (begin > 0)
    assert context[first:first + len(answer)] == answer
    return Question(str(number), text, (context,), ((0, first, first + len(answer)),), (answer,))


def encoded(tokenizer, *questions, max_length=24, stride=8, max_question=6):
    return EncodedQuestions(list(questions), tokenizer, max_length, stride, max_question, 'test')


# Offsets and windows #################################################################

def random_text(rng):
    """Letters with and without accents, of several alphabets, marks, blanks and emoji."""
    ranges = [(32, 127), (160, 592), (880, 1280), (0x4E00, 0x4E80), (0x1F600, 0x1F640),
              (0x0300, 0x0310), (0x2000, 0x2070), (0xAC00, 0xAC40)]
    return ''.join(chr(rng.randrange(*rng.choice(ranges))) if rng.random() < .8 else ' '
                   for _ in range(rng.randrange(1, 60)))


@pytest.mark.slow
def test_offsets_survive_on_random_unicode(tokenizer):
    """Every token's characters are where they are said to be, in order; an answer's tokens span all
    of it that any token has; and the bytes of whole tokens come back as they were."""
    rng = random.Random(0)
    for _ in range(200):
        text = random_text(rng)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        offset = np.array(encoding.offsets).reshape(-1, 2)
        assert (offset[:, 0] <= offset[:, 1]).all() and (np.diff(offset, axis=0) >= 0).all()
        assert offset.min(initial=0) >= 0 and offset.max(initial=0) <= len(text)
        begin, end = sorted(rng.sample(range(len(text) + 1), 2))
        covered = [any(first <= place < last for first, last in offset)
                   for place in range(begin, end)]
        found = tokens_of(offset, begin, end)
        assert (found is not None) == any(covered)
        if found is None:
            continue
        first, last = offset[found[0], 0], offset[found[1], 1]
        inside = [begin + place for place, is_covered in enumerate(covered) if is_covered]
        assert first <= inside[0] and last > inside[-1]
        again = tokens_of(offset, first, last)
        assert text[offset[again[0], 0]:offset[again[1], 1]].encode() == text[first:last].encode()


@pytest.mark.parametrize('length, room, stride', [(0, 5, 3), (4, 5, 3), (5, 5, 3), (6, 5, 3),
                                                  (50, 7, 9), (50, 7, 1), (23, 10, 5)])
def test_windows_cover_every_token(length, room, stride):
    spans = window_spans(length, room, stride)
    assert all(end - begin <= room for begin, end in spans)
    assert spans[0][0] == 0 and spans[-1][1] == length
    assert all(later[0] <= earlier[1] for earlier, later in zip(spans, spans[1:]))
    assert {place for begin, end in spans for place in range(begin, end)} == set(range(length))


def test_a_window_is_the_question_and_a_part_of_the_text(tokenizer):
    asked = question(0, 40, 20, 22)
    examples, special = encoded(tokenizer, asked), special_tokens(tokenizer)
    batch = examples.questions_batch([0])
    assert batch.question_ptr.tolist() == [0, len(examples.question)] and len(batch.contexts) > 2
    head = [special.cls, *tokenizer.encode(asked.text, add_special_tokens=False).ids, special.sep]
    for window, (begin, end) in enumerate(zip(batch.ptr.tolist(), batch.ptr.tolist()[1:])):
        tokens, offset = batch.tokens[begin:end].tolist(), batch.offset[begin:end]
        count = int(batch.num_global[window])
        assert tokens[:count] == head and tokens[-1] == special.sep and len(tokens) <= 24
        assert batch.segments[begin:end].tolist() == [0] * count + [1] * (len(tokens) - count)
        assert (offset[:count] == -1).all() and (offset[-1] == -1).all()
        text = asked.contexts[0][offset[count, 0]:offset[-2, 1]]
        assert tokenizer.encode(text, add_special_tokens=False).ids == tokens[count:-1]


def test_answers_stand_where_the_tokens_say(tokenizer):
    questions = [question(number, 40, begin, begin + 2) for number, begin in enumerate((0, 9, 38))]
    examples = encoded(tokenizer, *questions)
    batch = examples.questions_batch(range(3))
    window = torch.bucketize(batch.first.contiguous(), batch.ptr, right=True) - 1
    held = 0
    for number, first, last in zip(window.tolist(), batch.first.tolist(), batch.last.tolist()):
        if batch.offset[first, 0] < 0:  # no answer in this one
            assert first == last == batch.ptr[number]
            continue
        of = int(torch.bucketize(number, batch.question_ptr, right=True)) - 1
        said = batch.contexts[number][batch.offset[first, 0]:batch.offset[last, 1]]
        assert (said,) == batch.accepted[of]
        held += 1
    assert held >= 3 and len(window) == len(examples.question)


def test_windows_that_cut_an_answer_are_left_out(tokenizer):
    examples = encoded(tokenizer, question(0, 30))
    end = int(examples.end[0])  # of the first window, in tokens, of which each word here is one
    examples = encoded(tokenizer, question(0, 30, end - 1, end + 1))
    found = [examples.answers_in(window) for window in range(len(examples.question))]
    cut = [window for window, (whole, has_part) in enumerate(found) if has_part and not whole]
    whole = [window for window, (held, _) in enumerate(found) if held]
    assert cut and whole
    learned = examples.to_learn(learn_empty=True).tolist()
    assert set(learned).isdisjoint(cut) and set(whole) <= set(learned)
    assert examples.to_learn(learn_empty=False).tolist() == whole


def test_an_answer_that_no_window_holds_is_named(tokenizer):
    whole, long = question(0, 10, 3, 4), question(1, 60, 0, 50)
    examples = encoded(tokenizer, whole, long)
    with pytest.warns(UserWarning, match='no window contains a whole answer of 1 questions: 1; '):
        learned = examples.to_learn(learn_empty=True)
    assert examples.question[learned].tolist() == [0]
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="'max_length' must leave room"):
        encoded(tokenizer, long).to_learn(True)


@pytest.mark.parametrize('options', [
    dict(stride=0), dict(batch_size=0), dict(max_length=4), dict(num_workers=-1),
    dict(max_question=0), dict(max_question=17, max_length=20)])
def test_bad_arguments(options):
    with pytest.raises(ValueError, match=f"'{[*options][0]}' must be"):
        Questions(None, **options)


# What is learned and said ############################################################

def test_the_loss_is_that_of_all_answers(tokenizer):
    questions = [question(0, 12, 3, 5), question(1, 8)]
    batch = encoded(tokenizer, *questions).questions_batch([0, 1])
    other = batch._replace(first=torch.cat([batch.first, torch.tensor([11])]),
                           last=torch.cat([batch.last, torch.tensor([11])]))
    logits = torch.randn(len(batch.tokens), 2, dtype=torch.double)
    expected = 0
    for begin, end in zip(batch.ptr.tolist(), batch.ptr.tolist()[1:]):
        for side, places in enumerate((other.first, other.last)):
            own = [place - begin for place in places.tolist() if begin <= place < end]
            expected -= logits[begin:end, side].softmax(0)[own].sum().log() / 4
    assert torch.allclose(span_loss(logits, other), expected)


def row(name, margin, has_answer, f1, f1_of_none):
    return Answered(name, [(name, 0.)], margin, has_answer, (f1, f1), (f1_of_none, f1_of_none))


def test_the_threshold_is_the_best_for_f1():
    rows = [row('a', -3., True, 1., 0.), row('b', -1., False, 0., 1.), row('c', -1., True, .5, 0.),
            row('d', 2., True, 1., 0.), row('e', 5., False, 0., 1.)]

    def mean(threshold):
        return np.mean([one.scores[1] if one.margin <= threshold else one.scores_of_none[1]
                        for one in rows])
    best = best_threshold(rows)
    assert mean(best) == max(map(mean, (-4, -3, -1, 2, 5))) == mean(2.)
    assert best_threshold([row('a', 3., False, 0., 1.)]) < -1e29


def answering(**options):
    torch.manual_seed(0)
    encoder = Encoder('SlidingWindow(1)', **SIZES, share_source=True)
    return QuestionAnswering(SpanModel(encoder), **options)


def test_the_answer_is_the_best_of_all_windows_and_none_where_that_is_likelier(tokenizer, tmp_path):
    questions = [question(0, 40, 30, 31), question(1, 12), question(2, 9, 2, 4)]
    examples = encoded(tokenizer, *questions)
    module = answering(may_have_none=True, num_best=3)
    batch = examples.questions_batch([2, 0, 1])
    logits = torch.full((len(batch.tokens), 2), -5.)
    logits[batch.ptr[:-1]] = -1.  # nowhere
    logits[batch.first, 0] = logits[batch.last, 1] = 4.
    module._logits = lambda given: (logits, [])
    module.validation_step(batch, 0)
    logged = {}
    module.log_dict = logged.update
    module.on_validation_epoch_end()
    assert logged['val/exact_match'] == logged['val/f1'] == logged['val/f1_without'] == 1.
    module.trainer = SimpleNamespace(is_global_zero=True, default_root_dir=tmp_path)
    module.test_step(batch, 0)
    module.on_test_epoch_end()
    said = json.loads((tmp_path / 'predictions.json').read_text())
    assert said == {'0': questions[0].accepted[0], '1': '', '2': questions[2].accepted[0]}
    nbest = json.loads((tmp_path / 'nbest.json').read_text())
    assert nbest['0'][0] == {'text': questions[0].accepted[0], 'score': 8.}
    assert {len(row) for row in nbest.values()} == {3}


@pytest.mark.parametrize('is_global', [False, True])
def test_words_of_the_question_are_linked_to_the_same_ones_of_the_text(is_global, tokenizer):
    asked = question(0, 40, 3, 4)
    asked = asked._replace(text=' '.join(asked.contexts[0].split()[5:8]))
    batch = encoded(tokenizer, asked).questions_batch([0])
    module = answering(link_equal=True, global_question=is_global)
    _, (graph, *_) = module._logits(batch)
    num_linked = 0
    for window, count in enumerate(batch.num_global.tolist()):
        begin, end = batch.ptr[window:window + 2].tolist()
        tokens, mask = batch.tokens[begin:end], graph.segment(window).to_mask()
        is_asked = torch.arange(len(tokens)) < count
        is_word = (tokens != tokens[0]) & (tokens != tokens[-1])
        linked = (tokens.unsqueeze(1) == tokens) & is_word & (is_asked.unsqueeze(1) != is_asked)
        near = torch.ones_like(mask).triu(-1).tril(1)
        if is_global:
            near |= is_asked.unsqueeze(1) | is_asked
        assert torch.equal(mask, near | linked)
        num_linked += int(linked.sum())
    assert num_linked >= 6


@pytest.mark.parametrize('options', [dict(words='bleu'), dict(max_answer=0), dict(num_best='2')])
def test_bad_options_of_the_objective(options):
    with pytest.raises((TypeError, ValueError), match=f"'{[*options][0]}' must be"):
        answering(**options)


def test_links_and_global_tokens_need_a_shared_source():
    own = Encoder('SlidingWindow(1)', **SIZES)
    for make, name in ((lambda: QuestionAnswering(SpanModel(own), global_question=True), 'global'),
                       (lambda: MultipleChoice(MultipleChoiceModel(own), global_question=True),
                        'global'),
                       (lambda: QuestionAnswering(SpanModel(own), link_equal=True), 'link_equal')):
        with pytest.raises(ValueError, match=f"'{name}.*share_source"):
            make()


# Choices #############################################################################

STORY = ChoiceQuestion('s', 'bamp bell', ('cook', 'dird gook bamp', 'fell', 'cook cook'), (), 1)
HOP = ChoiceQuestion('h', 'bell cook', ('dird', 'gook bamp', 'fell'),
                     ('cook ' * 30, 'dird ' * 9), 2)


def test_choices_stand_in_sequences_of_their_own_or_before_the_documents(tokenizer):
    special = special_tokens(tokenizer)
    batch = EncodedChoices([STORY, HOP], tokenizer, 24, 'test').batch([0, 1])
    assert batch.choice_ptr.tolist() == [0, 4, 7] and batch.label.tolist() == [1, 2]
    assert batch.selected[:4].tolist() == batch.ptr[:4].tolist()
    assert batch.choice[:4].tolist() == [0, 1, 2, 3]
    num_pieces = len(batch.ptr) - 1 - 4
    assert num_pieces > 1 and batch.choice[4:].tolist() == [4, 5, 6] * num_pieces
    assert (batch.tokens[batch.selected[4:]] == special.mask).all()
    assert batch.ptr.diff().max() <= 24 and batch.num_global[:4].tolist() == [0] * 4
    read = []
    for number in range(4, len(batch.ptr) - 1):
        begin, end = batch.ptr[number:number + 2].tolist()
        count = int(batch.num_global[number])
        head = batch.tokens[begin:begin + count].tolist()
        assert tokenizer.decode(head, skip_special_tokens=True) == 'bell cook dird gook bamp fell'
        read += batch.tokens[begin + count:end].tolist()
    assert tokenizer.decode(read, skip_special_tokens=True) == ' '.join(HOP.documents).replace(
        '  ', ' ').strip()


def test_the_choice_is_the_mean_over_the_pieces(tokenizer):
    module = MultipleChoice(MultipleChoiceModel(Encoder('Full', **SIZES)))
    batch = EncodedChoices([STORY, HOP], tokenizer, 24, 'test').batch([0, 1])
    logits = torch.arange(len(batch.selected), dtype=torch.float)
    module.model.forward = lambda *args, **kwargs: (logits, [])
    loss, dense, _ = module._loss(batch)
    means = logits[4:].view(-1, 3).mean(dim=0)
    assert dense[0].tolist() == [0., 1., 2., 3.] and torch.equal(dense[1, :3], means)
    expected = (3 - 1 + np.log(np.exp([-3., -2., -1., 0.]).sum()) - means.log_softmax(0)[2]) / 2
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_long_choices_are_cut_and_those_without_room_for_documents_named(tokenizer):
    long = STORY._replace(text='bamp ' * 20, choices=('cook ' * 20,) * 4)
    batch = EncodedChoices([long], tokenizer, 11, 'test').batch([0])
    assert batch.ptr.diff().tolist() == [11] * 4 and isinstance(batch, ChoiceBatch)
    assert batch.segments[:11].sum() == 5
    with pytest.raises(ValueError, match="'max_length' must be at least 14, .*question 'h'"):
        EncodedChoices([HOP], tokenizer, 12, 'test')
    with pytest.raises(ValueError, match="'max_length' must be at least 5"):
        Choices(None, max_length=4)


class Stories(ChoiceSource):
    """Some that are for testing too."""

    def read(self):
        dev = [STORY._replace(id=str(number)) for number in range(300)]
        return QuestionData('stories', {'train': [STORY], 'dev': dev, 'test': dev})


def test_a_part_that_is_also_for_testing_is_encoded_once(tokenizer, tmp_path, capsys):
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    data = Choices(Stories(), tokenizer=str(tmp_path / 'tokenizer.json'))
    data.setup()
    assert data.sets['test'] is data.sets['dev']
    assert 'stories, dev       300 questions of 4 choices;' in capsys.readouterr().out
