"""Our models give what Hugging Face's BERT and RoBERTa give with the same weights."""

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from graphattn.models import (
    Encoder,
    MaskedLanguageModel,
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
    encoder_of,
    load_bert,
    load_roberta,
    to_hugging_face,
)
from graphattn.patterns import Full
from graphattn.sources import PatternSource

transformers = pytest.importorskip('transformers')

LENGTHS = [12, 5, 1, 8]
PTR = torch.tensor([0, 12, 17, 18, 26])
IS_TOKEN = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 50, (26,), generator=GENERATOR)  # 0 is [PAD]
ROBERTA_TOKENS = TOKENS.clamp(min=2)  # 1 is its <pad>
SEGMENTS = torch.randint(2, (26,), generator=GENERATOR)
def padded(values, padding=0):
    return torch.full(IS_TOKEN.shape, padding).masked_scatter(IS_TOKEN, values)


class Family(NamedTuple):
    load: Callable
    num_segments: int
    tokens: torch.Tensor
    options: dict  # that our models take beside the tokens
    inputs: dict  # of theirs


FAMILIES = {
    'bert': Family(load_bert, 2, TOKENS, {'segments': SEGMENTS}, dict(
        input_ids=padded(TOKENS), token_type_ids=padded(SEGMENTS),
        attention_mask=IS_TOKEN.long())),
    'roberta': Family(load_roberta, 1, ROBERTA_TOKENS, {}, dict(
        input_ids=padded(ROBERTA_TOKENS, 1), attention_mask=IS_TOKEN.long())),
}
def family_of(kind):
    return FAMILIES['bert' if kind.startswith('Bert') else 'roberta']


