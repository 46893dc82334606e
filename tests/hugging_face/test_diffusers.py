"""Transformers of diffusers along a graph return what SDPA returns under the equivalent mask."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

from graphattn.hugging_face import attach_diffuser, detach_diffuser
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.sources import PatternSource

TEXT = 5  # tokens


def flux(diffusers):
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8))
    inputs = dict(hidden_states=torch.randn(2, 16, 4), timestep=torch.tensor([1., 1.]),
                  encoder_hidden_states=torch.randn(2, TEXT, 32),
                  pooled_projections=torch.randn(2, 32), txt_ids=torch.randn(TEXT, 3),
                  img_ids=torch.randn(16, 3))
    return model, inputs, 16 + TEXT


def wan(diffusers):
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4,
        out_channels=4, text_dim=16, freq_dim=256, ffn_dim=32, num_layers=2, cross_attn_norm=True,
        qk_norm='rms_norm_across_heads', rope_max_seq_len=32)
    # As many tokens of the video as of the text, so that only the arguments tell them apart.
    inputs = dict(hidden_states=torch.randn(2, 4, 3, 4, 4), timestep=torch.tensor([1, 1]),
                  encoder_hidden_states=torch.randn(2, 12, 16))
    return model, inputs, 12


@pytest.fixture(params=[flux, wan])
def case(request):
    diffusers = pytest.importorskip('diffusers', reason='its transformers need diffusers')
    torch.manual_seed(0)
    model, inputs, num_tokens = request.param(diffusers)
    return model.eval(), inputs, num_tokens


class Processor:
    """One like those of diffusers: joint attention if the module asks for it."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None):
        keys = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if attn.is_joint and encoder_hidden_states is not None:
            keys = hidden_states = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        query, key = (x.unflatten(2, (2, -1)).transpose(1, 2) for x in (hidden_states, keys))
        out = F.scaled_dot_product_attention(query, key, key, attn_mask=attention_mask)
        return out.transpose(1, 2).flatten(2)


class Attention(torch.nn.Module):
    heads = 2

    def __init__(self, is_joint=False):
        super().__init__()
        self.is_joint = is_joint
        self.set_processor(Processor())

    def set_processor(self, processor):
        self.processor = processor

    def forward(self, x, *others, **options):
        assert 'attention_mask' in inspect.signature(self.processor.__call__).parameters
        return self.processor(self, x, *others, **options)


def by_mask(x, mask):
    return Attention()(x, attention_mask=mask)


X = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0))
WINDOW = SlidingWindow(1)


def test_a_processor_attends_along_the_graph_of_its_own_and_joint_tokens():
    attention = attach_diffuser(Attention(is_joint=True), WINDOW)
    torch.testing.assert_close(attention(X), by_mask(X, WINDOW.build(9).to_mask()))
    joint = torch.cat([X[:, 4:], X[:, :4]], dim=1)
    torch.testing.assert_close(attention(X[:, :4], X[:, 4:]),
                               by_mask(joint, WINDOW.build(9).to_mask()))


def test_a_mask_of_keys_is_padding():
    attention, is_token = attach_diffuser(Attention(), WINDOW), torch.ones(2, 9, dtype=torch.bool)
    is_token[1, 3:] = False
    out = attention(X, attention_mask=is_token[:, None, None])
    torch.testing.assert_close(out[0], attention(X)[0])
    torch.testing.assert_close(out[1:, :3], attention(X[1:, :3]))
    assert not out[1, 3:].any()


def test_cross_attention_of_as_many_tokens_is_not_replaced():
    attention = attach_diffuser(Attention(), WINDOW)
    torch.testing.assert_close(attention(X, X.flip(1)), Attention()(X, X.flip(1)))


def results(model, inputs):
    out = model(**inputs).sample
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


def masked(graph_mask, monkeypatch):
    """Give SDPA a mask where as many tokens attend to one another, of each head or of all, but not
    in cross-attention, which comes after each self-attention of Wan."""
    sdpa, calls = F.scaled_dot_product_attention, []

    def attend(query, key, value, **options):
        calls.append(query.size(2) == key.size(2) and query.size(2) == graph_mask.size(-1)
                     and (graph_mask.size(-1) != 12 or len(calls) % 2 == 0))
        mask = graph_mask if calls[-1] else options['attn_mask']
        return sdpa(query, key, value, **options | {'attn_mask': mask})

    monkeypatch.setattr(F, 'scaled_dot_product_attention', attend)


@pytest.mark.slow
@pytest.mark.parametrize('patterns', [
    SlidingWindow(2), [SlidingWindow(1), RandomKeys(3)]], ids=['one', 'of each head'])
def test_a_transformer_equals_sdpa_under_the_same_mask(case, patterns, monkeypatch):
    model, inputs, num_tokens = case
    before = results(model, inputs)
    source = PatternSource(patterns)
    attach_diffuser(model, source)
    got = results(model, inputs)
    detach_diffuser(model)
    torch.testing.assert_close(results(model, inputs), before)
    masks = [pattern.build(num_tokens, seed=source.seed + head if pattern.is_random else None
                           ).to_mask() for head, pattern in enumerate(source.patterns)]
    masked(torch.stack(masks), monkeypatch)
    torch.testing.assert_close(got, results(model, inputs), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got[0], before[0])


def test_detaching_restores_processors_and_parameters(case):
    model = case[0]
    before = {name: module.processor for name, module in model.named_modules()
              if hasattr(module, 'set_processor')}
    names = set(model.state_dict())
    attach_diffuser(model, 'SlidingWindow(2)')
    kinds = {type(module.processor).__name__ for module in model.modules()
             if hasattr(module, 'set_processor')}
    assert kinds == {type(processor).__name__ for processor in before.values()}
    detach_diffuser(model)
    after = {name: module.processor for name, module in model.named_modules()
             if hasattr(module, 'set_processor')}
    assert after == before and set(model.state_dict()) == names


def test_what_cannot_be_attached_is_refused():
    model = torch.nn.Sequential(Attention(), Attention())
    with pytest.raises(ValueError, match="'layers'.*got 'ff'"):
        attach_diffuser(model, 'SlidingWindow(2)', layers=['ff'])
    with pytest.raises(ValueError, match="'along' must be a source for 2 heads.*source for 3"):
        attach_diffuser(model, PatternSource([SlidingWindow(1)] * 3))
    with pytest.raises(ValueError, match="'model' must be a model to which graphs are attached"):
        detach_diffuser(model)
    attach_diffuser(model, 'SlidingWindow(2)')
    with pytest.raises(ValueError, match="'layers' must not contain attached layers"):
        attach_diffuser(model, 'SlidingWindow(2)')


def test_models_without_processors_are_refused():
    with pytest.raises(ValueError, match="self-attention.*got Linear"):
        attach_diffuser(torch.nn.Linear(2, 2), 'SlidingWindow(2)')
