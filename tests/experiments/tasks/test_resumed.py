"""A task that is killed and resumed ends as one that was not, on one process or on two, with others
that prepare batches. Masked language modelling has a test of its own."""

import csv
import json
import signal

import pytest
import torch
import yaml
from torch_geometric.data import Data

from experiments import train
from tests.forked import forked

pytestmark = pytest.mark.slow

WORDS = 'lamp bell bird cook fell game hook land mast nest oath park rope song tree wood'.split()
RUN = {'seed_everything': 1, 'checkpoint_every': 2,
       'trainer': {'max_steps': 7, 'max_epochs': -1, 'accelerator': 'cpu', 'devices': 1,
                   'enable_progress_bar': False, 'limit_test_batches': 2, 'limit_val_batches': 2}}
SIZES = {'channels': 8, 'heads': 2, 'num_layers': 1, 'dropout': .1, 'share_source': True}


def questions(folder):
    rows = []
    for number in range(24):
        words = [WORDS[(number * step + step**2) % 16] for step in range(1, 21)]
        context, answer = ' '.join(words), words[number % 20]
        rows.append({'context': context, 'qas': [{
            'id': str(number), 'question': f'what is {answer} ?', 'is_impossible': number % 5 == 0,
            'answers': [] if number % 5 == 0 else [
                {'text': answer, 'answer_start': context.index(answer)}]}]})
    path = folder / 'squad.json'
    path.write_text(json.dumps({'data': [{'paragraphs': rows}]}))
    return task('QuestionAnswering', 'SpanModel', {'max_length': 24, 'num_tokens': 200},
                {'may_have_none': True, 'global_question': True},
                'Questions', folder, max_length=24, stride=8, max_question=6, num_workers=2,
                questions=source('text.question_files.Squad', train=path, dev=path))


def choices(folder):
    path = folder / 'swag.csv'
    with path.open('w', newline='') as file:
        rows = csv.writer(file)
        rows.writerow(['sent1', 'sent2', *(f'ending{place}' for place in range(4)), 'label'])
        for number in range(24):
            rows.writerow([f'a {WORDS[number % 16]}', 'the', *(
                WORDS[(number * place) % 16] for place in range(1, 5)), number % 4])
    return task('MultipleChoice', 'MultipleChoiceModel', {'max_length': 12, 'num_tokens': 200}, {},
                'Choices', folder, max_length=12, num_workers=2,
                questions=source('text.choice_files.Swag', train=path, dev=path))


def density(folder):
    return task('DensityEstimation', 'CausalLanguageModel',
                {'max_length': 64, 'num_tokens': 18, 'positions': [8, 8, 1], 'causal': True},
                {}, 'Images', None, max_length=64, num_samples=2,
                source=source('digits.DigitImages'))


def graphs(folder):
    """Return a training on small graphs, with transforms that draw for each epoch."""
    torch.manual_seed(0)
    torch.save([Data(x=torch.randn(size, 4), y=torch.tensor([size % 3]),
                     edge_index=torch.randint(size, (2, 3 * size)))
                for size in range(2, 26)], folder / 'mine.pt')
    return graph_task(folder, {
        'pre_transforms': [{'class_path': 'torch_geometric.transforms.ToUndirected'},
                           {'class_path': 'graphattn.transforms.LaplacianPE',
                            'init_args': {'k': 2, 'is_undirected': True}}],
        'transforms': [{'class_path': 'graphattn.transforms.RandomSignFlip',
                        'init_args': {'attr_name': 'laplacian_eigenvector_pe'}}]},
        {'encodings': {'laplacian_eigenvector_pe': 2}, 'joins_edges': True, 'source': {
            'class_path': 'graphattn.sources.BlockModelSource',
            'init_args': {'heads': 2, 'head_channels': 4, 'clusters': 3}}})


def neighbors(folder):
    """Return a training on samples of neighbours in one graph."""
    torch.manual_seed(0)
    part = torch.arange(60) % 3
    torch.save(Data(x=torch.randn(60, 4), y=torch.arange(60) % 4,
                    edge_index=torch.randint(60, (2, 300)), train_mask=part == 0,
                    val_mask=part == 1, test_mask=part == 2), folder / 'mine.pt')
    return graph_task(folder, {'num_neighbors': [3, 2], 'num_workers': 2}, {'source': {
        'class_path': 'graphattn.sources.PatternSource',
        'init_args': {'pattern': 'RandomKeys(3)'}}})


