"""Readers of SQuAD, TriviaQA, SWAG and WikiHop, on files in their formats; and malformed ones."""

import csv
import json

import pytest

from experiments.data.text.answers import agreement, trivia_words
from experiments.data.text.choice_files import Swag, WikiHop
from experiments.data.text.question_files import Squad, TriviaQa

CONTEXT = 'Größe: the lamp, 東京, was lit in 1902 by Ada.'


def squad_row(number, text='lamp', begin=None, **others):
    begin = CONTEXT.index(text) if begin is None else begin
    return {'id': str(number), 'question': 'What?', 'answers': [
        {'text': text, 'answer_start': begin}], **others}


NONE = {'id': 'none', 'question': 'Who?', 'is_impossible': True, 'answers': [],
        'plausible_answers': [{'text': 'Ada', 'answer_start': 41}]}


def write_squad(path, rows):
    path.write_text(json.dumps({'version': 'v2.0', 'data': [
        {'title': 'A', 'paragraphs': [{'context': CONTEXT, 'qas': rows}]}]}, ensure_ascii=False))
    return str(path)


def read_squad(tmp_path, rows):
    path = write_squad(tmp_path / 'train.json', rows)
    return Squad(path, write_squad(tmp_path / 'dev.json', [squad_row(0)])).read().parts


def test_squad(tmp_path):
    several = {**squad_row(1, '東京'), 'is_impossible': False}
    several['answers'] += [{'text': 'lamp', 'answer_start': CONTEXT.index('lamp')}]
    parts = read_squad(tmp_path, [squad_row(0, '1902'), several, NONE])
    one, other, none = parts['train']
    assert one.contexts == (CONTEXT,) and one.accepted == ('1902',)
    assert [CONTEXT[begin:end] for _, begin, end in one.spans] == ['1902']
    assert other.accepted == ('東京', 'lamp') and len(other.spans) == 1
    assert none.accepted == none.spans == ()
    assert parts['test'] is parts['dev'] and len(parts['dev']) == 1


def test_answers_that_are_not_in_their_context_are_named_and_not_trained_on(tmp_path):
    with pytest.warns(UserWarning, match='3 questions .*positions: a, b, c$'):
        parts = read_squad(tmp_path, [squad_row(0), squad_row('a', 'lamp', 3),
                                      squad_row('b', 'lamps', 11), squad_row('c', 'lamp', -3)])
    assert [question.id for question in parts['train']] == ['0']
    with pytest.warns(UserWarning), pytest.raises(
            ValueError, match='train.json:.*question.*context.*got none'):
        read_squad(tmp_path, [squad_row(0, 'lamp', 3)])


def trivia_row(number, pages, kind='EntityPages', **others):
    return {'QuestionId': f'q{number}', 'Question': 'Which city?', kind: pages, 'Answer': {
        'Value': 'The Capital', 'Aliases': ['Paris', 'City of Light'],
        'NormalizedAliases': ['paris', 'city of light', 'capital']}, **others}


def page(name, is_verified=False):
    return {'Filename': name, 'DocPartOfVerifiedEval': is_verified}


def write_trivia(tmp_path, rows, name='train', domain='Wikipedia', verified=False):
    for folder in ('wikipedia', 'web/1'):
        (tmp_path / 'evidence' / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / 'evidence/wikipedia/A.txt').write_text('It was PARIS, not Parisian. Paris again.')
    (tmp_path / 'evidence/wikipedia/B.txt').write_text('Nothing\nof the kind.')
    (tmp_path / 'evidence/web/1/2.txt').write_text('the city of  light')
    path = tmp_path / f'{name}.json'
    path.write_text(json.dumps({'Data': rows, 'Domain': domain, 'VerifiedEval': verified}))
    return str(path)


def read_trivia(tmp_path, train, dev, **options):
    return TriviaQa(train, dev, str(tmp_path / 'evidence'), **options).read().parts