def hugging_face(kind, **options):
    sizes = dict(
        vocab_size=50, hidden_size=24, num_attention_heads=3, num_hidden_layers=3,
        intermediate_size=40, max_position_embeddings=12, attn_implementation='eager',
        hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
    if kind.startswith('Roberta'):  # two positions are never those of a token
        config = transformers.RobertaConfig(
            **{**sizes, 'max_position_embeddings': 14, 'type_vocab_size': 1, **options})
    else:
        config = transformers.BertConfig(**{**sizes, **options})
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():  # fresh biases are all 0, and fresh norms all 1
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return model


def encoder(source=None, **options):
    sizes = dict(num_tokens=50, max_length=12, channels=24, heads=3, num_layers=3,
                 hidden_channels=40, num_segments=2, norm_first=False, norm_eps=1e-12)
    return Encoder(source or PatternSource(Full()), **{**sizes, **options})


def model_of(kind, head_activation=None, **sizes):
    """Ours for a kind of theirs."""
    made = encoder(**{'num_segments': family_of(kind).num_segments, **sizes})
    if 'Sequence' in kind:
        return SequenceClassifier(made, 4, pooling='pooler')
    return MaskedLanguageModel(made, 'PreTraining' in kind, head_activation)


def classifier(**options):
    return SequenceClassifier(encoder(), 4, **{'pooling': 'pooler', **options})


def roberta_encoder(**options):
    return encoder(**{'num_segments': 1, **options})


def masked_language_model(**options):
    return MaskedLanguageModel(roberta_encoder(**options), next_sentence=False)


def roberta_classifier(**options):
    return SequenceClassifier(roberta_encoder(), 4, **{'pooling': 'pooler', **options})


def logits(kind, model, theirs, **options):
    """Those of tokens and sequences, ours and theirs; and the rest of what theirs give."""
    family = family_of(kind)
    ours = model(family.tokens, PTR, **family.options)
    out = theirs(**family.inputs, **options)
    expected = [getattr(out, name) for name in (
        'prediction_logits', 'seq_relationship_logits', 'logits') if hasattr(out, name)]
    return ([part for part in (ours if isinstance(ours, tuple) else (ours,)) if part is not None],
            [part[IS_TOKEN] if part.dim() == 3 else part for part in expected], out)


def close(ours, theirs, tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize('dtype, tolerance', [(torch.float, 1e-5), (torch.double, 1e-10)])
@pytest.mark.parametrize('kind', ['BertForPreTraining', 'BertForSequenceClassification',
                                  'RobertaForMaskedLM', 'RobertaForSequenceClassification'])
def test_equals_theirs_layer_by_layer(kind, dtype, tolerance):
    theirs = hugging_face(kind, num_labels=4).to(dtype)
    model = model_of(kind).to(dtype).eval()
    assert family_of(kind).load(model, theirs.state_dict(), theirs.config) == []
    hidden = []
    model.encoder.dropout.register_forward_hook(lambda _, __, out: hidden.append(out))
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda _, __, out: hidden.append(out[0]))
    ours, expected, out = logits(kind, model, theirs, output_hidden_states=True)
    close(ours, expected, tolerance)
    assert len(hidden) == len(out.hidden_states) == 4
    for mine, other in zip(hidden, out.hidden_states):
        close(mine, other[IS_TOKEN], tolerance)


@pytest.mark.slow
def test_missing_heads_keep_their_initial_parameters():
    heads = {'transform.0.weight', 'transform.0.bias', 'transform.2.weight', 'transform.2.bias',
             'token_bias'}
    hidden = {'head.3.weight', 'head.3.bias'}
    next_sentence, pooler, head = ({f'{name}.weight', f'{name}.bias'} for name in (
        'next_sentence', 'pooler.linear', 'head.1'))
    for kind, model, rest in [
        ('BertModel', MaskedLanguageModel(encoder()), heads | next_sentence),
        ('BertForMaskedLM', MaskedLanguageModel(encoder()), pooler | next_sentence),
        ('BertForMaskedLM', classifier(), pooler | head),
        ('BertForPreTraining', classifier(), head),
        ('BertForSequenceClassification', classifier(pooling='first'), head),
        ('BertForSequenceClassification', classifier(hidden_channels=4), head | hidden),
        ('RobertaForMaskedLM', roberta_classifier(), head | pooler),
        ('RobertaModel', roberta_classifier(), head | pooler),  # no task trained that pooler
        ('RobertaForSequenceClassification', roberta_classifier(pooling='mean'), head),
        ('RobertaForSequenceClassification', roberta_classifier(hidden_channels=4), head | hidden),
    ]:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        theirs = hugging_face(kind, num_labels=4)
        assert set(family_of(kind).load(model, theirs.state_dict(), theirs.config)) == rest
        after = model.state_dict()
        assert {name for name in after if torch.equal(after[name], before[name])} == rest


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['BertForPreTraining', 'RobertaForMaskedLM'])
def test_a_file_of_the_first_checkpoints(kind, tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    theirs, model = hugging_face(kind), model_of(kind).eval()
    theirs.save_pretrained(tmp_path)
    state_dict = {name.replace('LayerNorm.weight', 'LayerNorm.gamma')
                  .replace('LayerNorm.bias', 'LayerNorm.beta'): tensor for name, tensor
                  in safetensors.load_file(tmp_path / 'model.safetensors').items()}
    prefix = f'{theirs.base_model_prefix}.embeddings'
    assert f'{prefix}.LayerNorm.gamma' in state_dict
    assert 'lm_head.decoder.weight' not in state_dict
    state_dict[f'{prefix}.position_ids'] = torch.arange(14)[None]
    config = json.loads((tmp_path / 'config.json').read_text())
    assert family_of(kind).load(model, state_dict, config) == []
    close(*logits(kind, model, theirs)[:2])


def test_a_model_for_shorter_sequences_gets_the_first_positions():
    bert = hugging_face('BertModel')
    model = SequenceClassifier(encoder(max_length=5), 2, pooling='pooler').eval()
    load_bert(model, bert.state_dict(), bert.config)
    out = model.encoder(TOKENS[12:17], torch.tensor([0, 5]))
    close(out, bert(TOKENS[None, 12:17]).last_hidden_state[0])


def adapted(model, place='encoder.layers.1.attention.lin_query'):
    model.set_submodule(place, torch.nn.Sequential(model.get_submodule(place)))
    return model


def refused(load, model, *arguments, match, error=ValueError, **options):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error, match=match):
        load(model, *arguments, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('kind', ['BertForPreTraining', 'RobertaForMaskedLM'])
@pytest.mark.parametrize('sizes, match', [
    (dict(num_tokens=51), r"'config' .*vocab_size=51 \(got 50"),
    (dict(max_length=13), r"'state_dict' .*position_embeddings.weight=\(13, 24\) \(got \(12, 24"),
    (dict(hidden_channels=41), r"'config' .*intermediate_size=41 \(got 40"),
    (dict(num_segments=3), r"'config' .*type_vocab_size=3 \(got [12]"),
    (dict(num_layers=4), r"'config' .*num_hidden_layers=4 \(got 3"),
    (dict(num_segments=0), "'model' .*'encoder.segment_embedding.weight'"),
    (dict(norm_eps=1e-3), r"'config' .*layer_norm_eps=0.001 \(got 1e-12"),
    (dict(heads=4), r"'config' .*num_attention_heads=4 \(got 3"),
    (dict(norm_first=True), r"'model' .*norm_first=False \(got True")])
def test_other_settings_are_refused_and_change_nothing(kind, sizes, match):
    theirs = hugging_face(kind)
    refused(family_of(kind).load, model_of(kind, **sizes), theirs.state_dict(), theirs.config,
            match=match)


@pytest.mark.parametrize('place', ['encoder.token_embedding', 'encoder.position_embedding',
                                   'encoder.layers.1.attention.lin_query', 'transform.0'])
def test_a_model_with_adapters_is_refused(place, tmp_path):
    model, bert = MaskedLanguageModel(encoder()), hugging_face('BertForPreTraining')
    match = f"'model' .*'{place}.weight', and no adapters"
    refused(load_bert, adapted(model, place), bert.state_dict(), bert.config, match=match)
    with pytest.raises(ValueError, match=match):
        to_hugging_face(model, tmp_path / 'folder')


@pytest.mark.slow
def test_other_state_dicts_are_refused():
    bert = hugging_face('BertForPreTraining', tie_word_embeddings=False)
    weights, config = bert.state_dict(), bert.config
    refused(load_bert, MaskedLanguageModel(encoder()), weights, config,
            match="'state_dict' .*cls.predictions.decoder.weight equal")
    load_bert(classifier(), weights, config)  # which has no use for the decoder
    query = 'bert.encoder.layer.1.attention.self.query.weight'
    extra = 'bert.encoder.layer.3.output.dense.bias'
    for given, error, match in [
            ({}, ValueError, r"'state_dict' .*word_embeddings.weight=\(50, 24\) \(got None"),
            ({**weights, query: weights[query][:8]}, ValueError,
             r"'state_dict' .*query.weight=\(24, 24\) \(got \(8, 24"),
            ({**weights, extra: torch.zeros(24)}, ValueError,
             r"'state_dict' .*3.output.dense.bias=None \(got \(24,\)"),
            (3, TypeError, "'state_dict' must be a mapping or a path .got int"),
            ('model.safetensors', ValueError, "'state_dict' cannot be read from model.safetensors"),
            ({**weights, 'a': [1.]}, TypeError, "'state_dict' must be a mapping from names to")]:
        refused(load_bert, classifier(), given, config, match=match, error=error)
    refused(load_bert, TokenClassifier(encoder(), 2), weights, config, error=TypeError,
            match="'model' must be .*got TokenClassifier")
    refused(load_bert, classifier(), weights, 'nowhere/config.json',
            match="'config' cannot be read from nowhere/config.json")
    refused(load_bert, classifier(), weights, error=TypeError, match="'config' .*got NoneType")


@pytest.mark.parametrize('theirs, ours', [('relu', 'relu'), ('gelu_new', 'gelu_new'),
                                          ('gelu_pytorch_tanh', 'gelu_new'), ('silu', 'silu')])
@pytest.mark.parametrize('kind', ['BertForPreTraining', 'RobertaForMaskedLM'])
def test_the_activation_is_checked_and_gives_the_numbers(kind, theirs, ours):
    bert, load = hugging_face(kind, hidden_act=theirs), family_of(kind).load
    refused(load, model_of(kind), bert.state_dict(), bert.config,
            match=rf"'config' .*hidden_act='gelu' \(got '{ours}'")
    activation = None
    if kind.startswith('Roberta'):  # whose head has gelu, whatever the encoder's is
        activation = 'gelu'
        refused(load, masked_language_model(activation=ours), bert.state_dict(), bert.config,
                match=rf"'model' .*activation='gelu' \(got '{ours}'")
    model = model_of(kind, activation, activation=ours).eval()
    load(model, bert.state_dict(), bert.config)
    close(*logits(kind, model, bert)[:2])


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['BertForPreTraining', 'BertForMaskedLM',
                                  'BertForSequenceClassification', 'RobertaForMaskedLM',
                                  'RobertaForSequenceClassification'])
