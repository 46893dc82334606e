"""Taking up a pre-trained model: its weights, where its edges come from, and what is refused."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaConfig, RobertaModel

from experiments import train
from experiments.modules import LanguageModelling
from experiments.runs.checkpoints import write_checkpoint
from experiments.runs.pretrained import begun_classifier, pretrained_classifier, roberta
from graphattn.models import Encoder, MaskedLanguageModel, SequenceClassifier, load_roberta
from graphattn.patterns import Full
from graphattn.sources import PatternSource
from tests.experiments.glue_files import write_pretrained
from tests.experiments.tasks.test_documents import write_config

TOKENS, PTR = torch.arange(5, 55), torch.tensor([0, 12, 50])
NODES = torch.empty(50, 2, 1)
SEGMENTS = (TOKENS > 30).long()


@pytest.fixture(scope='module')
def full(tmp_path_factory):
    return write_pretrained(tmp_path_factory.mktemp('full'))


@pytest.fixture(scope='module')
def learned(tmp_path_factory):
    return write_pretrained(tmp_path_factory.mktemp('learned'), 'learned')


def encode(model):
    return model.encoder.eval()(TOKENS, PTR, segments=SEGMENTS, return_graphs=True)


def same_edges(graph, other):
    return torch.equal(graph.key, other.key) and torch.equal(graph.query, other.query)


@pytest.mark.slow
def test_encoder_and_pooler_are_the_pre_trained_ones(full):
    checkpoint, model = full
    classifier = pretrained_classifier(checkpoint, 3)
    x = encode(model)[0]
    torch.testing.assert_close(encode(classifier)[0], x)
    logits = classifier.eval()(TOKENS, PTR, segments=SEGMENTS)
    torch.testing.assert_close(logits, classifier.head(model.pooler(x, PTR)))
    assert logits.shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize('how, sparsity', [('threshold', None), (None, None), ('top-k', 0.7)])
def test_a_learned_mask_is_frozen_also_for_training(how, sparsity, learned):
    checkpoint, model = learned
    classifier = pretrained_classifier(checkpoint, 2, freeze_how=how, sparsity=sparsity).train()
    masks = model.encoder.source.freeze(how or 'threshold', sparsity)
    expected = PatternSource(masks)(NODES, NODES, PTR)
    graphs = classifier(TOKENS, PTR, segments=SEGMENTS, return_graphs=True)[1]
    assert len(graphs) == 2 and all(same_edges(graph, expected) for graph in graphs)
    assert not any('source' in name for name, _ in classifier.named_parameters())
    if sparsity is None:
        torch.testing.assert_close(encode(classifier)[0], encode(model)[0])


@pytest.mark.slow
def test_a_sample_is_one_draw_of_the_seed(learned):
    def edges(seed):
        torch.manual_seed(seed)
        torch.rand(seed)  # what was drawn before does not matter
        classifier = pretrained_classifier(learned[0], 2, freeze_how='sample')
        return classifier.encoder.source.patterns

    assert edges(1) == edges(1) != edges(2)


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [{'freeze_how': 'sample'}, {'sparsity': 0.5}])
def test_nothing_to_freeze(arguments, full, learned):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"'{name}' requires .* with a learned mask"):
        pretrained_classifier(full[0], 2, **arguments)
    with pytest.raises(ValueError, match=f"'{name}' requires .* with a learned mask"):
        pretrained_classifier(learned[0], 2, source=PatternSource('Full'), **arguments)


@pytest.mark.slow
def test_a_model_without_pooler(full, tmp_path):
    config = yaml.safe_load((full[0].parents[1] / 'config.yaml').read_text())
    config['model']['init_args']['model']['init_args']['next_sentence'] = False
    (tmp_path / 'config.yaml').write_text(yaml.safe_dump(config))
    checkpoint = tmp_path / 'checkpoints/last.ckpt'
    checkpoint.parent.mkdir()
    saved = torch.load(full[0], weights_only=True)['state_dict']
    kept = {name: value for name, value in saved.items()
            if 'pooler' not in name and 'next_sentence' not in name}
    write_checkpoint({'state_dict': kept}, checkpoint)
    with pytest.raises(ValueError, match="'pooling' must be 'mean'"):
        pretrained_classifier(checkpoint, 2)
    assert pretrained_classifier(checkpoint, 2, pooling='mean').pooler is None


SIZES = dict(num_tokens=300, max_length=40, channels=16, heads=2, num_layers=1,
             hidden_channels=24, num_segments=1, norm_first=False)


@pytest.fixture(scope='module')
def roberta_file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('roberta') / 'model.safetensors'
    config = RobertaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1,
                           num_attention_heads=2, intermediate_size=24,
                           max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5)
    config.save_pretrained(path.parent)
    save_file(RobertaModel(config).state_dict(), path)
    torch.save(RobertaModel(config).state_dict(), path.with_suffix('.bin'))
    return path


def untrained():
    return SequenceClassifier(Encoder(PatternSource(Full()), **SIZES), 2, pooling='pooler')


@pytest.mark.parametrize('suffix', ['.safetensors', '.bin'])
def test_weights_of_roberta_come_from_a_file(suffix, roberta_file):
    model = roberta(roberta_file.with_suffix(suffix), untrained())
    position = model.encoder.position_embedding.weight
    assert torch.equal(position[32:], position[:8])
    with pytest.raises(ValueError, match='40'):
        roberta(roberta_file, untrained(), tile_positions=False)


def test_a_classifier_begins_with_the_weights_in_a_folder(roberta_file):
    model = begun_classifier(roberta_file.parent, 3)
    expected = load_file(roberta_file)['embeddings.word_embeddings.weight']
    assert torch.equal(model.encoder.token_embedding.weight, expected)
    assert model.num_classes == 3 and model.encoder.position_embedding.num_embeddings == 32


def test_weights_that_are_not_robertas(roberta_file, tmp_path):
    torch.save({'weight': torch.ones(2)}, tmp_path / 'other.bin')
    (tmp_path / 'broken.safetensors').write_text('nothing')
    # The last one lacks its config.json.
    for name in ('broken.safetensors', 'missing.bin', 'other.bin'):
        with pytest.raises(ValueError, match=f"'weights' cannot be read: .*{name} with .*config.j"):
            roberta(tmp_path / name, untrained())
    config = json.loads((roberta_file.parent / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'state_dict' .*word_embeddings.weight.*got None"):
        roberta(tmp_path / 'other.bin', untrained())
    (tmp_path / 'config.json').write_text(json.dumps({**config, 'hidden_act': 'relu'}))
    with pytest.raises(ValueError, match="'config' must.*hidden_act='gelu'.*.got 'relu'"):
        roberta(tmp_path / 'other.bin', untrained())


def test_pre_training_begins_with_robertas_weights(roberta_file):
    encoder = Encoder(PatternSource('SlidingWindow(2)'), **SIZES, hops=5, teleport=.1)
    model = MaskedLanguageModel(encoder, next_sentence=False)
    LanguageModelling(model, roberta=str(roberta_file))
    expected = load_file(roberta_file)['embeddings.position_embeddings.weight'][2:]
    position = encoder.position_embedding.weight
    assert torch.equal(position[:32], expected) and torch.equal(position[32:], expected[:8])
    with pytest.raises(ValueError, match="'weights' cannot be read: nowhere.bin"):
        LanguageModelling(model, roberta='nowhere.bin')


def test_pre_training_goes_on_from_a_checkpoint(full, roberta_file):
    checkpoint, model = full
    sizes = dict(num_tokens=120, max_length=40, channels=16, heads=2, num_layers=2, num_segments=2,
                 norm_first=False)
    torch.manual_seed(1)
    other = MaskedLanguageModel(Encoder(PatternSource('SlidingWindow(2)'), **sizes))
    LanguageModelling(other, pretrained=str(checkpoint))
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()))
    headless = MaskedLanguageModel(other.encoder, next_sentence=False)
    with pytest.raises(ValueError, match="'pretrained' must fit.*'next_sentence.bias'.*None here"):
        LanguageModelling(headless, pretrained=str(checkpoint))
    with pytest.raises(ValueError, match="'pretrained' and 'roberta' must not both be given"):
        LanguageModelling(other, pretrained=str(checkpoint), roberta=str(roberta_file))


@pytest.mark.slow
def test_documents_are_classified_from_robertas_weights(roberta_file, tmp_path):
    path = write_config(tmp_path, tokenizer=str(tmp_path / 'tokenizer.json'), max_length=40)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        ['a great film'], vocab_size=300, show_progress=False,
        special_tokens=['<s>', '<pad>', '</s>', '<unk>', '<mask>'])
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    config = yaml.safe_load(path.read_text())
    config['trainer']['max_steps'] = 1
    module = config['model']['init_args']
    module['lr'] = 1e-12
    encoder = module['model']['init_args']['encoder']['init_args']
    del encoder['dropout']
    encoder |= SIZES
    module['model']['init_args']['pooling'] = 'pooler'
    module['model'] = {'class_path': 'experiments.runs.pretrained.roberta', 'init_args': {
        'weights': str(roberta_file), 'model': module['model']}}
    path.write_text(yaml.safe_dump(config))
    train.main(['fit', '--config', str(tmp_path / 'config.yaml')])
    saved = torch.load(tmp_path / 'run/checkpoints/last.ckpt', weights_only=True)['state_dict']
    expected = untrained()
    load_roberta(expected, load_file(roberta_file),
                 json.loads((roberta_file.parent / 'config.json').read_text()),
                 tile_positions=True)
    torch.testing.assert_close(saved['model.encoder.token_embedding.weight'],
                               expected.encoder.token_embedding.weight, rtol=0, atol=1e-9)
