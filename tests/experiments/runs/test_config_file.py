import copy
from inspect import signature
from itertools import cycle
from typing import get_args, get_type_hints

import lightning as L
import pytest
import yaml
from jsonargparse import ArgumentError, get_loader

import experiments.data.byte_text
import experiments.data.cifar
import experiments.data.imagenet64
import experiments.data.listops
import experiments.data.pathfinder
import experiments.data.text.package_docs
import experiments.modules
import experiments.tasks
from experiments import train
from experiments.cli import CONFIGS
from experiments.data.sequences import SequenceSource
from experiments.data.text.choice_files import ChoiceSource
from experiments.data.text.document_files import DocumentSource
from experiments.data.text.question_files import QuestionSource
from experiments.runs.command import in_short
from experiments.runs.config_file import Parser, bound_aliases, laid_over
from graphattn.utils.reading import read_yaml as read_file


def read_yaml(text):
    bound_aliases()
    return get_loader('yaml')(text)


DOUBLED = ''.join(f'k{i}: &k{i} [*k{i - 1}, *k{i - 1}]\n' for i in range(1, 18))
MERGED = ''.join(f'k{i}: &k{i} {{<<: [*k{i - 1}, *k{i - 1}]}}\n' for i in range(1, 40))


@pytest.mark.parametrize('text', [
    'k0: &k0 [1]\n' + DOUBLED, 'k0: &k0 {x: 1}\n' + MERGED, '&a [*a]'])
def test_aliases_do_not_multiply(text):
    with pytest.raises(ValueError, match='more than 100,000 entries'):
        read_yaml(text)


# What a reader of YAML 1.1 or 1.2, or of jsonargparse's own, may take for something else.
STRANGE = [
    '1e5', '7E1', '1e-3', '.5', '1.', '+1', '007', '0o7', '0x1f', '0b1', '1_000', '12:30', '.inf',
    '.nan', 'no', 'y', 'true', 'Null', 'NULL', '~', '', ' ', ' x', 'x ', '=', '<<', '-', '?',
    '2026-01-01', '2026-13-41', '- a', 'a: b', 'a:', '1:', '[a, b]', '{a: b}', '{', '#', '#1.csv',
    'a #b', '!x', '&a', '*a', '|', '>', '%', '@', '`', '"a"', "'", 'a\nb', 'a\tb', '\\', '\x85',
    '\u2028', '\ufeff', '\x00', '\x7f', '\xa0', '\u00e9', '\U0001f600', '${x}', 'None', '==UNSET==']
next_string = cycle(STRANGE)
MADE = {'model': ('torch.nn.Identity', {}),
        'documents': ('experiments.data.text.document_files.TextFolders', {'path': ' x'}),
        'questions': ('experiments.data.text.question_files.Squad', {'train': '~', 'dev': '1e5'}),
        'source': ('experiments.data.listops.ListOpsFiles', {'path': 'no'})}
OF_CHOICES = ('experiments.data.text.choice_files.Swag', {'train': '~', 'dev': '1e5'})


def strings_of(kind):
    """The arguments of a class that are strings of the user's, or lists of them."""
    return {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind.__init__).items()
            if {str, list[str]} & {hint, *get_args(hint)}}


def value_of(kind, name):
    """Return a config's value for an argument without a default."""
    if name not in MADE:
        return 1
    made = OF_CHOICES if kind is experiments.tasks.Choices else MADE[name]
    return dict(zip(('class_path', 'init_args'), made))


def kinds_with_strings():
    kinds = [L.LightningDataModule, L.LightningModule, SequenceSource, DocumentSource,
             QuestionSource, ChoiceSource]
    for kind in kinds:
        kinds += [some for some in kind.__subclasses__()
                  if some.__module__.startswith('experiments.') and some not in kinds]
    return sorted((kind for kind in kinds if strings_of(kind)), key=lambda kind: kind.__qualname__)


@pytest.mark.slow
@pytest.mark.parametrize('kind', kinds_with_strings(), ids=lambda kind: kind.__name__)
def test_each_string_of_a_config_is_that_string_when_it_is_loaded(kind, tmp_path):
    bound_aliases()
    parser = Parser(exit_on_error=False)
    parser.is_nested = False
    parser.add_argument('--part', type=kind)
    needed = {name: value_of(kind, name) for name, parameter in signature(kind).parameters.items()
              if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD}
    for lists in (STRANGE, STRANGE[:1], STRANGE[:1]):
        strings = {name: lists if list[str] in kinds else next(next_string)
                   for name, kinds in strings_of(kind).items()}
        options = parser.parse_object({'part': {
            'class_path': f'{kind.__module__}.{kind.__qualname__}', 'init_args': needed | strings}})
        (tmp_path / 'config.yaml').write_text(
            parser.dump(options, skip_unset=False, skip_validation=True), encoding='utf-8')
        said = read_file(tmp_path / 'config.yaml')
        for read in (options.as_dict(), said, parser.parse_object(said).as_dict()):
            assert read['part']['init_args'] | strings == read['part']['init_args']


