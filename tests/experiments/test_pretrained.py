"""Taking up a pre-trained model: its weights, where its edges come from, and what is refused."""

import pytest
import torch
import yaml

from experiments.pretrained import pretrained_classifier
from graphattn.patterns import SlidingWindow, save_masks
from graphattn.sources import BlockModelSource, PatternSource
from tests.experiments.glue_files import write_pretrained

TOKENS, PTR = torch.arange(5, 55), torch.tensor([0, 12, 50])
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


def test_encoder_and_pooler_are_the_pre_trained_ones(full):
    checkpoint, model = full
    classifier = pretrained_classifier(checkpoint, 3)
    torch.testing.assert_close(encode(classifier)[0], encode(model)[0])
    x = encode(model)[0]
    torch.testing.assert_close(classifier.pooler(x, PTR), model.pooler(x, PTR))
    logits = classifier.eval()(TOKENS, PTR, segments=SEGMENTS)
    torch.testing.assert_close(logits, classifier.head(model.pooler(x, PTR)))
    assert logits.shape == (2, 3)


def test_mean_pooling_is_over_the_tokens_of_each_sequence(full):
    classifier = pretrained_classifier(full[0], 2, pooling='mean').eval()
    x = encode(full[1])[0]
    mean = torch.stack([x[:12].mean(0), x[12:].mean(0)])
    torch.testing.assert_close(classifier(TOKENS, PTR, segments=SEGMENTS), classifier.head(mean))


@pytest.mark.parametrize('how, sparsity', [('threshold', None), (None, None), ('top-k', 0.7)])
def test_a_learned_mask_is_frozen_also_for_training(how, sparsity, learned):
    checkpoint, model = learned
    classifier = pretrained_classifier(checkpoint, 2, freeze_how=how, sparsity=sparsity).train()
    masks = model.encoder.source.freeze(how or 'threshold', sparsity)
    expected = PatternSource(masks)(torch.empty(50, 2, 1), None, PTR)
    graphs = classifier(TOKENS, PTR, segments=SEGMENTS, return_graphs=True)[1]
    assert len(graphs) == 2 and all(same_edges(graph, expected) for graph in graphs)
    assert not any('source' in name for name, _ in classifier.named_parameters())
    if sparsity is None:
        torch.testing.assert_close(encode(classifier)[0], encode(model)[0])


def test_a_sample_is_one_draw_of_the_seed(learned):
    def edges(seed):
        torch.manual_seed(seed)
        torch.rand(seed)  # what was drawn before does not matter
        classifier = pretrained_classifier(learned[0], 2, freeze_how='sample')
        return classifier.encoder.source.patterns

    assert edges(1) == edges(1) != edges(2)


def test_another_source_takes_the_place_and_the_weights_stay(learned):
    checkpoint, model = learned
    source = PatternSource(SlidingWindow(2))
    classifier = pretrained_classifier(checkpoint, 2, source=source)
    mine, theirs = classifier.encoder.state_dict(), model.encoder.state_dict()
    assert set(theirs) - set(mine) == {'source.logit'}
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for graph in encode(classifier)[1]:
        assert same_edges(graph, source(torch.empty(50, 2, 1), None, PTR))


def test_a_source_with_parameters_is_one_for_each_layer(full):
    classifier = pretrained_classifier(full[0], 2, source=BlockModelSource(2, 8, 4))
    names = [name for name, _ in classifier.named_parameters() if 'source' in name]
    assert {name.split('.')[2] for name in names} == {'0', '1'}


def test_masks_from_a_file(learned, full, tmp_path):
    masks = learned[1].encoder.source.freeze()
    path = tmp_path / 'masks.npz'
    save_masks(path, masks)
    classifier = pretrained_classifier(full[0], 2, source=PatternSource(str(path)))
    expected = PatternSource(masks)(torch.empty(50, 2, 1), None, PTR)
    assert same_edges(encode(classifier)[1][0], expected)


