"""Hugging Face's models along graphs give what they give under the equivalent dense mask."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch

from graphattn.hugging_face import attach, detach
from graphattn.hugging_face.attention import graph_attention
from graphattn.hugging_face.lazy_mask import LazyMask
from graphattn.patterns import Causal, Full, GlobalTokens, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

transformers = pytest.importorskip('transformers')

BATCH, LENGTH = 2, 20
PATTERN = SlidingWindow(2) | GlobalTokens(1)
# Where the tokens of two sequences stand.
PADDINGS = {
    'none': torch.ones(BATCH, LENGTH, dtype=torch.bool),
    'right': torch.arange(LENGTH) < torch.tensor([[LENGTH], [13]]),
    'left': torch.arange(LENGTH) >= torch.tensor([[0], [7]]),
}
SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=48, max_position_embeddings=64)
NO_DROPOUT = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
DEEPSEEK = dict(
    num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
    n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=16,
    kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, index_n_heads=2,
    index_head_dim=16, index_topk=5, pad_token_id=0)
# Name of the model, options of its config, and whether it is causal.
FAMILIES = {
    'BERT': ('BertModel', {**SIZES, **NO_DROPOUT}, False),
    'RoBERTa': ('RobertaModel', {**SIZES, **NO_DROPOUT}, False),
    'XLM-R': ('XLMRobertaModel', {**SIZES, **NO_DROPOUT}, False),
    'ELECTRA': ('ElectraModel', {**SIZES, **NO_DROPOUT, 'embedding_size': 16}, False),
    'ALBERT': ('AlbertModel', {**SIZES, **NO_DROPOUT, 'embedding_size': 16}, False),
    'DistilBERT': ('DistilBertModel', dict(vocab_size=50, dim=32, n_layers=2, n_heads=4,
                                           hidden_dim=48, dropout=0., attention_dropout=0.), False),
    'ModernBERT': ('ModernBertModel', {
        **SIZES, 'local_attention': 6, 'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': 2,
        'cls_token_id': 1, 'sep_token_id': 2}, False),
    'ViT': ('ViTModel', {**{name: size for name, size in SIZES.items() if 'size' in name
                            and 'vocab' not in name}, **NO_DROPOUT, 'num_hidden_layers': 2,
                         'num_attention_heads': 4, 'image_size': 16, 'patch_size': 4}, False),
    'Llama': ('LlamaModel', {**SIZES, 'num_key_value_heads': 2}, True),
    'Mistral': ('MistralModel', {**SIZES, 'num_key_value_heads': 2, 'sliding_window': 4}, True),
    'GPT-2': ('GPT2Model', dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.), True),
    'T5': ('T5EncoderModel', dict(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2,
                                  num_heads=4, dropout_rate=0.), False),
    'DeepSeek-V3.2': ('DeepseekV32Model', {**SIZES, **DEEPSEEK}, True),
}
DECODERS = {'Llama': 'LlamaForCausalLM', 'Mistral': 'MistralForCausalLM',
            'GPT-2': 'GPT2LMHeadModel', 'DeepSeek-V3.2': 'DeepseekV32ForCausalLM',
            'T5': 'T5ForConditionalGeneration'}
TOKENS = torch.randint(3, 50, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def new_model(family, name=None):
    torch.manual_seed(0)
    kind, options, _ = FAMILIES[family]
    kind = getattr(transformers, name or kind)
    config = kind.config_class(**options)
    if family == 'ModernBERT':
        config.layer_types = ['full_attention', 'sliding_attention']
    model = kind(config)
    with torch.no_grad():  # fresh models attend to all alike
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=.05)
    return model.eval()


def shallow(model):
    """A model without its last layer: half as much to compile."""
    del (model.encoder.layer if hasattr(model, 'encoder') else model.layers)[-1]
    return model


def edges_of(model):
    """Return the edges to attach a model to: DeepSeek's are its own."""
    return None if 'Deepseek' in type(model).__name__ else PATTERN


def dense_mask(is_token, is_causal, pattern=PATTERN):
    """The mask of SDPA that means the same; padding attends to itself."""
    mask = torch.eye(is_token.size(1), dtype=torch.bool).repeat(len(is_token), 1, 1)
    for row, place in zip(mask, is_token):
        at = place.nonzero().squeeze(1)
        edges = pattern & Causal() if is_causal else pattern
        row[at[:, None], at] = edges.build(len(at)).to_mask()
    return mask.unsqueeze(1)


def inputs(family, is_token, is_dense):
    if family == 'ViT':
        torch.manual_seed(1)
        return {'pixel_values': torch.randn(BATCH, 3, 16, 16)}
    if family == 'DeepSeek-V3.2' or not is_dense:
        mask = is_token.long()
    else:
        mask = dense_mask(is_token, FAMILIES[family][2])
    if family in ('Mistral', 'ModernBERT') and is_dense:
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        near = distance < 4 if family == 'Mistral' else distance.abs() <= 3
        mask = {'full_attention': mask, 'sliding_attention': mask & near}
        mask = mask['sliding_attention'] if family == 'Mistral' else mask
    kwargs = {}
    if family in ('Llama', 'Mistral', 'GPT-2', 'DeepSeek-V3.2'):  # the same in both
        kwargs['position_ids'] = (is_token.cumsum(1) - 1).clamp(min=0)
    return {'input_ids': TOKENS, 'attention_mask': mask, **kwargs}


