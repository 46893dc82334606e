"""What is said of an attached model is what runs: a model that was changed after attach says so."""

import copy
import io

import pytest
import torch

from graphattn.hugging_face import attach, attached, attachment, detach, profile, save_attached
from tests.test_hugging_face import PATTERN, SIZES, TOKENS, new_model

transformers = pytest.importorskip('transformers')


def attention(model):
    return model.encoder.layer[1].attention


def rebuilt(config):
    kind = transformers.models.bert.modeling_bert.BertSelfAttention
    return kind(config).eval()


def with_sdpa(config):
    config = copy.deepcopy(config)
    config._attn_implementation = 'sdpa'
    return config


CHANGES = {
    'sdpa': lambda model: model.set_attn_implementation('sdpa'),
    'eager': lambda model: model.set_attn_implementation('eager'),
    'config': lambda model: setattr(model.config, '_attn_implementation', 'sdpa'),
    'a module of its own config': lambda model: setattr(
        attention(model), 'self', rebuilt(with_sdpa(model.config))),
    'a module of the same config': lambda model: setattr(
        attention(model), 'self', rebuilt(model.config)),
    'a module of a copied config': lambda model: setattr(
        attention(model), 'self', rebuilt(copy.deepcopy(model.config))),
    'another encoder': lambda model: setattr(model, 'encoder', new_model('BERT').encoder),
}
BATCHES = [{'input_ids': TOKENS}]
USES = {
    'forward': lambda model, folder: model(TOKENS),
    'attachment': lambda model, folder: attachment(model),
    'save': save_attached,
    'profile': lambda model, folder: profile(model, BATCHES),
    'attach': lambda model, folder: attach(model, PATTERN, layers=[1]),
    'attached': lambda model, folder: attached(model, PATTERN).__enter__(),
}


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize('change, copied', [
    *((change, lambda model: model) for change in CHANGES),
    ('sdpa', copy.deepcopy), ('sdpa', saved),
    ('a module of the same config', copy.deepcopy), ('a module of the same config', saved)])
def test_a_changed_model_is_refused_until_it_is_detached(change, copied, tmp_path):
    model = copied(attach(new_model('BERT'), PATTERN))
    CHANGES[change](model)
    for use in USES.values():
        with pytest.raises(ValueError, match=r"changed after attach .* call detach\(model\)"):
            use(model, tmp_path / 'folder')
    assert not (tmp_path / 'folder').exists()
    model = detach(model)
    expected = new_model('BERT')
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(TOKENS).last_hidden_state, expected(TOKENS).last_hidden_state)
    attach(model, PATTERN)(TOKENS)


def test_the_config_of_a_part_is_looked_at():
    config = transformers.CLIPConfig(
        text_config=dict(SIZES, bos_token_id=1, eos_token_id=2, pad_token_id=0),
        vision_config=dict(SIZES, image_size=16, patch_size=4))
    model = attach(transformers.CLIPModel(config).eval(), PATTERN)
    inputs = dict(input_ids=TOKENS, pixel_values=torch.randn(2, 3, 16, 16))
    model(**inputs)
    model.text_model.config._attn_implementation = 'eager'
    for call in (lambda: model(**inputs), lambda: attachment(model)):
        with pytest.raises(ValueError, match="attn_implementation 'eager'"):
            call()


def test_layers_that_are_copied_left_out_or_detached_are_no_change():
    model = attach(new_model('BERT'), PATTERN)
    model.encoder.layer[0] = copy.deepcopy(model.encoder.layer[1])
    edges = model(TOKENS, output_attentions=True).attentions[0] > 0
    assert edges[0, 0].equal(PATTERN.build(20).to_mask())
    del model.encoder.layer[1]
    model(TOKENS)
    assert len(attachment(model)) == 1
    outer = attach(new_model('BERT', 'BertForMaskedLM'), PATTERN)
    detach(outer.bert)
    outer(TOKENS)