def test_a_folder_is_read_and_written_back(kind, tmp_path):
    """Sizes need not be repeated, and logits are the same."""
    family, name = family_of(kind), 'bert' if kind.startswith('Bert') else 'roberta'
    bert = hugging_face(kind, hidden_act='relu', layer_norm_eps=1e-6)
    bert.save_pretrained(tmp_path / 'theirs')
    made = encoder_of(tmp_path / 'theirs', Full())
    if 'Sequence' in kind:
        model = SequenceClassifier(made, 2, pooling='pooler').eval()
    else:
        activation = 'gelu' if name == 'roberta' else None
        model = MaskedLanguageModel(made, 'PreTraining' in kind, activation).eval()
    assert family.load(model, tmp_path / 'theirs') == []
    to_hugging_face(model, tmp_path / 'ours', family=name)
    back = getattr(transformers, kind).from_pretrained(tmp_path / 'ours').eval()
    for option in ('vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
                   'intermediate_size', 'hidden_act', 'hidden_dropout_prob', 'type_vocab_size',
                   'attention_probs_dropout_prob', 'max_position_embeddings', 'layer_norm_eps'):
        assert getattr(back.config, option) == getattr(bert.config, option), option
    ours, expected, _ = logits(kind, model, bert)
    close(ours, expected)
    torch.testing.assert_close(logits(kind, model, back)[1], expected)


