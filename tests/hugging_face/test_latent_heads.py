"""Latent attention as wide as DeepSeek's: 576 channels of queries and keys, 512 of values."""

import pytest
import torch

from graphattn.hugging_face import attach, fit, profile
from graphattn.patterns import Full
from tests.test_hugging_face import (
    DEEPSEEK,
    PADDINGS,
    PATTERN,
    SIZES,
    TOKENS,
    assert_alike,
    dense_mask,
    with_grads,
)

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.slow

WIDE = dict(qk_nope_head_dim=512, qk_rope_head_dim=64, v_head_dim=512, q_lora_rank=16,
            kv_lora_rank=16)


def deepseek(dtype=torch.float):
    torch.manual_seed(0)
    options = {name: size for name, size in DEEPSEEK.items() if not name.startswith('index')}
    model = transformers.DeepseekV3Model(transformers.DeepseekV3Config(
        **SIZES | options | WIDE | dict(num_hidden_layers=1)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=.05)
    return model.eval().to(dtype)


def run(model, mask, is_token):
    positions = (is_token.cumsum(1) - 1).clamp(min=0)
    hidden = model(TOKENS, attention_mask=mask, position_ids=positions,
                   use_cache=False).last_hidden_state
    return with_grads(model, hidden[is_token])


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
@pytest.mark.parametrize('padding', ['none', 'left'])
@pytest.mark.parametrize('pattern', [PATTERN, Full()], ids=['sparse', 'full'])
def test_wide_heads_equal_sdpa_under_the_dense_mask(pattern, padding, dtype):
    model, is_token = deepseek(dtype), PADDINGS[padding]
    shapes = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, value, *args, **options):
        shapes.append((query.size(-1), key.size(-1), value.size(-1)))
        return attend(query, key, value, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, 'scaled_dot_product_attention', watched)
        expected = run(model, dense_mask(is_token, is_causal=True, pattern=pattern), is_token)
        patch.setattr(torch.nn.functional, 'scaled_dot_product_attention', None)
        got = run(attach(model, pattern), is_token.long(), is_token)
    assert shapes == [(576, 576, 512)]
    assert_alike(got, expected)


def test_a_fit_is_attached_to_them():
    model = deepseek()
    measured = profile(model, [TOKENS], patterns=['Full()', '4 keys of 6 clusters'])
    attach(model, fit(measured, .5).along())
    hidden = model(TOKENS, use_cache=False).last_hidden_state
    assert torch.isfinite(hidden).all() and len(measured.layer) == 4
