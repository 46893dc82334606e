import pytest
import yaml
from jsonargparse import get_loader

from experiments.runs.config_file import bound_aliases
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
    # Later versions of libyaml have a limit of their own, which they may reach first.
    with pytest.raises((ValueError, yaml.YAMLError), match='100 levels|nesting depth'):
        read_yaml(100_000 * opening)
