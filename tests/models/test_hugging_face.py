"""Our models give what Hugging Face's BERT and RoBERTa give with the same weights."""

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from graphattn.models import (
    Encoder,
    MaskedLanguageModel,
    SequenceClassifier,
    TokenClassifier,
    encoder_of,
    load_bert,
    load_roberta,
    to_hugging_face,
)
from graphattn.patterns import Full
from graphattn.sources import LearnedMaskSource, PatternSource

transformers = pytest.importorskip('transformers')

LENGTHS = [12, 5, 1, 8]
PTR = torch.tensor([0, 12, 17, 18, 26])
IS_TOKEN = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 50, (26,), generator=GENERATOR)  # 0 is [PAD]
ROBERTA_TOKENS = TOKENS.clamp(min=2)  # 1 is its <pad>
SEGMENTS = torch.randint(2, (26,), generator=GENERATOR)
SELECTED = torch.tensor([1, 7, 13, 17, 25])
TARGET = torch.tensor([4, 8, 15, 16, 23])
FOLLOWS = torch.tensor([0, 1, 1, 0])


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
INPUTS = FAMILIES['bert'].inputs


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


@pytest.mark.parametrize('mode', ['dam_structured', 'dam_unstructured'])
def test_frozen_masks_equal_bert_under_a_dense_mask_with_padding(mode):
    masks = LearnedMaskSource(3, 12, mode=mode, border=True, init_std=1.).freeze()
    bert = hugging_face('BertForPreTraining').double()
    model = MaskedLanguageModel(encoder(PatternSource(masks))).double().eval()
    load_bert(model, bert.state_dict(), bert.config)
    dense = torch.eye(12, dtype=torch.bool).repeat(4, 3, 1, 1)  # padding attends to itself
    for b, length in enumerate(LENGTHS):
        for h, mask in enumerate(masks):
            dense[b, h, :length, :length] = mask.build(length).to_mask()
    bias = torch.zeros(dense.shape, dtype=torch.double).masked_fill(~dense, -torch.inf)
    expected = bert(**{**INPUTS, 'attention_mask': bias})
    token_logits, sequence_logits = model(TOKENS, PTR, segments=SEGMENTS)
    torch.testing.assert_close(token_logits, expected.prediction_logits[IS_TOKEN])
    torch.testing.assert_close(sequence_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize('kind', ['BertForPreTraining', 'RobertaForMaskedLM'])
def test_gradients_equal_theirs(kind):
    theirs, model = hugging_face(kind).double().train(), model_of(kind).double().train()
    family = family_of(kind)
    family.load(model, theirs.state_dict(), theirs.config)
    outs = model(family.tokens, PTR, **family.options, selected=SELECTED)
    sum(F.cross_entropy(out, target) for out, target in zip(outs, (TARGET, FOLLOWS))
        if out is not None).backward()
    labels = padded(torch.full((26,), -100).index_copy(0, SELECTED, TARGET), -100)
    follows = {'next_sentence_label': FOLLOWS} if outs[1] is not None else {}
    theirs(**family.inputs, labels=labels, **follows).loss.backward()

    expected = model_of(kind).double()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert family.load(expected, gradients, theirs.config) == []
    expected = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].detach(), msg=name)


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


@pytest.mark.parametrize('kind, sizes, match', [
    *(('BertForPreTraining', *row) for row in (
        (dict(num_tokens=51), r"shape \(51,.*\(got"),
        (dict(max_length=13), "least 13 positions.*got 12.;"),
        (dict(hidden_channels=41), r"intermediate.dense.weight'.*shape .*got.*24\)"),
        (dict(num_segments=3), r"token_type_embeddings.weight'.*got.*24\)"),
        (dict(num_layers=4), "69 tensors .*'encoder.layer.3.*15"),
        (dict(num_layers=2), "'model'.*.got 'encoder.layer.2.*15 more"),
        (dict(num_segments=0), "'embeddings.token_type_embeddings.weight' .* num_segments=2"),
        (dict(norm_first=True), "'model' must be post-norm"))),
    *(('RobertaForMaskedLM', *row) for row in (
        (dict(max_length=13), "at least 13 positions.*got 12.; .*tile_positions=True"),
        (dict(num_segments=0), "'embeddings.token_type_embeddings.weight' .* num_segments=1"),
        (dict(num_segments=2), r"token_type_embeddings.weight'.*got.*24\)"),
        (dict(num_layers=4), 'RoBERTa.*number.*layers'),
        (dict(norm_first=True), "'model' must be post-norm like RoBERTa"))),
])
def test_other_sizes_are_refused_and_change_nothing(kind, sizes, match):
    model, theirs = model_of(kind, **sizes), hugging_face(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=match):
        family_of(kind).load(model, theirs.state_dict(), theirs.config)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize('place', ['encoder.token_embedding', 'encoder.position_embedding',
                                   'encoder.layers.1.attention.lin_query', 'transform.0'])