def test_triviaqa_finds_every_name_of_an_answer(tmp_path):
    train = write_trivia(tmp_path, [trivia_row(0, [page('B.txt'), page('A.txt')]),
                                    trivia_row(1, [page('B.txt')])])
    parts = read_trivia(tmp_path, train, train)
    question, = parts['train']  # the other one has no page with an answer
    assert question.contexts == ('It was PARIS, not Parisian. Paris again.',)
    assert [question.contexts[number][begin:end] for number, begin, end in question.spans] == [
        'PARIS', 'Paris']
    assert question.accepted == ('paris', 'city of light', 'capital')
    assert [len(question.contexts) for question in parts['dev']] == [2, 1]
    assert [span[0] for span in parts['dev'][0].spans] == [1, 1]
    assert read_trivia(tmp_path, train, train, max_words=4)['train'][0].contexts == (
        'It was PARIS, not',)


def test_triviaqas_web_asks_once_for_each_page(tmp_path):
    row = {**trivia_row(0, [page('A.txt', True)]), 'SearchResults': [page('1/2.txt')]}
    row['Answer']['HumanAnswers'] = ['Lutetia!']
    dev = write_trivia(tmp_path, [row], domain='Web')
    parts = read_trivia(tmp_path, dev, dev)
    assert [question.id for question in parts['dev']] == ['q0--A.txt', 'q0--1/2.txt']
    assert parts['dev'][1].contexts == ('the city of light',)
    assert parts['dev'][0].accepted[-1] == 'lutetia'
    verified = [{**row, 'QuestionPartOfVerifiedEval': True},
                {**row, 'QuestionId': 'q1', 'QuestionPartOfVerifiedEval': False}]
    path = write_trivia(tmp_path, verified, 'verified', 'Web', verified=True)
    assert [question.id for question in read_trivia(tmp_path, dev, path)['dev']] == ['q0--A.txt']


@pytest.mark.parametrize('rows, domain, match', [
    ([trivia_row(0, [page('../../secret.txt')])], 'Wikipedia', "'evidence' must.*pages"),
    ([trivia_row(0, [page('C.txt')])], 'Wikipedia', "'evidence' cannot be read: .*C.txt"),
    ([trivia_row(0, [])], 'Moon', "'Domain' must .*got 'Moon'"),
    ([{**trivia_row(0, []), 'Answer': 3}], 'Web', r"'Data\[0\].Answer' must be an object"),
    ([trivia_row(0, [{}])], 'Web', "Filename' is missing"),
    ([trivia_row(0, None)], 'Wikipedia', "EntityPages' must be a list"),
    ([trivia_row(0, [page('B.txt')])], 'Wikipedia', 'train.json:.*answer.*got none')])
def test_a_malformed_triviaqa_is_refused(rows, domain, match, tmp_path):
    path = write_trivia(tmp_path, rows, domain=domain)
    (tmp_path / 'secret.txt').write_text('secret')
    with pytest.raises(ValueError, match=match):
        read_trivia(tmp_path, path, path)
    with pytest.raises(ValueError, match="'max_words' must be at least 1"):
        TriviaQa(path, path, str(tmp_path), max_words=0)


SWAG_HEADER = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,' \
              'ending3,label'.split(',')


def write_swag(path, *rows, header=SWAG_HEADER):
    with path.open('w', newline='') as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def swag_row(number, label='2', endings=('sits.', 'runs, fast.', 'says "no".', 'waits\nlong.')):
    return [number, 'v', number, 'x', 'A man enters.', 'He', 'gold', *endings, label]


def test_swag(tmp_path):
    path = write_swag(tmp_path / 'train.csv', swag_row(0), swag_row(1, '0'))
    parts = Swag(path, path).read().parts
    assert [question.label for question in parts['train']] == [2, 0]
    assert [question.id for question in parts['train']] == ['2', '4']  # their first lines
    assert parts['train'][0].text == 'A man enters.'
    assert parts['train'][0].choices == ('He sits.', 'He runs, fast.', 'He says "no".',
                                         'He waits\nlong.')


@pytest.mark.parametrize('rows, header, match', [
    ([swag_row(0, endings=('a', 'b', 'c', ''))], SWAG_HEADER, 'line 2:.*text.*column.*4'),
    ([swag_row(0, endings=('a', 'b', 'c'))], SWAG_HEADER, 'line 2: .*got 11'),
    ([swag_row(0), swag_row(1, endings='abcde')], SWAG_HEADER, 'line 4: .*got 13'),
    ([swag_row(0, '4')], SWAG_HEADER, "line 2: .*got '4'"),
    ([swag_row(0)[:-1]], SWAG_HEADER[:-1], "line 1: .*'label'"),
    ([[*swag_row(0), '3']], [*SWAG_HEADER, 'label'], "line 1:.*'label'"),
    ([], SWAG_HEADER, 'train.csv.*no')])