def run(model, family, is_token, is_dense):
    """Hidden states of tokens, and gradients of all parameters."""
    hidden = model(**inputs(family, is_token, is_dense)).last_hidden_state
    return with_grads(model, hidden if family == 'ViT' else hidden[is_token])


def with_grads(model, hidden):
    """Beside an output the gradients of all parameters, from a random sum of it."""
    model.zero_grad()
    weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    (hidden * weight.to(hidden)).sum().backward()
    return SimpleNamespace(hidden=hidden, grads={
        name: parameter.grad for name, parameter in model.named_parameters()
        if parameter.grad is not None})


def assert_alike(got, expected, atol=1e-5, grad_atol=1e-4):
    """The bounds that all families are held to."""
    torch.testing.assert_close(got.hidden, expected.hidden, atol=atol, rtol=atol)
    assert got.grads.keys() == expected.grads.keys()
    for name, grad in expected.grads.items():
        torch.testing.assert_close(got.grads[name], grad, atol=grad_atol, rtol=grad_atol, msg=name)


def sdpa_of_vit(model, monkeypatch):
    """ViT is given no masks, so that its reference is."""
    mask = PATTERN.build(17).to_mask()
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, 'scaled_dot_product_attention',
                        lambda *args, attn_mask, **kwargs: attend(*args, attn_mask=mask, **kwargs))


# Images are not padded, and some families have the attention of another.
ONE_PADDING = {'ViT': 'none', 'RoBERTa': 'right', 'XLM-R': 'left', 'ELECTRA': 'none',
               'ALBERT': 'right'}


@pytest.mark.parametrize('family, padding', [
    (family, padding) for family in FAMILIES for padding in PADDINGS
    if ONE_PADDING.get(family, padding) == padding])
def test_equals_sdpa_under_the_dense_mask(family, padding, monkeypatch):
    is_token = PADDINGS[padding]
    model = new_model(family).train(padding == 'right')  # without dropout
    with monkeypatch.context() as patch:
        if family == 'ViT':
            sdpa_of_vit(model, patch)
        expected = run(model, family, is_token, is_dense=True)
    before = run(model, family, is_token, is_dense=False)
    attach(model, edges_of(model))
    got = run(model, family, is_token, is_dense=False)
    assert_alike(got, expected)
    if family != 'DeepSeek-V3.2':
        assert (got.hidden - before.hidden).abs().max() > 1e-3  # the graph matters
    detach(model)
    again = run(model, family, is_token, is_dense=False)
    torch.testing.assert_close(again.hidden, before.hidden)


# Families with sinks or softcaps, which SDPA lacks: name of the model, and options of its config.
BEYOND_SDPA = {
    'gpt-oss': ('GptOssForCausalLM', dict(num_local_experts=2, num_experts_per_tok=2)),
    'Gemma 2': ('Gemma2ForCausalLM', dict(attn_logit_softcapping=0.5)),
    'Gemma 3': ('Gemma3ForCausalLM', dict(layer_types=['full_attention', 'sliding_attention'])),
}


def beyond_sdpa(family):
    torch.manual_seed(0)
    name, options = BEYOND_SDPA[family]
    kind = getattr(transformers, name)
    config = kind.config_class(**SIZES, **options, num_key_value_heads=2, head_dim=8,
                               sliding_window=4, pad_token_id=0, attn_implementation='eager')
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=.05)
        for name, parameter in model.named_parameters():
            if name.endswith('sinks'):
                parameter.normal_()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize('family, padding', [*zip(BEYOND_SDPA, PADDINGS)])
def test_sinks_and_softcaps_equal_eager_attention_under_the_dense_mask(family, padding):
    model, is_token = beyond_sdpa(family), PADDINGS[padding]
    near = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) < 4
    position_ids, results = (is_token.cumsum(1) - 1).clamp(min=0), []
    whole = dense_mask(is_token, is_causal=True)
    dense = {name: torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float).min)
             for name, mask in (('full_attention', whole), ('sliding_attention', whole & near))}
    for mask in (dense, is_token.long()):
        logits = model(TOKENS, attention_mask=mask, position_ids=position_ids).logits
        results.append(with_grads(model, logits[is_token]))
        if mask is dense:
            attach(model, PATTERN)
    expected, got = results
    assert_alike(got, expected)
    assert family != 'gpt-oss' or got.grads['model.layers.0.self_attn.sinks'].abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('family', BEYOND_SDPA)