def test_the_error_for_a_model_with_adapters_says_to_load_first(place):
    model, bert = MaskedLanguageModel(encoder()), hugging_face('BertForPreTraining')
    adapted = torch.nn.Sequential(model.get_submodule(place), torch.nn.Linear(24, 24))
    model.set_submodule(place, adapted)
    with pytest.raises(ValueError, match=f"'model' must have no adapters .*'{place}.0.weight'"):
        load_bert(model, bert.state_dict(), bert.config)


@pytest.mark.slow
def test_other_state_dicts_are_refused():
    bert = hugging_face('BertForPreTraining', tie_word_embeddings=False)
    with pytest.raises(ValueError, match="'cls.predictions.decoder.weight' equal"):
        load_bert(MaskedLanguageModel(encoder()), bert.state_dict(), bert.config)
    load_bert(classifier(), bert.state_dict(), bert.config)  # which has no use for the decoder
    with pytest.raises(ValueError, match="'embeddings.word_embeddings.weight', and 52 more"):
        load_bert(classifier(), {}, bert.config)
    with pytest.raises(TypeError, match="'state_dict' must be a mapping .*, or the path .*got int"):
        load_bert(classifier(), 3, bert.config)
    with pytest.raises(ValueError, match="'state_dict' cannot be read from model.safetensors"):
        load_bert(classifier(), 'model.safetensors', bert.config)
    with pytest.raises(TypeError, match="'state_dict' must be a mapping .*got 'a' and list"):
        load_bert(classifier(), {'a': [1.]}, bert.config)
    with pytest.raises(TypeError, match="'model' must be a MaskedLanguageModel or a Seq.* Token"):
        load_bert(TokenClassifier(encoder(), 2), bert.state_dict(), bert.config)
    with pytest.raises(ValueError, match="'config' cannot be read from nowhere/config.json"):
        load_bert(classifier(), bert.state_dict(), 'nowhere/config.json')
    with pytest.raises(TypeError, match="'config' must be a mapping .* or a path .got NoneType"):
        load_bert(classifier(), bert.state_dict())


@pytest.mark.parametrize('theirs, ours', [('relu', 'relu'), ('gelu_new', 'gelu_new'),
                                          ('gelu_pytorch_tanh', 'gelu_new'), ('silu', 'silu')])
@pytest.mark.parametrize('kind', ['BertForPreTraining', 'RobertaForMaskedLM'])
def test_the_activation_is_checked_and_gives_the_numbers(kind, theirs, ours):
    bert, load = hugging_face(kind, hidden_act=theirs), family_of(kind).load
    with pytest.raises(ValueError, match=rf"'config' must have hidden_act='gelu', .* "
                                         rf"\(got '{theirs}'\); .*activation='{ours}'"):
        load(model_of(kind), bert.state_dict(), bert.config)
    activation = None
    if kind.startswith('Roberta'):  # whose head has gelu, whatever the encoder's is
        activation = 'gelu'
        with pytest.raises(ValueError, match="activation of the MaskedLanguageModel of 'model'"):
            load(masked_language_model(activation=ours), bert.state_dict(), bert.config)
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


def adapted():
    model = MaskedLanguageModel(encoder())
    attention = model.encoder.layers[0].attention
    attention.lin_query = torch.nn.Sequential(attention.lin_query)
    return model


