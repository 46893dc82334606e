"""Compiled models along patterns: no graph break where tokens are all that a model is given, and
the eager values everywhere."""

import pytest
import torch
import transformers
from torch._dynamo.utils import counters

from graphattn.hugging_face import attach
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.sources import PatternSource
from tests.test_hugging_face import PADDINGS, SIZES, TOKENS, new_model, shallow

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('clean_dynamo')]
WITHOUT_CACHE = {'Llama', 'GPT-2', 'Mistral'}
PACKED = torch.cat([torch.arange(12), torch.arange(8)]).expand(2, -1)


def model_of(family):
    if family != 'ModernBERT, a window that holds all':
        return new_model(family)
    torch.manual_seed(0)
    ids = dict.fromkeys(('pad_token_id', 'bos_token_id', 'eos_token_id', 'cls_token_id',
                         'sep_token_id'), 0)
    config = transformers.ModernBertConfig(**SIZES | {'num_hidden_layers': 1}, **ids,
                                           layer_types=['sliding_attention'], local_attention=100)
    return transformers.ModernBertModel(config).eval()


def options_of(family, length=20):
    cache = {'use_cache': False} if family in WITHOUT_CACHE else {}
    return {'input_ids': TOKENS[:, :length], **cache}


def results(call, model, options):
    """Return the output and all gradients."""
    out = call(**options).last_hidden_state
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True,
                                materialize_grads=True)
    return [out.detach(), *grads]


def assert_eager(compiled, model, options):
    torch.testing.assert_close(results(compiled, model, options), results(model, model, options),
                               atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('family, lengths', [
    ('Llama', (20,)), ('ModernBERT, a window that holds all', (20, 13))])
def test_a_model_of_tokens_compiles_without_graph_breaks(family, lengths):
    model = attach(model_of(family), 'SlidingWindow(2) | GlobalTokens(1)')
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    for length in lengths:
        assert_eager(compiled, model, options_of(family, length))


def test_random_keys_of_learned_diffusion_compile_without_graph_breaks():
    along = PatternSource([SlidingWindow(1), RandomKeys(2)] * 2, seed=2**63 + 5)
    model = attach(shallow(new_model('BERT')), along, hops=3, teleport=0.1,
                   learn_teleport=True).train()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    assert_eager(compiled, model, options_of('BERT'))


@pytest.mark.parametrize('family, options', [
    ('BERT', {'position_ids': PACKED}), ('Mistral', {}),
    ('Llama', {'attention_mask': PADDINGS['left'].long()})])
def test_what_says_more_than_tokens_returns_the_eager_values_after_a_graph_break(family, options):
    model = attach(shallow(model_of(family)), 'SlidingWindow(2)')
    compiled = torch.compile(model, backend='eager')
    if family == 'BERT':  # the graph of tokens alone is not taken for another
        assert_eager(compiled, model, options_of(family))
    counters.clear()
    assert_eager(compiled, model, options_of(family) | options)
    assert counters['graph_break']