class OtherAttention(torch.nn.Linear):
    channels, heads = 24, 3


@pytest.mark.parametrize('options, match', [
    (dict(norm_first=True), 'norm_first=False .got True'),
    (dict(num_segments=0), "'encoder.segment_embedding.weight'"),
    (dict(positions='sinusoidal'), "'encoder.position_embedding.weight'"),
    (dict(num_tokens=0), "'encoder.token_embedding.weight'"),
    (dict(source=None, attention=OtherAttention(24, 24)), "'encoder.layers.0.attention.lin_query"),
    (dict(head_channels=4), r'heads \* size=24 .got 12'),
    (dict(num_kv_heads=1), 'num_kv_heads=3 .got 1'),
    (dict(hops=2), 'one hop'), (dict(hops=0), 'one hop'), (dict(teleport=.1), 'one hop'),
    (dict(teleport=.1, learn_teleport=True), "only .*'encoder.layers.0.attention.teleport_logit'"),
])
def test_encoders_that_do_not_fit_a_family_are_not_written(options, match, tmp_path):
    sizes = dict(source=PatternSource(Full()), num_tokens=50, max_length=12, channels=24, heads=3,
                 num_layers=1, num_segments=2, norm_first=False)
    model = SequenceClassifier(Encoder(**{**sizes, **options}), 4, pooling='pooler')
    with pytest.raises(ValueError, match=f"'model' .*{match}"):
        to_hugging_face(model, tmp_path / 'folder')
    assert not (tmp_path / 'folder').exists()


@pytest.mark.parametrize('model, family, match', [
    (lambda: MaskedLanguageModel(encoder()), 'roberta', "only .*'pooler.linear.weight'"),
    (lambda: MaskedLanguageModel(encoder(), activation='relu'), 'bert',
     "activation='gelu' .got 'relu'"),
    (lambda: classifier(pooling='mean'), 'bert', "only .*'head.1.weight'"),
    (lambda: classifier(hidden_channels=4), 'bert', "only .*'head.1.weight'"),
    (lambda: PairClassifier(encoder(), 4, pooling='pooler'), 'bert', "only .*'head.1.weight'"),
])
def test_heads_that_do_not_fit_a_family_are_not_written(model, family, match, tmp_path):
    with pytest.raises(ValueError, match=f"'model' .*{match}"):
        to_hugging_face(model(), tmp_path / 'folder', family=family)
    assert not (tmp_path / 'folder').exists()