def test_a_malformed_swag_is_refused(rows, header, match, tmp_path):
    path = write_swag(tmp_path / 'train.csv', *rows, header=header)
    with pytest.raises(ValueError, match=match):
        Swag(path, path).read()


def hop_row(number, answer='italy', candidates=('greece', 'italy', 'spain')):
    return {'id': f'WH_{number}', 'query': 'country ancient_rome', 'answer': answer,
            'candidates': list(candidates), 'supports': ['Rome is old.', 'It is in Italy.']}


def write_hops(path, *rows):
    path.write_text(json.dumps(rows))
    return str(path)


def test_wikihop(tmp_path):
    path = write_hops(tmp_path / 'train.json', hop_row(0), hop_row(1, 'b', 'ab'))
    questions = WikiHop(path, path).read().parts['train']
    assert questions[0].text == 'country ancient rome' and questions[0].label == 1
    assert [len(question.choices) for question in questions] == [3, 2]
    assert questions[1].documents == ('Rome is old.', 'It is in Italy.')


@pytest.mark.parametrize('content, match', [
    ('[\n3', r'not JSON \(.*line 2'), ('{}', 'expected a JSON array .got dict'),
    (json.dumps([hop_row(0, 'france')]), r"\[0\]:.*answer.*'candidates'.*got 'france'"),
    (json.dumps([{**hop_row(0), 'supports': []}]), r"\[0\]: expected.*'candidates'"),
    (json.dumps([{**hop_row(0), 'candidates': ['', 'italy']}]), r"\[0\]: expected"),
    (json.dumps([{**hop_row(0), 'query': None}]), r"'\[0\].query' must be a value of type str"),
    (json.dumps([hop_row(0), hop_row(0)]), "different id .*'WH_0'"),
    ('[]', 'at least one question')])
def test_a_malformed_wikihop_is_refused(content, match, tmp_path):
    (tmp_path / 'train.json').write_text(content)
    with pytest.raises(ValueError, match=match):
        WikiHop(str(tmp_path / 'train.json'), str(tmp_path / 'train.json')).read()


# Prediction, accepted answers, and what evaluate-v2.0.py makes of them.
CASES = [
    ('Denver Broncos', ['Denver Broncos'], 1, 1),
    ('the Denver Broncos!', ['Denver  broncos'], 1, 1),  # article, punctuation, case, blanks
    ('Broncos', ['Denver Broncos', 'The Broncos', 'Broncos of Denver'], 1, 1),  # the best
    ('Denver', ['Denver Broncos', 'Carolina'], 0, 2 / 3),
    ('a b c d', ['b c'], 0, 4 / 5),  # the article goes
    ('cat cat dog', ['cat dog dog'], 0, 2 / 3),  # as often as both have it
    ('an apple a day', ['apple the day'], 1, 1),
    ('U.S.A.', ['USA'], 1, 1), ("it's", ['its'], 1, 1), ('well-known', ['well known'], 0, 0),
    ('Größe', ['größe'], 1, 1), ('naïve café', ['naive cafe'], 0, 0),
    ('東京 タワー', ['東京 タワー'], 1, 1), ('“quoted”', ['quoted'], 0, 0),  # no ASCII
    ('ﬁsh', ['ﬁsh'], 1, 1), ('42', ['42.'], 1, 1),
    ('', [], 1, 1), ('something', [], 0, 0),  # no answer
    ('the', [], 1, 1),  # says nothing
    ('', ['something'], 0, 0), ('the', ['something'], 0, 0),
    ('', ['the'], 1, 1), ('x', ['the', 'x'], 1, 1), ('y', ['the', 'x'], 0, 0),
]


@pytest.mark.parametrize('said, accepted, exact, f1', CASES)
def test_scores_are_those_of_the_official_script(said, accepted, exact, f1):
    assert agreement(said, accepted) == (exact, pytest.approx(f1))


def test_triviaqa_separates_words_at_marks():
    assert trivia_words('The_Spice-Girls’ “hit”') == ['spice', 'girls', '“hit”']
    assert agreement('well-known', ['well known'], trivia_words) == (1, 1)