@torch.no_grad()
def test_sinks_and_softcaps_generate_token_for_token(family):
    model = beyond_sdpa(family)
    kwargs = dict(attention_mask=PADDINGS['left'].long(), **GENERATION)
    expected = model.generate(TOKENS, **kwargs)
    assert attach(model, Full()).generate(TOKENS, **kwargs).tolist() == expected.tolist()


# Kin of DeepSeek-V3.2, by their modules.
KIN = {'AXK2Model': 'axk2', 'Dots3NoteTextModel': 'dots3_note', 'GlmMoeDsaModel': 'glm_moe_dsa',
       'MistralLarge4TextModel': 'mistral_large4', 'HYV4Model': 'hy_v4'}


def kin_of_deepseek(name):
    modeling = pytest.importorskip(
        f'transformers.models.{KIN[name]}.modeling_{KIN[name]}', exc_type=ImportError)
    torch.manual_seed(0)
    kind = getattr(modeling, name)
    model = kind(kind.config_class(**SIZES, **DEEPSEEK, bos_token_id=1, eos_token_id=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=.05)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize('name', KIN)
def test_models_that_choose_their_keys_equal_sdpa_under_the_mask_of_these_keys(name):
    model, is_token = kin_of_deepseek(name), PADDINGS['left']
    expected = run(model, 'DeepSeek-V3.2', is_token, is_dense=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, 'scaled_dot_product_attention', None)
        got = run(attach(model, None), 'DeepSeek-V3.2', is_token, is_dense=False)
    assert_alike(got, expected)


def greedy(model, tokens, is_token, steps):
    """Token for token from the whole sequence, under the dense mask."""
    for _ in range(steps):
        mask = dense_mask(is_token, is_causal=True)
        position_ids = (is_token.cumsum(1) - 1).clamp(min=0)
        if isinstance(model, transformers.MistralForCausalLM):
            count = torch.arange(is_token.size(1))
            mask = mask & (count[:, None] - count < 4)
        logits = model(tokens, attention_mask=mask, position_ids=position_ids,
                       use_cache=False).logits[:, -1]
        tokens = torch.cat([tokens, logits.argmax(1, keepdim=True)], dim=1)
        is_token = torch.cat([is_token, is_token.new_ones(len(is_token), 1)], dim=1)
    return tokens


GENERATION = dict(do_sample=False, max_new_tokens=6, min_new_tokens=6, eos_token_id=None,
                  pad_token_id=0)


@pytest.mark.slow
@pytest.mark.parametrize('cache', [{}, {'cache_implementation': 'static'}, {'use_cache': False}],
                         ids=['dynamic', 'static', 'none'])
@pytest.mark.parametrize('family', [family for family in DECODERS if family != 'T5'])
@torch.no_grad()
def test_generates_token_for_token(family, cache):
    model, is_token = new_model(family, DECODERS[family]), PADDINGS['left']
    kwargs = dict(attention_mask=is_token.long(), **GENERATION, **cache)
    if family == 'DeepSeek-V3.2':  # whose own tokens depend on the kind of cache
        expected = model.generate(TOKENS, **kwargs)
    else:
        expected = greedy(model, TOKENS, is_token, 6)
    attach(model, edges_of(model))
    assert model.generate(TOKENS, **kwargs).tolist() == expected.tolist()


@pytest.mark.slow
@torch.no_grad()
def test_encoder_and_decoder_generate_token_for_token():
    model, is_token = new_model('T5', DECODERS['T5']), PADDINGS['right']
    mask = dense_mask(is_token, is_causal=False)
    encoded = model.encoder(TOKENS, attention_mask=mask)
    tokens = torch.zeros(BATCH, 1, dtype=torch.long)
    for _ in range(6):
        own = dense_mask(torch.ones_like(tokens, dtype=torch.bool), is_causal=True)
        logits = model(encoder_outputs=encoded, attention_mask=is_token.long(), use_cache=False,
                       decoder_input_ids=tokens, decoder_attention_mask=own).logits[:, -1]
        tokens = torch.cat([tokens, logits.argmax(1, keepdim=True)], dim=1)
    with pytest.warns(UserWarning, match="2 modules of cross-attention are not replaced"):
        attach(model, PATTERN)
    got = model.generate(TOKENS, attention_mask=is_token.long(), decoder_start_token_id=0,
                         **GENERATION)
    assert got.tolist() == tokens.tolist()


PREFIX = torch.randn(2, 2, BATCH, 4, 3, 8)  # keys and values of each layer


def behind_prefix(model, mask=None):
    """Compute as PEFT's prefix tuning does."""
    cache = transformers.DynamicCache(config=model.config)
    for layer, (key, value) in enumerate(PREFIX):
        cache.update(key, value, layer)
    return model(TOKENS, attention_mask=mask, past_key_values=cache).last_hidden_state


@pytest.mark.parametrize('padding', [None, *PADDINGS])
def test_keys_before_the_tokens_of_an_encoder_are_attended_to(padding):
    model = new_model('BERT')
    is_token = PADDINGS[padding or 'none']
    everywhere = torch.nn.functional.pad(is_token, (3, 0), value=True)
    expected = behind_prefix(model, dense_mask(everywhere, is_causal=False)[:, :, 3:])
    attach(model, PATTERN)
    got = behind_prefix(model, None if padding is None else everywhere.long())
    torch.testing.assert_close(got[is_token], expected[is_token], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
@pytest.mark.parametrize('padding', PADDINGS)
def test_a_decoder_with_an_encoder_equals_sdpa_under_the_dense_mask(padding, dtype):
    model, is_token = new_model('T5', DECODERS['T5']).to(dtype), PADDINGS[padding]
    of_encoder, of_decoder = (dense_mask(is_token, is_causal) for is_causal in (False, True))
    encoded = model.encoder(TOKENS, attention_mask=of_encoder)
    results = []
    for given in ({'encoder_outputs': encoded, 'attention_mask': is_token.long(),
                   'decoder_attention_mask': of_decoder},
                  {'input_ids': TOKENS, 'attention_mask': is_token.long(),
                   'decoder_attention_mask': is_token.long()}):
        logits = model(decoder_input_ids=TOKENS, use_cache=False, **given).logits[is_token]
        results.append(with_grads(model, logits))
        if len(results) == 1:
            with pytest.warns(UserWarning, match='cross-attention .* not replaced'):
                attach(model, PATTERN)
    expected, got = results
    # Gradients of up to 40, for T5 does not scale its logits, differ by 2e-5 in single precision:
    # rounding, as double precision shows.
    assert_alike(got, expected, *(() if dtype == torch.float else (1e-12, 1e-11)))


def cross_modules(model):
    return [name for name, _ in model.named_modules() if name.endswith('EncDecAttention')]


@pytest.mark.parametrize('length', [8, LENGTH])
@pytest.mark.parametrize('pattern', [Full(), PATTERN], ids=['full', 'window'])
def test_named_cross_attention_is_attached(pattern, length):
    model, is_token = new_model('T5', DECODERS['T5']), PADDINGS['right']
    decoded = TOKENS[:, :length]
    mask = pattern.build(length, LENGTH).to_mask() & is_token[:, None, None]
    mask[1] &= torch.arange(LENGTH) < 13
    encoded = model.encoder(TOKENS, attention_mask=is_token.long())
    expected = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=decoded)
    attach(model, pattern, layers=cross_modules(model))
    got = model(encoder_outputs=encoded, attention_mask=is_token.long(), decoder_input_ids=decoded)
    torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=1e-5)
    if pattern != Full():
        with pytest.raises(ValueError, match=r"'along' must be Full\(\) for cross-attention"):
            model.generate(TOKENS, decoder_start_token_id=0, **GENERATION)


