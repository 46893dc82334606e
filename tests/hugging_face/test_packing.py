"""Sequences that are packed into one row give what they give alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from graphattn.hugging_face import attach
from graphattn.patterns import Causal, GlobalTokens, SlidingWindow
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


# Rows of several sequences, of which some begin inside a sequence, and where each row ends.
ROWS = torch.tensor([[3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
                     [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 1, 0, 1, 2, 3, 4]])
LENGTHS_OF_ROWS = (3, 7, 10), (12, 1, 2, 5)
TEXTS = [family for family in FAMILIES if family not in ('ViT', 'DeepSeek-V3.2')]


def alone(model, family, positions=ROWS):
    rows = []
    for row, of_row, lengths in zip(TOKENS, positions, LENGTHS_OF_ROWS):
        parts = zip(row[None].split(lengths, dim=1), of_row[None].split(lengths, dim=1))
        rows.append(torch.cat([hidden_of(model, ids, family, position_ids=at)
                               for ids, at in parts], dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize('family, use_cache, first', [
    *((family, None, 2) for family in TEXTS),
    *((family, None, 0) for family in ('BERT', 'RoBERTa', 'ModernBERT', 'T5')),
    *((family, False, 0) for family in TEXTS if FAMILIES[family][2])])
def test_a_sequence_begins_where_positions_do_not_count_up(family, use_cache, first):
    model, positions = attached(family, SlidingWindow(1) | GlobalTokens(1)), ROWS + first
    options = {} if use_cache is None or not FAMILIES[family][2] else {'use_cache': use_cache}
    got = model(TOKENS, position_ids=positions, **options).last_hidden_state
    torch.testing.assert_close(got, alone(model, family, positions), atol=1e-5, rtol=1e-5)
    of_row = model(TOKENS[1:], position_ids=positions[1:], **options).last_hidden_state
    torch.testing.assert_close(got[1:], of_row, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'ModernBERT'])
def test_starts_are_those_of_transformers(family):
    """In encoders, which transformers does not separate, if they are at the lowest position."""
    from transformers.masking_utils import find_packed_sequence_indices
    model = attached(family, 'Full()')
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        positions = torch.arange(20).repeat(2, 1)
        for row in positions:
            for cut in torch.randint(20, (3,), generator=generator).sort().values:
                row[cut:] -= row[cut].clone()
        number = find_packed_sequence_indices(positions)
        weights = model(TOKENS, position_ids=positions, output_attentions=True).attentions[0]
        may = number[:, :, None] == number[:, None]
        may &= torch.ones(20, 20).tril().bool() if FAMILIES[family][2] else True
        assert (weights > 0).equal(may[:, None].expand_as(weights))


@pytest.mark.filterwarnings('ignore:`gradient_checkpointing_enable`')
def test_marks_go_with_the_layers_that_are_computed_again():
    """A layer is computed again in the backward pass, when another batch has come in between."""
    model = attached('BERT').train()
    plain = [*torch.autograd.grad(hidden_of(model, ROW, 'BERT', **PACKED['position_ids'])
                                  .square().sum(), model.parameters(), allow_unused=True)]
    model.gradient_checkpointing_enable()
    hidden = hidden_of(model, ROW, 'BERT', **PACKED['position_ids'])
    hidden_of(model, ROW, 'BERT')
    again = torch.autograd.grad(hidden.square().sum(), model.parameters(), allow_unused=True)
    torch.testing.assert_close([*again], plain)


def test_threads_do_not_see_the_marks_of_one_another():
    model = attached('BERT')
    calls = [PACKED['position_ids'], {}] * 4
    expected = [hidden_of(model, ROW, 'BERT', **call) for call in calls]
    with ThreadPoolExecutor(4) as threads:
        got = [*threads.map(lambda call: hidden_of(model, ROW, 'BERT', **call), calls * 4)]
    torch.testing.assert_close(got, expected * 4)


def test_an_error_inside_a_model_leaves_no_marks():
    model = attached('BERT')
    with pytest.raises(ValueError, match='cu_seq_lens_q'):
        model(ROW, **pointers(0, 9))
    edges = model(ROW, output_attentions=True).attentions[0] > 0
    assert edges[0, 0].equal(PATTERN.build(20).to_mask())


@pytest.mark.parametrize('family', TEXTS)
def test_a_mask_says_that_each_row_is_one_sequence(family):
    model, mask = attached(family), torch.ones(2, 20, dtype=torch.long)
    edges = model(TOKENS, position_ids=ROWS, attention_mask=mask,
                  output_attentions=True).attentions[0] > 0
    expected = PATTERN & Causal() if FAMILIES[family][2] else PATTERN
    expected = expected & SlidingWindow(3) if family == 'Mistral' else expected
    assert edges[0, 0].equal(expected.build(20).to_mask())


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


def restarts_with_cache():
    model = attached('Llama')
    model(ROW, position_ids=POSITIONS, past_key_values=transformers.DynamicCache())


def without_positions():
    config = transformers.BartConfig(vocab_size=50, d_model=32, decoder_layers=1,
                                     decoder_attention_heads=4, decoder_ffn_dim=48)
    attach(transformers.BartForCausalLM(config), PATTERN, layers=[0])(ROW, position_ids=POSITIONS)


def of_other_models():
    outer = attach(new_model('BERT', 'BertForMaskedLM'), PATTERN)
    outer.forward = lambda input_ids, position_ids: outer.bert(input_ids)
    outer(ROW, position_ids=POSITIONS)


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
    'two rows': (lambda: attached('BERT')(TOKENS, **pointers(0, 9, 40)), ValueError,
                 "'cu_seq_lens_q' must contain the beginning of each row, .*got none at 20"),
    'restarts with a cache': (restarts_with_cache, ValueError,
                              "'position_ids' must count up by 1 with a cache.*use_cache=False"),
    'no positions': (without_positions, ValueError,
                     "'position_ids' must count up by 1 for BartAttention, whose positions do not"),
    'not passed on': (of_other_models, ValueError,
                      "'position_ids' must be None for BertForMaskedLM, which does not pass it on"),
    'cross': (in_cross_attention, ValueError,
              "'cu_seq_lens_q' must be None in cross-attention; pad"),
}


@pytest.mark.parametrize('case', BAD)
def test_pointers_that_do_not_fit_are_refused_by_name(case):
    given, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        given() if callable(given) else attached('BERT')(ROW, **given)
    assert len(str(raised.value).splitlines()) == 1
