"""Layers and heads are attached and detached one by one, for good or inside a block."""

import copy
import pickle

import pytest
import torch

from graphattn.hugging_face import attach, attached, attachment, detach
from graphattn.patterns import Causal, Full, GlobalTokens, RandomKeys, SlidingWindow
from graphattn.sources import LearnedMaskSource, PatternSource
from tests.test_hugging_face import FAMILIES, LENGTH, TOKENS, new_model, shallow

WINDOW, GLOBAL = SlidingWindow(2), SlidingWindow(1) | GlobalTokens(1)
# An encoder, a decoder, one that shares keys among heads, and one with relative
# positions.
KINDS = ['BERT', 'GPT-2', 'Llama', 'T5']


def hidden_of(model, family='BERT'):
    options = {'use_cache': False} if FAMILIES[family][2] else {}
    return model(TOKENS, **options).last_hidden_state


def weights_of(model, family='BERT'):
    options = {'use_cache': False} if FAMILIES[family][2] else {}
    return model(TOKENS, output_attentions=True, **options).attentions


def edges_of(pattern, family):
    return (pattern & Causal() if FAMILIES[family][2] else pattern).build(LENGTH).to_mask()


def seen(model, family='BERT'):
    """Return between which tokens each head of each layer attends, ``[layers, heads, n, n]``."""
    return torch.stack([weight[0] > 0 for weight in weights_of(model, family)])


@pytest.mark.parametrize('family', KINDS)
def test_a_mapping_or_a_list_attaches_each_layer_to_its_own_graph(family):
    alone = [attach(new_model(family), along, layers=[layer])
             for layer, along in enumerate((WINDOW, GLOBAL))]
    both = attach(alone[0], GLOBAL, layers=[1])
    for along in ({1: GLOBAL, 0: WINDOW}, [WINDOW, GLOBAL]):
        model = attach(new_model(family), along)
        torch.testing.assert_close(hidden_of(model, family), hidden_of(both, family))
        assert str(attachment(model)) == str(attachment(both))
    assert len(attachment(both)) == 2


@pytest.mark.parametrize('family', ['BERT', 'Llama', 'T5'])  # GPT-2 asks for no weights
def test_heads_that_are_not_attached_keep_full_attention(family):
    dense = new_model(family)
    dense.set_attn_implementation('eager')
    expected = weights_of(dense, family)[0]
    model = attach(new_model(family), WINDOW, heads=[1, 3])
    got = weights_of(model, family)[0]
    torch.testing.assert_close(got[:, [0, 2]], expected[:, [0, 2]], atol=1e-6, rtol=1e-5)
    is_seen = seen(model, family)
    assert is_seen[:, 1].equal(edges_of(WINDOW, family).expand(2, -1, -1))
    assert is_seen[:, 2].equal(edges_of(Full(), family).expand(2, -1, -1))


@pytest.mark.parametrize('family', KINDS)
def test_layers_and_heads_are_detached_one_by_one(family):
    model = new_model(family)
    before = hidden_of(model, family)
    attach(model, WINDOW)
    detach(model, layers=[0])
    only = attach(new_model(family), WINDOW, layers=[1])
    torch.testing.assert_close(hidden_of(model, family), hidden_of(only, family))
    detach(model, heads=[0])
    only = attach(new_model(family), WINDOW, layers=[1], heads=[1, 2, 3])
    torch.testing.assert_close(hidden_of(model, family), hidden_of(only, family))
    detach(model, layers=[1], heads=[1, 2, 3])
    torch.testing.assert_close(hidden_of(model, family), before)
    assert not any(hasattr(module, 'graph_attachment') for module in model.modules())
    assert model.config._attn_implementation == 'sdpa'