@pytest.mark.parametrize('model, family, match', [
    (lambda: MaskedLanguageModel(encoder(norm_first=True)), 'bert', 'must be post-norm'),
    (lambda: MaskedLanguageModel(encoder(num_segments=0)), 'bert', 'must have segments'),
    (lambda: MaskedLanguageModel(encoder(positions='sinusoidal')), 'bert', 'learned positions'),
    (lambda: MaskedLanguageModel(encoder(head_channels=4)), 'bert', 'channels / heads'),
    (lambda: MaskedLanguageModel(encoder(num_kv_heads=1)), 'bert', 'its own keys in each head'),
    *[(lambda options=options: MaskedLanguageModel(encoder(**options)), 'bert', 'must have one hop')
      for options in (dict(hops=2), dict(hops=0), dict(teleport=.1),
                      dict(teleport=.1, learn_teleport=True))],
    (lambda: SequenceClassifier(encoder(num_tokens=0), 4, pooling='pooler'), 'bert',
     'must have a vocabulary'),
    (lambda: MaskedLanguageModel(Encoder(
        num_tokens=50, max_length=12, channels=24, heads=3, num_layers=1, norm_first=False,
        attention=OtherAttention(24, 24))), 'bert', 'must have graph attention .* .got OtherAtt'),
    (lambda: MaskedLanguageModel(encoder()), 'roberta', 'no sequence logits'),
    (lambda: MaskedLanguageModel(encoder(), activation='relu'), 'bert', "the family's activation"),
    (lambda: classifier(pooling='mean'), 'bert', "have pooling='pooler'"),
    (adapted, 'bert', 'only the parameters of a .*layers.0.attention.lin_query.0.weight'),
])
def test_models_that_do_not_fit_a_family_are_not_written(model, family, match, tmp_path):
    with pytest.raises(ValueError, match=f"'model' .*{match}"):
        to_hugging_face(model(), tmp_path / 'folder', family=family)
    assert not (tmp_path / 'folder').exists()


@pytest.mark.parametrize('config, match', [
    ({'vocab_size': 50, 'hidden_act': 'mish'}, "must have hidden_act 'gelu', .* .got 'mish'.; "),
    ({'hidden_size': 24}, "must have the entry 'vocab_size'"),
    ({'vocab_size': 50, 'model_type': 'gpt2'}, "must be the config of a BERT or .*'gpt2'"),
    ('config.json', 'cannot be read from config.json'),
])
def test_bad_configs_of_an_encoder(config, match):
    with pytest.raises(ValueError, match=f"'config' {match}"):
        encoder_of(config, Full())


@pytest.mark.parametrize('change, match', [
    ({'position_embedding_type': 'relative_key'}, "position_embedding_type='absolute', .* "
                                                  r"\(got 'relative_key'\)"),
    ({'is_decoder': True}, r"is_decoder=False, .* \(got True\)"),
    ({'add_cross_attention': True}, r"add_cross_attention=False, .* \(got True\)"),
    ({'num_attention_heads': 4}, r"have num_attention_heads=3, .* \(got 4\); .* with heads=4$"),
    ({'layer_norm_eps': 1e-5}, r"have layer_norm_eps=1e-12, .* \(got 1e-05\); .* norm_eps=1e-05$"),
    ({'model_type': 'megatron-bert'}, r"be the config of a BERT .*'megatron-bert'\)$"),
    ({'model_type': 'roberta'}, r"be the config of a BERT .*'roberta'\); use load_roberta$"),
])
def test_configs_with_unsupported_settings(change, match):
    bert, model = hugging_face('BertModel'), classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"'config' must (have )?{match}"):
        load_bert(model, bert.state_dict(), {**bert.config.to_dict(), **change})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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
    with pytest.raises(ValueError, match=r"'config' must.*int.*\(got None\)"):
        load_roberta(model, roberta.state_dict(),
                     {**roberta.config.to_dict(), 'pad_token_id': None})


@pytest.mark.slow
def test_each_family_has_its_own_function():
    bert, roberta = hugging_face('BertForMaskedLM'), hugging_face('RobertaForMaskedLM')
    with pytest.raises(ValueError, match="of a RoBERTa .*got the names of a BERT .*call load_bert"):
        load_roberta(masked_language_model(), bert.state_dict(), bert.config)
    with pytest.raises(ValueError, match="of a BERT .*got the names of a RoBERTa .*call load_rob"):
        load_bert(masked_language_model(), roberta.state_dict(), roberta.config)
    roberta = hugging_face('RobertaForMaskedLM', tie_word_embeddings=False)
    with pytest.raises(ValueError, match="'lm_head.decoder.weight' equal .* RoBERTa"):
        load_roberta(masked_language_model(), roberta.state_dict(), roberta.config)
    with pytest.raises(TypeError, match="'tile_positions' must be a bool .got int"):
        load_roberta(masked_language_model(), roberta.state_dict(), roberta.config,
                     tile_positions=4096)