@pytest.mark.parametrize('name', ['BertModel', 'T5ForConditionalGeneration'])
def test_other_models_of_the_same_config_do_not_change(name):
    kind = getattr(transformers, name)
    config = kind.config_class(**FAMILIES['BERT' if name == 'BertModel' else 'T5'][1])
    one, other = kind(config).eval(), kind(config).eval()
    kwargs = {'input_ids': TOKENS}
    kwargs |= {'decoder_input_ids': TOKENS} if name != 'BertModel' else {}
    expected = other(**kwargs)[0]
    with warnings.catch_warnings(action='ignore'):  # of attention between two sequences
        attach(one, PATTERN)
    assert one(**kwargs)[0].isfinite().all()
    torch.testing.assert_close(other(**kwargs)[0], expected)
    assert config._attn_implementation == other.config._attn_implementation == 'sdpa'
    assert one.config._attn_implementation != 'sdpa'


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'GPT-2'])
def test_weights_equal_those_under_the_dense_mask(family):
    model, is_token = new_model(family), PADDINGS['left']
    model.set_attn_implementation('eager')
    mask = dense_mask(is_token, is_causal=FAMILIES[family][2])
    added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float).min)
    kwargs = inputs(family, is_token, is_dense=False)
    expected = model(**{**kwargs, 'attention_mask': added}, output_attentions=True).attentions
    got = attach(model, PATTERN)(**kwargs, output_attentions=True).attentions
    assert len(got) == 2
    for weight, dense in zip(got, expected):
        torch.testing.assert_close(weight, dense * is_token[:, None, :, None], atol=1e-6, rtol=1e-5)


def test_masks_of_four_dimensions_are_read_on_the_edges():
    """Masks may be boolean, or added to logits with a gradient, for each head."""
    model = new_model('BERT')
    torch.manual_seed(0)
    allowed = torch.rand(BATCH, 1, LENGTH, LENGTH) < .5
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    for mask in (allowed, torch.randn(BATCH, 4, LENGTH, LENGTH).masked_fill(~allowed, -torch.inf)):
        dense = PATTERN.build(LENGTH).to_mask()
        both = mask & dense if mask.dtype == torch.bool else mask.masked_fill(~dense, -torch.inf)
        expected, got = [], []
        for result, given in ((expected, both), (got, mask)):
            given = given.clone().requires_grad_(given.is_floating_point())
            if result is got:
                attach(model, PATTERN)
            hidden = model(TOKENS, attention_mask=given).last_hidden_state
            hidden.square().sum().backward()
            result += [hidden] + ([given.grad] if given.requires_grad else [])
        detach(model)
        for ours, theirs in zip(got, expected):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('value', [None, -1e4, -torch.inf])