@pytest.mark.parametrize('family', KINDS)
def test_a_block_attaches_and_leaves_as_it_was(family):
    model = new_model(family)
    before = hidden_of(model, family)
    with attached(model, WINDOW) as same:
        assert same is model
        inside = hidden_of(model, family)
    torch.testing.assert_close(inside, hidden_of(attach(new_model(family), WINDOW), family))
    assert torch.equal(hidden_of(model, family), before)
    assert model.config._attn_implementation == 'sdpa'
    assert not any(len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize('options', [{}, {'layers': [1]}, {'heads': [0]},
                                     {'layers': [0], 'heads': [2, 3]}])
@pytest.mark.parametrize('outer', [{}, {'layers': [1]}, {'heads': [0, 1]}])
def test_a_nested_block_leaves_the_outer_attachment(outer, options):
    model = new_model('BERT')
    model.set_attn_implementation('eager')  # it returns weights
    with attached(model, GLOBAL, **outer):
        expected, table = hidden_of(model), str(attachment(model))
        with attached(model, WINDOW, **options):
            is_seen = seen(model)
            for layer in options.get('layers', [0, 1]):
                for head in options.get('heads', range(4)):
                    assert is_seen[layer, head].equal(WINDOW.build(LENGTH).to_mask())
        assert torch.equal(hidden_of(model), expected)
        assert str(attachment(model)) == table
    assert not hasattr(model, 'graph_attachment')


def test_a_learned_source_and_its_teleport_outlive_a_block_inside():
    model = attach(new_model('BERT'), LearnedMaskSource(4, 64, init_std=1.), hops=2, teleport=.1,
                   learn_teleport=True).eval()
    names, expected = dict(model.named_parameters()), hidden_of(model)
    with attached(model, WINDOW):
        assert not any('graph' in name for name, _ in model.named_parameters())
    assert all(names[name] is parameter for name, parameter in model.named_parameters())
    torch.testing.assert_close(hidden_of(model), expected)


@pytest.mark.parametrize('fails', [lambda model: 1 / 0,
                                   lambda model: attach(model, 'SlidingWidnow(3)')])
def test_an_exception_detaches_too(fails):
    model = new_model('BERT')
    before = hidden_of(model)
    with pytest.raises((ZeroDivisionError, ValueError)), attached(model, WINDOW):
        fails(model)
    assert torch.equal(hidden_of(model), before)


@pytest.mark.parametrize('options', [{'layers': [5]}, {'heads': [7]}, {'hops': -1}])
def test_a_block_that_cannot_begin_changes_nothing(options):
    model = attach(new_model('BERT'), GLOBAL)
    before = hidden_of(model)
    with pytest.raises(ValueError), attached(model, WINDOW, **options):
        pass
    assert torch.equal(hidden_of(model), before)


@pytest.mark.parametrize('copied', [copy.deepcopy,
                                    lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_their_layers_and_heads(copied):
    model = attach(new_model('BERT'), {0: WINDOW})
    attach(model, GLOBAL, layers=[1], heads=[2])
    got = copied(model)
    torch.testing.assert_close(hidden_of(got), hidden_of(model))
    assert str(attachment(got)) == str(attachment(model))
    torch.testing.assert_close(hidden_of(detach(got)), hidden_of(new_model('BERT')))


@pytest.mark.slow
@pytest.mark.usefixtures('clean_dynamo')
def test_a_compiled_model_with_some_heads_attached_returns_the_same_until_it_is_changed():
    model = attach(shallow(new_model('BERT')), WINDOW, heads=[1])
    compiled = torch.compile(model, backend='eager')
    torch.testing.assert_close(hidden_of(compiled), hidden_of(model))
    model.set_attn_implementation('sdpa')
    with pytest.raises(ValueError, match=r'call detach\(model\)'):
        hidden_of(compiled)


def other_backend():
    model = attach(new_model('BERT'), WINDOW, heads=[0], backend='gather')
    attach(model, WINDOW, heads=[1])


BAD = {
    'layers and mapping': (lambda: attach(new_model('BERT'), {0: WINDOW}, layers=[0]),
                           "'layers' must.*None if 'along'"),
    'list': (lambda: attach(new_model('BERT'), [WINDOW]),
             r"'along' must.*source,.*2.*\(got 1\)"),
    'unknown head': (lambda: attach(new_model('BERT'), WINDOW, heads=[4]),
                     "'heads' must be at most 3"),
    'no head': (lambda: attach(new_model('BERT'), WINDOW, heads=[]), r"'heads' must.*got \[\]"),
    'head twice': (lambda: attach(new_model('BERT'), WINDOW, heads=[1, 1]), r"once.*got \[1, 1\]"),
    'source of all heads': (
        lambda: attach(new_model('BERT'), LearnedMaskSource(4, 64), heads=[1]),
        "'along' must.*pattern, .*got LearnedMaskSource.*omit 'heads'"),
    'other patterns': (
        lambda: attach(new_model('BERT'), PatternSource([WINDOW] * 3), heads=[1, 2]),
        r"2.*\(got 3 patterns\)"),
    'hops': (lambda: attach(new_model('BERT'), WINDOW, heads=[1], hops=2),
             "'hops' must.*omit 'heads'"),
    'head attached': (
        lambda: attach(attach(new_model('BERT'), WINDOW, heads=[1]), WINDOW, heads=[1, 2]),
        "'layers' must.*attached.*got 'encoder.layer.0.attention.self'"),
    'backend': (other_backend, "'backend' must be 'gather'"),
    'seed': (lambda: attach(attach(new_model('BERT'), RandomKeys(2), heads=[1]),
                            PatternSource(RandomKeys(2), seed=3), heads=[2]),
             "'along' must have the seed"),
    'detach a layer': (lambda: detach(attach(new_model('BERT'), WINDOW, layers=[0]), layers=[1]),
                       "'layers' must.*attached"),
    'detach a head': (lambda: detach(attach(new_model('BERT'), WINDOW, heads=[0]), heads=[1]),
                      r"'heads' must.*attached.*\(got \[1\]"),
    'detach a head of a source': (
        lambda: detach(attach(new_model('BERT'), LearnedMaskSource(4, 64)), heads=[1]),
        "'heads' must.*None.*source.*all heads"),
    'detach a head of hops': (
        lambda: detach(attach(new_model('BERT'), WINDOW, hops=2), heads=[1]),
        "'heads' must be None .* several hops"),
}


@pytest.mark.parametrize('case', BAD)
def test_errors_name_the_argument_and_the_remedy(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1