def graph_task(folder, data, model):
    return {
        **RUN, 'model': {'class_path': 'experiments.modules.GraphPrediction', 'init_args': {
            'lr': 0.01, 'target': 'classes', 'model': {
                'class_path': 'graphattn.models.GraphTransformer', 'init_args': {
                    'features': 4, 'out_channels': 3, 'channels': 8, 'heads': 2, 'num_layers': 1,
                    'dropout': .1, **model}}}},
        'data': {'class_path': 'experiments.tasks.graphs.OwnGraphs', 'init_args': {
            'path': str(folder / 'mine.pt'), 'cache': str(folder / 'cache'), 'batch_size': 4,
            **data}}}


def source(name, **arguments):
    return {'class_path': f'experiments.data.{name}',
            'init_args': {key: str(value) for key, value in arguments.items()}}


def task(module, model, encoder, options, data, folder, **arguments):
    if folder is not None:
        arguments = {'vocab_size': 200, 'cache': str(folder / 'cache'), **arguments}
    return {
        **RUN, 'model': {'class_path': f'experiments.modules.{module}', 'init_args': {
            'lr': 0.01, **options, 'model': {
                'class_path': f'graphattn.models.{model}', 'init_args': {'encoder': {
                    'class_path': 'graphattn.models.Encoder', 'init_args': {
                        **SIZES, **encoder, 'hops': 2, 'teleport': .1, 'source': {
                            'class_path': 'graphattn.sources.PatternSource',
                            'init_args': {'pattern': 'SlidingWindow(2) | GlobalTokens(1)'}}}}}}}},
        'data': {'class_path': f'experiments.tasks.{data}',
                 'init_args': {'batch_size': 4, **arguments}}}


def fit(config, run, ranks, *options):
    several = ['--trainer.devices', str(ranks), '--trainer.strategy', 'ddp'] if ranks > 1 else []
    train.main(['fit', '--config', str(config), '--trainer.default_root_dir', str(run), *several,
                *options])


def fit_to_the_end(config, run, ranks, *options):
    if ranks == 1:
        return fit(config, run, ranks, *options)
    processes = forked(lambda: fit(config, run, ranks, *options), ranks=ranks)
    assert {process.returncode for process in processes} == {0}, processes


@pytest.mark.parametrize('task_of, ranks', [
    (questions, 1), (choices, 1), (density, 1), (graphs, 2), (neighbors, 1)])
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_numbers(task_of, ranks, tmp_path):
    config = tmp_path / 'config.yaml'
    config.write_text(yaml.safe_dump(task_of(tmp_path)))
    fit_to_the_end(config, tmp_path / 'whole', ranks)
    killed = forked(lambda: fit(config, tmp_path / 'cut', ranks,
                                '--trainer.callbacks+=tests.experiments.callbacks.Kill',
                                '--trainer.callbacks.steps=5'), ranks=ranks)
    assert {process.returncode for process in killed} == {-signal.SIGKILL}, killed
    last = tmp_path / 'cut/checkpoints/last.ckpt'
    assert torch.load(last, weights_only=True)['global_step'] == 4
    (tmp_path / 'cut/config.yaml').unlink()  # which told of the callback
    fit_to_the_end(config, tmp_path / 'cut', ranks, '--ckpt_path', str(last))
    whole, cut = (torch.load(tmp_path / run / 'checkpoints/last.ckpt', weights_only=True)
                  for run in ('whole', 'cut'))
    assert whole['global_step'] == cut['global_step'] == 7
    for name, value in whole['state_dict'].items():
        assert torch.equal(value, cut['state_dict'][name]), name
    first, second = (json.loads((tmp_path / run / 'summary.json').read_text())
                     for run in ('whole', 'cut'))
    for summary in (first, second):
        del summary['seconds'], summary['compile_seconds']
    assert first == second and first['processes'] == ranks