@pytest.mark.parametrize('padding', PADDINGS)
def test_masks_of_keys_are_padding(padding, value):
    """Some models turn masks of two dimensions into four, boolean or added to logits."""
    model, is_token = attach(new_model('BERT'), PATTERN), PADDINGS[padding]
    mask = is_token if value is None else torch.zeros(BATCH, LENGTH).masked_fill(~is_token, value)
    expected = model(TOKENS, attention_mask=is_token).last_hidden_state
    got = model(TOKENS, attention_mask=mask[:, None, None]).last_hidden_state
    assert torch.equal(got, expected)


@pytest.mark.parametrize('family', ['BERT', 'GPT-2', 'T5'])
@pytest.mark.parametrize('shape', [(BATCH, 1, 1, LENGTH), (1, 4, 1, LENGTH), (1, 1, 1, LENGTH)])
def test_a_floating_mask_of_keys_is_added_to_logits(family, shape):
    """Along all edges the model computes what it computed before."""
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    mask[..., -3:] = torch.finfo().min
    model, hidden = new_model(family), []
    for _ in range(2):
        given = mask.clone().requires_grad_()
        out = model(TOKENS, attention_mask=given).last_hidden_state[:, :-3]
        hidden.append((out, *torch.autograd.grad(out.square().sum(), given)))
        model = model if len(hidden) > 1 else attach(model, Full())
    torch.testing.assert_close(*hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('name', ['LayoutLMModel', 'MarkupLMModel'])
def test_models_that_make_their_own_masks_of_keys(name):
    kind, is_token = getattr(transformers, name), PADDINGS['right']
    model = kind(kind.config_class(**SIZES)).eval()
    expected = model(TOKENS, attention_mask=is_token.long()).last_hidden_state
    got = attach(model, Full())(TOKENS, attention_mask=is_token.long()).last_hidden_state
    torch.testing.assert_close(got[is_token], expected[is_token])


@pytest.mark.parametrize('family', [family for family in FAMILIES if family != 'ViT'])
def test_autocast_is_the_same_as_with_sdpa(family):
    model, kwargs = new_model(family).train(), inputs(family, PADDINGS['none'], is_dense=False)
    if FAMILIES[family][2]:
        kwargs['use_cache'] = False  # which joins what is of two dtypes
    with torch.autocast('cpu', torch.bfloat16):
        expected = model(**kwargs).last_hidden_state
        attach(model, 'Full()' if edges_of(model) else None)
        hidden = model(**kwargs).last_hidden_state
    hidden.float().square().sum().backward()
    torch.testing.assert_close(hidden, expected, atol=.1, rtol=.1)


class Quantised(torch.nn.Module):
    """A layer with weights of 8 bits and no other parameter."""

    def __init__(self, layer):
        super().__init__()
        self.scale = layer.weight.detach().abs().max() / 127
        self.weight = torch.nn.Parameter((layer.weight / self.scale).round().to(torch.int8), False)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_models_with_weights_of_8_bits_are_attached(dtype):
    model = new_model('Llama').to(dtype)
    for layer in model.layers:
        for name, part in layer.self_attn.named_children():
            setattr(layer.self_attn, name, Quantised(part))
    attach(model, BlockModelSource(heads=4, head_channels=8, clusters=8))
    assert model.layers[0].self_attn.graph_source.centroid.dtype == dtype
    assert model(TOKENS).last_hidden_state.isfinite().all()


def test_dropout_is_on_the_edges():
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SIZES, **NO_DROPOUT, 'attention_probs_dropout_prob': .5})
    model = attach(transformers.BertModel(config), PATTERN).train()
    one, other = (model(TOKENS).last_hidden_state for _ in range(2))
    assert not torch.allclose(one, other)
    weight = model(TOKENS, output_attentions=True).attentions[0]
    edges = PATTERN.build(LENGTH).to_mask()
    assert (weight[..., ~edges] == 0).all()
    assert .4 < (weight[..., edges] == 0).float().mean() < .6