def test_masks_of_another_number_of_heads(learned, full):
    masks = learned[1].encoder.source.freeze()
    with pytest.raises(ValueError, match="'source' must be for 2 heads .got one for 3"):
        pretrained_classifier(full[0], 2, source=PatternSource([*masks, masks[0]]))


def test_masks_for_shorter_sequences_than_the_model(full, tmp_path):
    from graphattn.sources import LearnedMaskSource

    masks = LearnedMaskSource(2, 16, mode='dam_unstructured').freeze()
    with pytest.raises(ValueError, match="'max_length' must be at most 16"):
        pretrained_classifier(full[0], 2, source=PatternSource(masks))


@pytest.mark.parametrize('arguments', [{'freeze_how': 'sample'}, {'sparsity': 0.5}])
def test_nothing_to_freeze(arguments, full, learned):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"'{name}' must be None where no learned mask"):
        pretrained_classifier(full[0], 2, **arguments)
    with pytest.raises(ValueError, match=f"'{name}' must be None where no learned mask"):
        pretrained_classifier(learned[0], 2, source=PatternSource('Full'), **arguments)


def changed(checkpoint, tmp_path, change):
    """A copy of a run, with its config changed in place."""
    config = yaml.safe_load((checkpoint.parents[1] / 'config.yaml').read_text())
    change(config)
    (tmp_path / 'config.yaml').write_text(yaml.safe_dump(config))
    (tmp_path / 'checkpoints').mkdir()
    copy = tmp_path / 'checkpoints/last.ckpt'
    copy.write_bytes(checkpoint.read_bytes())
    return copy


def model_of(config):
    return config['model']['init_args']['model']


def test_the_checkpoint_of_something_else(full, tmp_path):
    def change(config):
        encoder = model_of(config)['init_args']['encoder']
        config['model']['init_args']['model'] = {
            'class_path': 'graphattn.models.SequenceClassifier',
            'init_args': {'encoder': encoder, 'num_classes': 10}}

    checkpoint = changed(full[0], tmp_path, change)
    classifier = pretrained_classifier(full[0], 10, pooling='mean')
    torch.save({'state_dict': {f'model.{name}': value
                               for name, value in classifier.state_dict().items()}}, checkpoint)
    with pytest.raises(ValueError, match='masked language model .got that of a SequenceClassifier'):
        pretrained_classifier(checkpoint, 2)


def test_the_checkpoint_of_other_sizes(full, tmp_path):
    def change(config):
        model_of(config)['init_args']['encoder']['init_args']['channels'] = 32

    with pytest.raises(ValueError, match="(?s)'pretrained' cannot be read: .*size mismatch"):
        pretrained_classifier(changed(full[0], tmp_path, change), 2)


@pytest.mark.parametrize('content', [None, b'', b'not a checkpoint'])
def test_an_unreadable_checkpoint(content, full, tmp_path):
    checkpoint = changed(full[0], tmp_path, lambda config: None)
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_bytes(content)
    with pytest.raises(ValueError, match=f"'pretrained' cannot be read: {checkpoint}"):
        pretrained_classifier(checkpoint, 2)


def test_a_checkpoint_without_its_config(full, tmp_path):
    checkpoint = changed(full[0], tmp_path, lambda config: None)
    (tmp_path / 'config.yaml').unlink()
    with pytest.raises(ValueError, match="'pretrained' cannot be read: .* with .*config.yaml"):
        pretrained_classifier(checkpoint, 2)


def test_a_model_without_pooler(full, tmp_path):
    checkpoint = changed(full[0], tmp_path,
                         lambda config: model_of(config)['init_args'].update(next_sentence=False))
    saved = torch.load(checkpoint, weights_only=True)['state_dict']
    kept = {name: value for name, value in saved.items()
            if 'pooler' not in name and 'next_sentence' not in name}
    torch.save({'state_dict': kept}, checkpoint)
    with pytest.raises(ValueError, match="'pooling' must be 'mean': .* without a pooler"):
        pretrained_classifier(checkpoint, 2)
    assert pretrained_classifier(checkpoint, 2, pooling='mean').pooler is None
