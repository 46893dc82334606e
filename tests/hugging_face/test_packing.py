"""Sequences that are packed into one row give what they give alone."""

from __future__ import annotations

import pytest
import torch

from graphattn.hugging_face import attach
from graphattn.patterns import GlobalTokens, SlidingWindow
from tests.test_hugging_face import FAMILIES, SIZES, TOKENS, new_model

transformers = pytest.importorskip('transformers')

PATTERN = SlidingWindow(2) | GlobalTokens(1)
LENGTHS = 9, 1, 10
ROW = TOKENS[:1]
POINTERS = torch.tensor([0, 9, 10, 20], dtype=torch.int32)
POSITIONS = torch.cat(list(map(torch.arange, LENGTHS))).unsqueeze(0)
# What DataCollatorWithFlattening hands over, without and with arguments of flash attention.
PACKED = {
    'position_ids': {'position_ids': POSITIONS},
    'pointers': {'position_ids': POSITIONS, 'cu_seq_lens_q': POINTERS, 'cu_seq_lens_k': POINTERS,
                 'max_length_q': 10, 'max_length_k': 10},
}


def hidden_of(model, tokens, family, **packed):
    options = {'use_cache': False} if FAMILIES[family][2] else {}
    return model(tokens, **packed, **options).last_hidden_state


def attached(family, along=PATTERN, **options):
    return attach(new_model(family), along, **options)


@pytest.mark.parametrize('packed', PACKED)
@pytest.mark.parametrize('hops', [1, 3])
@pytest.mark.parametrize('family', ['BERT', 'Llama', 'Mistral', 'GPT-2'])
def test_packed_sequences_equal_unpacked_ones(family, hops, packed):
    model = attached(family, hops=hops)
    got = hidden_of(model, ROW, family, **PACKED[packed])
    alone = [hidden_of(model, part, family) for part in ROW.split(LENGTHS, dim=1)]
    torch.testing.assert_close(got, torch.cat(alone, dim=1), atol=1e-6, rtol=1e-6)


def test_rows_of_the_collator_are_packed():
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = dict(collate([{'input_ids': part.tolist()} for part in ROW[0].split(LENGTHS)]))
    model = attached('Llama')
    got = hidden_of(model, batch.pop('input_ids'), 'Llama', **batch)
    expected = hidden_of(model, ROW, 'Llama', **PACKED['position_ids'])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize('positions', [torch.zeros(1, 20).long(), torch.arange(20).unsqueeze(0)])
def test_position_ids_that_do_not_restart_pack_nothing(positions):
    model = attached('BERT')
    edges = model(ROW, position_ids=positions, output_attentions=True).attentions[0] > 0
    assert edges[0, 0].equal(PATTERN.build(20).to_mask())


def test_gradients_of_packed_sequences_equal_those_of_unpacked_ones():
    model, grads = attached('Llama').train(), []
    for hidden in (hidden_of(model, ROW, 'Llama', **PACKED['pointers']),
                   torch.cat([hidden_of(model, part, 'Llama')
                              for part in ROW.split(LENGTHS, dim=1)], dim=1)):
        weights = list(model.parameters())
        grads.append(torch.autograd.grad(hidden.square().sum(), weights))
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


def pointers(*values, of='q', dtype=torch.int32):
    return {f'cu_seq_lens_{of}': torch.tensor(values, dtype=dtype)}


def with_cache():
    model = attached('Llama')
    cache = model(ROW).past_key_values
    model(ROW[:, :1], past_key_values=cache, **pointers(0, 1))


def in_cross_attention():
    config = transformers.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    model = attach(transformers.BertModel(config).eval(), PATTERN,
                   layers=['encoder.layer.0.crossattention.self'])
    model(ROW, encoder_hidden_states=torch.randn(1, 20, 32), use_cache=False,
          **pointers(0, 9, 20))


BAD = {
    'falls': (pointers(0, 12, 9, 20), ValueError, "'cu_seq_lens_q' must rise from 0 to 20"),
    'ends early': (pointers(0, 9), ValueError, "'cu_seq_lens_q' must rise from 0 to 20"),
    'begins late': (pointers(3, 20), ValueError, "'cu_seq_lens_q' must rise from 0 to 20"),
    'keys fall': (pointers(0, 12, 9, 20, of='k'), ValueError, "'cu_seq_lens_k' must rise"),
    'floating': (pointers(0, 20, dtype=torch.float), TypeError, "'cu_seq_lens_q' must be an int64"),
    'other keys': (pointers(0, 9, 20) | pointers(0, 8, 20, of='k'), ValueError,
                   "'cu_seq_lens_k' must equal 'cu_seq_lens_q'"),
    'padding': (pointers(0, 9, 20) | {'attention_mask': torch.arange(20)[None] < 15}, ValueError,
                "'attention_mask' must be None with 'cu_seq_lens_q'"),
    'cache': (with_cache, ValueError, "'cu_seq_lens_q' must be None .* use_cache=False"),
    'cross': (in_cross_attention, ValueError,
              "'cu_seq_lens_q' must be None in cross-attention; pad"),
}


@pytest.mark.parametrize('case', BAD)
def test_pointers_that_do_not_fit_are_refused_by_name(case):
    given, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        given() if callable(given) else attached('BERT')(ROW, **given)
    assert len(str(raised.value).splitlines()) == 1