SOURCES = {
    'block model': lambda: BlockModelSource(heads=4, head_channels=8, clusters=8),
    'learned mask': lambda: LearnedMaskSource(4, 64, init_std=1.),
    'soft mask': lambda: LearnedMaskSource(4, 64, mode='soft', init_std=1.),
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', SOURCES)
def test_a_source_trains_saves_and_loads_with_the_model(kind, tmp_path):
    from safetensors.torch import load_file
    torch.manual_seed(0)
    model = attach(new_model('BERT'), SOURCES[kind]()).train()
    sources = [layer.attention.self.graph_source for layer in model.encoder.layer]
    assert not torch.equal(*(next(source.parameters()) for source in sources))
    before = [parameter.clone() for parameter in sources[1].parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    run(model, 'BERT', PADDINGS['left'], is_dense=False)
    optimizer.step()
    assert any(not torch.equal(*pair) for pair in zip(before, sources[1].parameters()))
    model.eval().save_pretrained(tmp_path)
    loaded = transformers.BertModel.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == 'sdpa'
    attach(loaded, SOURCES[kind]())
    loaded.load_state_dict(load_file(tmp_path / 'model.safetensors'))
    torch.manual_seed(1)
    expected = run(model, 'BERT', PADDINGS['left'], is_dense=False)
    torch.manual_seed(1)
    got = run(loaded.eval(), 'BERT', PADDINGS['left'], is_dense=False)
    torch.testing.assert_close(got.hidden, expected.hidden)


def test_weights_that_are_renamed_on_saving_can_be_loaded(tmp_path):
    from safetensors.torch import load_file
    model, loaded = (attach(new_model('ViT'), SOURCES['block model']()) for _ in range(2))
    model.save_pretrained(tmp_path, save_original_format=False)
    loaded.load_state_dict(load_file(tmp_path / 'model.safetensors'))
    for parameter, expected in zip(loaded.parameters(), model.parameters()):
        assert torch.equal(parameter, expected)


def test_a_learned_mask_equals_its_dense_form_in_a_decoder():
    model, is_token = new_model('Llama'), PADDINGS['left']
    source = LearnedMaskSource(4, 64, init_std=1.)
    dense = torch.cat([dense_mask(is_token, is_causal=True, pattern=mask)
                       for mask in source.freeze()], dim=1)
    kwargs = inputs('Llama', is_token, is_dense=False)
    expected = model(**{**kwargs, 'attention_mask': dense}).last_hidden_state
    attach(model, PatternSource(source.freeze()))
    got = model(**kwargs).last_hidden_state
    torch.testing.assert_close(got[is_token], expected[is_token], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings('ignore:`gradient_checkpointing_enable`')
@pytest.mark.parametrize('options', [None, {'use_reentrant': True}, {'use_reentrant': False}])
@pytest.mark.parametrize('family', ['BERT', 'GPT-2'])
def test_gradient_checkpointing_returns_the_same(family, options):
    model = attach(new_model(family), PATTERN).train()
    expected = run(model, family, PADDINGS['left'], is_dense=False)
    model.gradient_checkpointing_enable(options)
    got = run(model, family, PADDINGS['left'], is_dense=False)
    torch.testing.assert_close(got.hidden, expected.hidden)
    torch.testing.assert_close(got.grads, expected.grads)


def test_a_copy_of_a_lazy_mask_is_lazy():
    padding = PADDINGS['left']
    mask = LazyMask(batch_size=BATCH, q_length=LENGTH, kv_length=LENGTH, attention_mask=padding)
    for copied in (mask.detach(), mask.clone(), copy.copy(mask), copy.deepcopy(mask),
                   mask.to('cpu', copy=True)):
        assert isinstance(copied, LazyMask) and copied.equal(mask)
        assert copied.padding().equal(padding)
    moved = mask.to('meta')
    assert isinstance(moved, LazyMask) and moved.is_meta and moved.how['attention_mask'].is_meta
    assert type(mask.float()) is type(mask[:, :, 1:]) is torch.Tensor


def implementations(model):
    return {id(part): part._attn_implementation for part in (
        model.config, *(getattr(model.config, name) for name in model.config.sub_configs))}


@pytest.mark.parametrize('copied', [lambda model: model, copy.deepcopy,
                                    lambda model: pickle.loads(pickle.dumps(model))],
                         ids=['itself', 'deepcopy', 'pickle'])
def test_a_detached_model_is_the_same_as_before(copied):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    config = transformers.CLIPConfig(text_config={**sizes, 'vocab_size': 50}, vision_config={
        **sizes, 'image_size': 16, 'patch_size': 4})
    config.vision_config._attn_implementation = 'eager'
    model = transformers.CLIPModel(config)
    before = list(implementations(model).values())
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    model = copied(attach(model, PATTERN))
    assert set(implementations(model).values()) == {'graphattn', 'graphattn_eager'}
    detach(model)
    assert list(implementations(model).values()) == before
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


@torch.no_grad()
@pytest.mark.parametrize('padding', PADDINGS)
@pytest.mark.parametrize('learn_teleport', [False, True])
def test_several_hops_equal_the_formula(padding, learn_teleport):
    model = attach(new_model('BERT'), PATTERN, hops=5, teleport=.1, learn_teleport=learn_teleport)
    is_token = PADDINGS[padding]
    allowed, calls = dense_mask(is_token, False), []
    for module in (layer.attention.self for layer in model.encoder.layer):
        module.register_forward_hook(
            lambda module, given, out: calls.append((module, given[0], out[0])))
        if learn_teleport:
            module.graph_teleport_logit.data += torch.arange(4.)
    model(TOKENS, attention_mask=is_token.long())
    assert len(calls) == 2
    for module, x, out in calls:
        query, key, value = (linear(x).unflatten(-1, (4, -1)).transpose(1, 2)
                             for linear in (module.query, module.key, module.value))
        logit = (query @ key.transpose(2, 3) / 8**.5).masked_fill(~allowed, -torch.inf)
        weight, z = logit.softmax(-1), value
        teleport = (module.graph_teleport_logit.sigmoid()[:, None, None] if learn_teleport
                    else .1)
        for _ in range(5):
            z = (1 - teleport) * weight @ z + teleport * value
        expected = z.transpose(1, 2).flatten(2)
        torch.testing.assert_close(out[is_token], expected[is_token], atol=1e-5, rtol=1e-4)


def test_a_teleport_is_learned_saved_and_detached(tmp_path):
    from safetensors.torch import load_file
    model = attach(new_model('BERT'), PATTERN, hops=3, teleport=.2, learn_teleport=True).train()
    run(model, 'BERT', PADDINGS['left'], is_dense=False)
    logits = [layer.attention.self.graph_teleport_logit for layer in model.encoder.layer]
    assert all((logit.grad != 0).all() for logit in logits)
    torch.testing.assert_close(logits[0].sigmoid(), torch.full((4,), .2))
    logits[1].data += 1.
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / 'model.safetensors')
    assert torch.equal(saved['encoder.layer.1.attention.self.graph_teleport_logit'], logits[1])
    names = set(new_model('BERT').state_dict())
    assert set(detach(model).state_dict()) == names


def test_continuous_batching_is_refused():
    model = attach(new_model('Llama', 'LlamaForCausalLM'), PATTERN)
    with pytest.raises(ValueError, match='graphattn.* is not supported'):
        model.generate_batch(inputs=[[5, 6, 7]], generation_config=transformers.GenerationConfig(
            **GENERATION))


def longformer():
    return transformers.LongformerModel(transformers.LongformerConfig(
        **SIZES, attention_window=[4, 4]))


def attached_twice():
    return attach(attach(new_model('BERT'), PATTERN), PATTERN)


OF_TOKENS = r"'attention_mask' must.*\[2, 20\],.*tokens.*0.*padding,.*four"
BAD = {
    'no_model': (lambda: attach(torch.nn.Linear(2, 2), PATTERN), TypeError,
                 "'model' must.*PreTrainedModel.*unwrap .*layers.from_torch"),
    'family': (lambda: attach(longformer(), PATTERN), ValueError,
               "'model' must.*attention that.*got LongformerModel,"),
    'along': (lambda: attach(new_model('BERT'), 3), TypeError,
              "'along' must be a GraphSource, a Pattern, .* \\(got int\\)"),
    'class': (lambda: attach(new_model('BERT'), SlidingWindow), TypeError,
              "'along' must be .* \\(got the class SlidingWindow\\)"),
    'expression': (lambda: attach(new_model('BERT'), 'SlidingWidnow(3)'), ValueError,
                   "unknown pattern .* did you mean 'SlidingWindow'"),
    'heads': (lambda: attach(new_model('BERT'), SOURCES['block model']().__class__(2, 8)),
              ValueError, r"'along' must.*4 heads.*\(got.*source"),
    'number': (lambda: attach(new_model('BERT'), PATTERN, layers=[2]), ValueError,
               "'layers' must be at most 1 \\(got 2\\)"),
    'name': (lambda: attach(new_model('BERT'), PATTERN, layers=['attention']), ValueError,
             "'layers'.*module.*'attention'.* encoder.layer.0.attention.self"),
    'str': (lambda: attach(new_model('BERT'), PATTERN, layers='0'), TypeError,
            "'layers' must be a sequence"),
    'same_twice': (lambda: attach(new_model('BERT'), PATTERN, layers=[0, 0]), ValueError,
                   "'layers' must.*module.*got 'encoder.layer.0.attention.self' twice"),
    'twice': (attached_twice, ValueError, "'layers' must.*attached.*detach"),
    'detach': (lambda: detach(new_model('BERT')), ValueError,
               "'model' must.*attached.*got a model without graphs"),
    'no_edges': (lambda: attach(new_model('BERT'), None)(TOKENS), ValueError,
                 "'along' must.*pattern.*source.*BertSelfAttention.*got None"),
    'own_edges': (lambda: attach(new_model('DeepSeek-V3.2'), PATTERN)(TOKENS), ValueError,
                  "'along' must be None for a model that chooses its own keys"),
    'hops': (lambda: attach(new_model('BERT'), PATTERN, hops=-1), ValueError, "'hops' must not"),
    'teleport': (lambda: attach(new_model('BERT'), PATTERN, hops=2, teleport=[.1]), ValueError,
                 "'teleport' must.*number.*number.*got 1 numbers"),
    'learned_teleport': (lambda: attach(new_model('BERT'), PATTERN, hops=2, learn_teleport=True),
                         ValueError, "'teleport' must.*number.*got 0.0"),
    'hops_of_own_edges': (lambda: attach(new_model('DeepSeek-V3.2'), None, hops=2), ValueError,
                          "'hops' must.*chooses.*keys.*got hops=2"),
    'decode': (lambda: attach(new_model('Llama', 'LlamaForCausalLM'), SOURCES['block model']())
               .generate(TOKENS, **GENERATION), ValueError,
               "the source must be a pattern if a cache .* use_cache=False"),
    'prefix': (lambda: behind_prefix(attach(new_model('BERT'), SOURCES['block model']())),
               ValueError, "the source must be a pattern if .* omit the prefix"),
    'soft_and_causal': (lambda: attach(new_model('Llama'), SOURCES['soft mask']())(TOKENS),
                        ValueError, "the source must return graphs if masks other than padding"),
    'length': (lambda: attach(new_model('BERT'), PatternSource(LearnedMaskSource(
        4, 8, mode='dam_unstructured').freeze()))(TOKENS), ValueError,
        "at most 8 tokens, .* \\(got 20\\)"),
    'mask_of_heads': (lambda: attach(new_model('GPT-2'), PATTERN)(TOKENS, head_mask=torch.ones(4)),
                      ValueError, "'head_mask' must be None, .* no mask of heads"),
    'mask_of_ints': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, 1, LENGTH, LENGTH).long()), ValueError,
        r"'attention_mask' must.*True =.*\(got torch.int64"),
    'mask_of_other_heads': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, 3, LENGTH, LENGTH).bool()), ValueError,
        "'attention_mask' must be .* \\(got torch.bool of shape \\(2, 3, 20, 20\\)"),
    'mask_too_short': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, LENGTH - 1)), ValueError, OF_TOKENS),
    'mask_too_long': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, LENGTH + 1)), ValueError, OF_TOKENS),
    'mask_too_short_for_a_cache': (lambda: attach(new_model('Llama'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, LENGTH - 1)), ValueError, OF_TOKENS),
    'mask_of_another_batch': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH + 1, LENGTH)), ValueError, OF_TOKENS),
    'mask_of_three_dimensions': (lambda: attach(new_model('BERT'), PATTERN)(
        TOKENS, attention_mask=torch.ones(BATCH, LENGTH, LENGTH)), ValueError, OF_TOKENS),
    'num_kv_heads': (lambda: graph_attention(
        attach(new_model('BERT'), PATTERN).encoder.layer[0].attention.self,
        *(torch.randn(1, heads, 5, 8) for heads in (4, 3, 3)), None), ValueError,
        "'key' must.*number.*heads"),
    'sinks_of_queries': (lambda: attach(new_model('BERT'), PATTERN)(TOKENS, sinks=torch.ones(1)),
                         ValueError, "'sinks' must be None"),
    'paged': (lambda: attach(new_model('BERT'), PATTERN)(TOKENS, cache=object()), ValueError,
              "'cache' must be None"),
}