@pytest.mark.parametrize('config, error, match', [
    ({'vocab_size': 50, 'hidden_act': 'mish'}, ValueError, "'activation' .*got 'mish'"),
    ({'hidden_size': 24}, TypeError, "'num_tokens' .*got NoneType"),
    ({'vocab_size': 50, 'model_type': 'gpt2'}, ValueError, "'config' .*model_type=.*'gpt2'"),
    ({'vocab_size': 50, 'is_decoder': True}, ValueError, "'config' .*is_decoder=False .got True"),
    ('config.json', ValueError, "'config' cannot be read from config.json"),
])
def test_bad_configs_of_an_encoder(config, error, match):
    with pytest.raises(error, match=match):
        encoder_of(config, Full())


@pytest.mark.parametrize('name, value', [
    ('position_embedding_type', 'relative_key'), ('is_decoder', True),
    ('add_cross_attention', True), ('model_type', 'megatron-bert'), ('model_type', 'roberta')])
def test_configs_with_unsupported_settings(name, value):
    bert = hugging_face('BertModel')
    refused(load_bert, classifier(), bert.state_dict(), {**bert.config.to_dict(), name: value},
            match=f"'config' .*{name}=.*got {value!r}")


# RoBERTa #############################################################################


def test_the_two_dropouts_of_the_classification_head():
    roberta = hugging_face('RobertaForSequenceClassification', num_labels=4,
                           classifier_dropout=0.4).double().train()
    model = roberta_classifier(dropout=0.4, pooler_dropout=0.4).double().train()
    load_roberta(model, roberta.state_dict(), roberta.config)
    outs = []
    for forward in (lambda: model(ROBERTA_TOKENS, PTR),
                    lambda: roberta(**FAMILIES['roberta'].inputs).logits):
        torch.manual_seed(3)
        outs.append(forward())
    torch.testing.assert_close(*outs)
    torch.manual_seed(4)
    assert not torch.allclose(model(ROBERTA_TOKENS, PTR), outs[0])


@pytest.mark.parametrize('max_length', [5, 12, 13, 24, 31])
def test_tiled_positions_equal_a_roberta_with_tiled_positions(max_length):
    roberta = hugging_face('RobertaModel').double()
    state_dict = roberta.state_dict()
    model = masked_language_model(max_length=max_length).double().eval()
    load_roberta(model, state_dict, roberta.config, tile_positions=True)
    table = state_dict['embeddings.position_embeddings.weight']
    repeated = torch.stack([table[2 + i % 12] for i in range(max_length)])
    assert torch.equal(model.encoder.position_embedding.weight, repeated)

    longer = hugging_face('RobertaModel', max_position_embeddings=max_length + 2).double()
    longer.load_state_dict({**state_dict, 'embeddings.position_embeddings.weight':
                            torch.cat([table[:2], repeated])})
    tokens = torch.randint(2, 50, (max_length,))
    close(model.encoder(tokens, torch.tensor([0, max_length])),
          longer(tokens[None]).last_hidden_state[0], 1e-10)


def test_positions_are_counted_from_the_padding():
    roberta = hugging_face('RobertaModel', pad_token_id=3, max_position_embeddings=16)
    model = SequenceClassifier(roberta_encoder(), 2).eval()
    load_roberta(model, roberta.state_dict(), roberta.config)
    tokens = torch.arange(5, 17)
    close(model.encoder(tokens, torch.tensor([0, 12])), roberta(tokens[None]).last_hidden_state[0])
    refused(load_roberta, model, roberta.state_dict(),
            {**roberta.config.to_dict(), 'pad_token_id': None},
            match=r"'config' .*pad_token_id \(got None\)")


@pytest.mark.slow
def test_each_family_has_its_own_function():
    bert, roberta = hugging_face('BertForMaskedLM'), hugging_face('RobertaForMaskedLM')
    for load, theirs, got in ((load_roberta, bert, 'bert'), (load_bert, roberta, 'roberta')):
        refused(load, masked_language_model(), theirs.state_dict(), theirs.config,
                match=f"'config' .*model_type=.*got '{got}'")
    refused(load_roberta, masked_language_model(), bert.state_dict(), roberta.config,
            match="'state_dict' .*word_embeddings.weight=.*got None")
    roberta = hugging_face('RobertaForMaskedLM', tie_word_embeddings=False)
    refused(load_roberta, masked_language_model(), roberta.state_dict(), roberta.config,
            match="'state_dict' .*lm_head.decoder.weight equal")
    refused(load_roberta, masked_language_model(), roberta.state_dict(), roberta.config,
            error=TypeError, match="'tile_positions' must be a bool .got int", tile_positions=4096)
