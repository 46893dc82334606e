import json

import pytest
from jsonargparse import get_loader

from experiments.runs.config_file import bound_aliases, in_one, lay_over
from graphattn._reading import MOST_NODES


def read_yaml(text):
    bound_aliases()
    return get_loader('yaml')(text)


def test_aliases_are_read():
    assert read_yaml('a: &a {x: 1.5e-3}\nb: [*a, *a]') == {
        'a': {'x': 1.5e-3}, 'b': [{'x': 1.5e-3}] * 2}


DOUBLED = ''.join(f'k{i}: &k{i} [*k{i - 1}, *k{i - 1}]\n' for i in range(1, 18))
MERGED = ''.join(f'k{i}: &k{i} {{<<: [*k{i - 1}, *k{i - 1}]}}\n' for i in range(1, 40))


@pytest.mark.parametrize('text', [
    'k0: &k0 [1]\n' + DOUBLED, 'k0: &k0 {x: 1}\n' + MERGED, '&a [*a]',
    f'a: &a [{"1, " * 1000}]\nb: [{"*a, " * (MOST_NODES // 1000)}]'])
def test_aliases_do_not_multiply(text):
    with pytest.raises(ValueError, match='more than 100,000 entries'):
        read_yaml(text)


@pytest.mark.parametrize('opening', ['[', '{a: ', '- ', '? '])
def test_levels_do_not_fill_the_stack(opening):
    with pytest.raises(ValueError, match='more than 100 levels'):
        read_yaml(100_000 * opening)


def test_configs_that_follow_one_another_become_one(tmp_path):
    (tmp_path / 'a.yaml').write_text('trainer: {max_epochs: 1, devices: 1}\nmodel: {class_path: A}')
    (tmp_path / 'b.yaml').write_text('trainer: {max_epochs: 2}')
    files = [option for name in 'ab' for option in ('--config', str(tmp_path / f'{name}.yaml'))]
    *options, said = in_one([*files, '--config', '{"seed": 3}', '--x=1', '--y', 'z', *files[:2]])
    first = json.dumps({'trainer': {'max_epochs': 2, 'devices': 1}, 'model': {'class_path': 'A'},
                        'seed': 3})
    assert options == ['--config', first, '--x=1', '--y', 'z', '--config']
    assert json.loads(said) == {'trainer': {'max_epochs': 1, 'devices': 1},
                                'model': {'class_path': 'A'}}


def test_another_class_has_arguments_of_its_own():
    config = {'source': {'class_path': 'A', 'init_args': {'a': 1}}}
    lay_over(config, {'source': {'init_args': {'b': 2}}})
    assert config['source'] == {'class_path': 'A', 'init_args': {'a': 1, 'b': 2}}
    lay_over(config, {'source': {'class_path': 'B', 'init_args': {'c': 3}}})
    assert config['source'] == {'class_path': 'B', 'init_args': {'c': 3}}