@pytest.mark.parametrize('case', BAD)
def test_errors_name_the_argument_and_the_remedy(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize('mask, message', [
    (~PADDINGS['left'], "leaves no token in sequence 0, .* 'attention_mask' is 1 at tokens"),
    (torch.ones(BATCH, 1, LENGTH, LENGTH).tril(), "'attention_mask' is a floating mask of 0 and 1"),
])
def test_suspicious_masks_cause_a_warning(mask, message):
    with pytest.warns(UserWarning, match=message):
        attach(new_model('BERT'), PATTERN)(TOKENS, attention_mask=mask)


def test_a_model_that_is_not_attached_is_refused():
    model = new_model('BERT')
    attach(copy.deepcopy(model), PATTERN)  # which registers the name
    model.set_attn_implementation('graphattn')
    with pytest.raises(ValueError, match=r'call graphattn.hugging_face.attach\(model, along\)'):
        model(TOKENS)


@pytest.mark.slow
def test_no_dense_mask_is_computed(monkeypatch):
    """At 16,384 tokens a dense one would take 512 MiB for each of the two sequences."""
    from graphattn.hugging_face.lazy_mask import LazyMask
    monkeypatch.setattr(LazyMask, 'dense', lambda mask: pytest.fail('was formed'))
    for family in ('BERT', 'Llama', 'Mistral', 'GPT-2'):
        model = attach(new_model(family), PATTERN)
        run(model, family, PADDINGS['left'], is_dense=False)


def test_a_missing_or_old_version_of_transformers_is_named_in_the_error(monkeypatch):
    import sys

    from graphattn.hugging_face.attaching import register
    register.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'transformers', None)
        with pytest.raises(ImportError, match="needs transformers: pip install"):
            attach(new_model, PATTERN)
    for version in '4.40.0', '5.16.1':  # of which the last gave other numbers without a word
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, 'transformers', SimpleNamespace(__version__=version))
            with pytest.raises(ImportError, match=rf"5.17 or later \(got {version}\)"):
                attach(new_model, PATTERN)