def places(tree, place=()):
    """The place of each mapping in a config."""
    if isinstance(tree, dict):
        yield place
        for name, part in tree.items():
            yield from places(part, (*place, name))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['digits/sbm', 'graphs/gps'])
def test_an_unknown_option_is_refused_at_every_level(name, tmp_path, monkeypatch):
    config = laid_over(CONFIGS / f'{name}.yaml')
    monkeypatch.setattr(train.TrainCLI, 'run', lambda _: None)
    for place in places(config):
        if place[-1:] == ('encodings',):  # their names are those of attributes of the graphs
            continue
        changed = copy.deepcopy(config)
        part = changed
        for key in place:
            part = part[key]
        part['num_layer'] = 1
        (tmp_path / 'config.yaml').write_text(yaml.safe_dump(changed))
        with pytest.raises(ValueError, match='num_layer'):
            train.main(['fit', '--config', str(tmp_path / 'config.yaml'),
                        f'--trainer.default_root_dir={tmp_path / "run"}'])


@pytest.mark.parametrize('within', ['init_args.', ''])
def test_a_config_stands_on_another_one(within, tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text(f"""
base: digits/sbm
model.{within}lr: 0.5
model.{within}model.{within}encoder.init_args:
  channels: 32
  source: {{class_path: graphattn.sources.PatternSource, init_args: {{pattern: Full}}}}
""")
    own, base = laid_over(path), laid_over(CONFIGS / 'digits/sbm.yaml')
    assert own['model']['init_args']['lr'] == 0.5 and own['data'] == base['data']
    encoder, before = (config['model']['init_args']['model']['init_args']['encoder']['init_args']
                       for config in (own, base))
    assert encoder == before | {'channels': 32, 'source': {
        'class_path': 'graphattn.sources.PatternSource', 'init_args': {'pattern': 'Full'}}}


@pytest.mark.parametrize('name', ['digits/sbn', '../configs/digits/sbm', '/etc/x', 3])
def test_the_base_of_a_config_is_one_of_this_project(name, tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text(yaml.safe_dump({'base': name}))
    with pytest.raises(ValueError, match="'base' must be the name of a config"):
        laid_over(path)


INNER = "model: {init_args: {model: {init_args: {encoder: {init_args: {NAME: 3}}}}}}"


@pytest.mark.parametrize('text, said', [
    ('modle: {}', "'modle' is not an argument; did you mean model?"),
    ('trainer: {max_epoch: 3}', "'trainer.max_epoch' is not an argument; did you mean "
                                'trainer.max_epochs?'),
    ('data.batch_sze: 3', "'data.batch_sze' is not an argument of experiments.tasks.Text; did you "
                          'mean batch_size?'),
    ('data: {init_args: {batch_sze: 3}}', "'data.batch_sze' is not an argument of "
                                          'experiments.tasks.Text; did you mean batch_size?'),
    (INNER.replace('NAME', 'chanels'), "'model.model.encoder.chanels' is not an argument of "
                                       'graphattn.models.Encoder; did you mean channels?'),
    (INNER.replace('NAME', 'source: {class_path: graphattn.BlockModelSource, init_args: {heads: 4, '
                           'head_channels: 8, cluster: 4}}, x'),
     "'model.model.encoder.source.cluster' is not an argument of graphattn.BlockModelSource; did "
     'you mean clusters?')])
def test_an_unknown_name_in_a_file_is_one_line(text, said, tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text('base: text\n' + text)
    with pytest.raises(ValueError) as error:
        train.main(['fit', '--config', str(path), '--data.path', 'no.csv'])
    assert in_short(error.value) == f'{path}: {said}'


@pytest.mark.parametrize('source, said', [
    (['BlockModelSource', '.heads', 'x'], "'model.model.encoder.source': 'heads' must be of type "
                                          "int (got 'x')"),
    (['PatternSource', '.pattern', 'Ful'], "'pattern' cannot be read: 'expression' names an "
                                           "unknown pattern (got 'Ful'); did you mean 'Full'?")])
def test_the_other_types_of_an_option_are_not_listed(source, said):
    (name, *more), option = source, '--model.model.encoder.source'
    words = [option, f'graphattn.sources.{name}', *(
        word if word[0] != '.' else option + word for word in more)]
    with pytest.raises((ArgumentError, ValueError)) as error:
        train.main(['fit', '--config', str(CONFIGS / 'digits/full.yaml'), *words])
    assert in_short(error.value) == said


def test_an_unknown_class_in_a_file_is_one_line(tmp_path, monkeypatch):
    (tmp_path / 'ours.py').write_text('class Similar:\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / 'mine.yaml'
    path.write_text('base: text\nmodel.model.encoder.source.class_path: ours.Similr\n')
    with pytest.raises(ValueError) as error:
        train.main(['fit', '--config', str(path), '--data.path', 'no.csv', '--import', 'ours'])
    assert in_short(error.value) == (f"{path}: 'model.model.encoder.source': module 'ours' has no "
                                     f"attribute 'Similr'; did you mean Similar?")
