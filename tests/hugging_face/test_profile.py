"""A profile is what the weights of attention say, without forming them."""

import itertools

import numpy as np
import pytest
import torch

from graphattn.hugging_face import (
    Profile,
    attach,
    attached,
    attachment,
    attending,
    profile,
    profiling,
)
from graphattn.patterns import EdgeList, SlidingWindow
from tests.test_hugging_face import (
    BATCH,
    BEYOND_SDPA,
    DECODERS,
    FAMILIES,
    LENGTH,
    PADDINGS,
    SIZES,
    TOKENS,
    beyond_sdpa,
    inputs,
    longformer,
)
from tests.test_hugging_face import new_model as blurred_model

transformers = pytest.importorskip('transformers')

SPECIAL = [4, 9, 17]
KINDS = ['BERT', 'ALBERT', 'Llama', 'Mistral', 'GPT-2', 'T5']


def new_model(family, name=None):
    """A model that attends to some keys more than to others."""
    model = blurred_model(family, name)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and any(part in name for part in (
                    'query', 'q_proj', 'k_proj', 'c_attn', 'SelfAttention.q')):
                parameter.mul_(6)
    return model


def weights_of(model, batch, is_token):
    """Return the weights of each layer of each sequence, ``[heads, length, length]``, as eager
    attention gives them."""
    model.set_attn_implementation('eager')
    layers = model(**batch, output_attentions=True).attentions
    return [[weight[row][:, at][..., at].detach().double().numpy() for weight in layers]
            for row, at in enumerate(is_token)]


def distances(weight):
    """The share of one head's weight by distance, in bins 0, 1, 2-3, 4-7, ..., before and after."""
    query, key = np.indices(weight.shape)
    bins = np.frexp(np.abs(query - key))[1]
    return [np.bincount(bins[side], weight[side], minlength=6) / len(weight)
            for side in (key <= query, key > query)]


def expected_of(weight, is_special):
    length = len(weight)
    ordered = np.sort(weight, axis=1)[:, ::-1].cumsum(axis=1)
    singular = np.linalg.svd(weight, compute_uv=False)
    singular /= singular.sum()
    special = is_special.copy()
    special[0] = False
    first, others = weight[:, 0].mean(), weight[:, special].sum(1).mean()
    log, whole = np.log(np.where(weight > 0, weight, 1)), weight.sum(axis=1)
    return {
        'before': distances(weight)[0], 'after': distances(weight)[1],
        'kinds': [first, others, whole.mean() - first - others],
        'edges': [(1 + (ordered < share * whole[:, None]).sum(axis=1)).mean()
                  for share in (.9, .95, .99)],
        'keys': (weight > 0).sum() / length, 'entropy': -(weight * log).sum() / length,
        'rank': np.exp(-(singular * np.log(np.maximum(singular, 1e-300))).sum())}


@pytest.mark.parametrize('family, padding', [
    *itertools.product(['BERT'], PADDINGS),
    *itertools.product(['Llama', 'Mistral', 'GPT-2', 'T5', *BEYOND_SDPA], ['left'])])
def test_it_equals_what_output_attentions_gives(family, padding, monkeypatch):
    monkeypatch.setattr(attending, 'BLOCK', 7 * 4 * LENGTH)  # several blocks of a sequence
    is_token = PADDINGS[padding]
    if family in BEYOND_SDPA:  # their eager attention has sinks or a softcap
        model, batch = beyond_sdpa(family), {'input_ids': TOKENS, 'attention_mask': is_token.long()}
    else:
        model, batch = new_model(family), inputs(family, is_token, is_dense=False)
    is_causal = family in BEYOND_SDPA or FAMILIES[family][2]
    weights = weights_of(model, batch | ({'use_cache': False} if is_causal else {}), is_token)
    got = profile(model, [batch], special=SPECIAL)
    assert got.lengths.tolist() == is_token.sum(1).tolist() and len(got.layer) == 2 * 4
    for row, (layer, head) in enumerate(itertools.product(range(2), range(4))):
        assert (got.layer[row], got.head[row]) == (layer, head)
        parts = []
        for sequence, at in enumerate(is_token):
            is_special = np.isin(TOKENS[sequence][at].numpy(), SPECIAL)
            parts.append(expected_of(weights[sequence][layer][head], is_special))
        for name in parts[0]:
            # A mean over rows; that of ranks is over sequences.
            share = None if name == 'rank' else got.lengths
            expected = np.average([part[name] for part in parts], axis=0, weights=share)
            np.testing.assert_allclose(getattr(got, name)[row], expected, atol=1e-6, rtol=1e-6,
                                       err_msg=name)


@pytest.mark.parametrize('family', KINDS)
def test_the_model_returns_the_same_and_is_left_as_it_was(family):
    model, is_token = new_model(family).train(), PADDINGS['left']
    batch, outputs = inputs(family, is_token, is_dense=False), []
    before = model.eval()(**batch).last_hidden_state
    model.train().register_forward_hook(lambda module, args, out: outputs.append(
        (module.training, out.last_hidden_state)))
    profile(model, [batch])
    (is_training, hidden), = outputs
    assert not is_training and model.training
    torch.testing.assert_close(hidden[is_token], before[is_token], atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == 'sdpa'
    assert not any(hasattr(module, 'graph_attachment') for module in model.modules())


def test_change_from_input_to_input_is_that_of_the_largest_weights():
    model = new_model('BERT')
    weights = weights_of(model, {'input_ids': TOKENS}, PADDINGS['none'])
    got = profile(model, [TOKENS])
    for row, (layer, head) in enumerate(itertools.product(range(2), range(4))):
        held = []
        for sequence in range(BATCH):
            weight = weights[sequence][layer][head]
            place = np.argsort(-weight, axis=1)
            count = 1 + (np.take_along_axis(weight, place, 1).cumsum(1) < .95).sum(1)
            held.append([set(each[:last]) for each, last in zip(place, count)])
        overlaps = [len(one & other) / len(one | other) for one, other in zip(*held)]
        assert got.same_edges[row] == pytest.approx(np.mean(overlaps))
        one, other = (np.concatenate(distances(weights[sequence][layer][head]))
                      for sequence in range(BATCH))
        assert got.same_distances[row] == pytest.approx(np.minimum(one, other).sum(), abs=1e-6)


@pytest.mark.parametrize('pattern', ['Full()', 'SlidingWindow(3)'])
def test_errors_are_those_of_attached_models_with_sinks(pattern):
    """A sink keeps its part of the softmax along every pattern."""
    model, outputs = beyond_sdpa('gpt-oss').eval(), []
    project = model.base_model.layers[0].self_attn.o_proj
    project.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0]))
    model(TOKENS)
    with attached(model, pattern, layers=[0]):
        model(TOKENS)
    dense, sparse = (out.detach().double().view(BATCH, LENGTH, 4, -1) for out in outputs)
    expected = (sparse - dense).square().sum((0, 1, 3)) / dense.square().sum((0, 1, 3))
    found = profile(model, [TOKENS], patterns=[pattern]).pattern_error[:4, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_encoder_and_decoder_have_special_tokens_of_their_own():
    model = new_model('T5', DECODERS['T5'])
    decoded = torch.full((BATCH, 40), 4)
    got = profile(model, [{'input_ids': TOKENS, 'decoder_input_ids': decoded}], special=[4])
    is_decoder = np.array(['decoder' in got.layers[layer] for layer in got.layer])
    assert len(got.layers) == 4
    np.testing.assert_allclose(got.kinds[is_decoder, 2], 0, atol=1e-6)
    np.testing.assert_allclose((got.before + got.after).sum(axis=1), 1, atol=1e-6)
    assert got.bounds.tolist() == [0, 1, 2, 4, 8, 16, 32]
    assert (got.kinds[~is_decoder, 2] > .5).all()


def test_an_attached_model_is_profiled_with_full_attention():
    model = new_model('BERT')
    expected = profile(model, [TOKENS])
    table = str(attachment(attach(model, SlidingWindow(1))))
    np.testing.assert_allclose(profile(model, [TOKENS]).entropy, expected.entropy, atol=1e-6)
    assert str(attachment(model)) == table


@pytest.mark.parametrize('family', ['BERT', 'GPT-2'])
def test_keys_and_edges_are_counted_where_weights_underflow(family):
    model = new_model(family)
    expected = profile(model, [TOKENS], patterns=['SlidingWindow(2)'])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ('query', 'key', 'c_attn')):
                parameter.mul_(1000)
    sharp = profile(model, [TOKENS], patterns=['SlidingWindow(2)'])
    np.testing.assert_allclose(sharp.keys, expected.keys)
    np.testing.assert_allclose(sharp.pattern_edges, expected.pattern_edges)


def test_weights_of_a_model_of_16_bits_are_computed_in_32():
    model = new_model('Llama')
    expected = profile(model, [TOKENS])
    got = profile(model.bfloat16(), [TOKENS])
    np.testing.assert_allclose(got.entropy, expected.entropy, rtol=.02)
    np.testing.assert_allclose((got.before + got.after).sum(axis=1), 1, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('patterns', [profiling.WINDOWS, ['8 keys of 32 clusters']],
                         ids=['windows', 'clusters'])
def test_no_weights_of_all_pairs_are_formed(patterns, monkeypatch):
    """At 768 tokens they would have half a million entries a head."""
    monkeypatch.setattr(attending, 'BLOCK', 2**18)
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(largest, out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    config = transformers.BertConfig(**SIZES | {'max_position_embeddings': 768,
                                                'num_hidden_layers': 1})
    model = transformers.BertModel(config).eval()
    with Sizes():
        profile(model, [torch.randint(50, (1, 768))] * 2, sample=32, patterns=patterns)
    assert largest < 768 * 768


def test_it_is_saved_and_loaded(tmp_path):
    model = new_model('BERT')
    measured = profile(model, [TOKENS])
    measured.save(tmp_path / 'profile.npz')
    loaded = Profile.load(tmp_path / 'profile.npz')
    assert str(loaded.as_table()) == str(measured.as_table())
    assert loaded.layers == measured.layers and repr(loaded) == repr(measured)
    loaded.check(model)
    with pytest.raises(ValueError, match="'profile' must.*this model.*config 'BertConfig'"):
        loaded.check(new_model('Llama'))
    other = transformers.BertModel(transformers.BertConfig(**SIZES | {'hidden_size': 64}))
    with pytest.raises(ValueError, match="'profile' must be a profile of this model .* with hash"):
        loaded.check(other)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / 'profile.npz'
    profile(new_model('BERT'), [TOKENS]).save(path)
    content = path.read_bytes()
    for damaged in (content[:-100], content[:50] + b'x' * 90 + content[140:], b''):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="'path' must be a file that Profile.save wrote"):
            Profile.load(path)
    np.savez(path, format=7)
    with pytest.raises(ValueError, match='format 7, not 4; profile the model again'):
        Profile.load(path)
    with pytest.raises(FileNotFoundError, match='which does not exist'):
        Profile.load(tmp_path / 'none.npz')


@pytest.mark.slow
def test_a_picture_shows_the_edges_of_each_head_and_the_distances_of_each_layer():
    from graphattn import draw
    measured = profile(new_model('BERT'), [TOKENS])
    left, right, *_ = draw.profile(measured, share=90).axes
    image, = left.get_images()
    np.testing.assert_array_equal(image.get_array(), measured.edges[:, 0].reshape(2, 4))
    for layer, line in enumerate(right.get_lines()):
        x, y = line.get_data()
        assert x[0] == 1 and x[-1] >= LENGTH and y[-1] == pytest.approx(1)
        assert y[0] == pytest.approx(measured.before[measured.layer == layer, 0].mean())
    with pytest.raises(ValueError, match="'share' must be 90, 95 or 99"):
        draw.profile(measured, share=50)


@pytest.mark.slow
def test_a_report_has_a_row_for_each_head(tmp_path):
    from analysis.commands import main

    profile(new_model('BERT'), [TOKENS]).save(tmp_path / 'bert.npz')
    main(['report', '--profile', str(tmp_path / 'bert.npz'), '--out', str(tmp_path / 'page.html')])
    page = (tmp_path / 'page.html').read_text()
    assert page.count('<th scope="row">') == 8 + 1 and 'edges 95' in page  # and a mean
    assert 'encoder.layer.1.attention.self' in page
    assert page.count('<img') == 1 and 'bert.npz' in page


ONE = TOKENS[0].tolist()
BATCHES = {
    'ids': TOKENS, 'ids of a row': TOKENS[0], 'ids of several batches': TOKENS[:, None],
    'array': TOKENS.numpy(), 'list': [TOKENS], 'list of rows': list(TOKENS), 'numbers': ONE,
    'rows of numbers': [ONE, TOKENS[1].tolist()], 'dict': {'input_ids': TOKENS},
    'encoding': transformers.BatchEncoding({'input_ids': TOKENS,
                                            'attention_mask': torch.ones_like(TOKENS)}),
    'encoding of numbers': transformers.BatchEncoding({'input_ids': ONE,
                                                       'attention_mask': [1] * LENGTH}),
    'loader': torch.utils.data.DataLoader(TOKENS),
    'loader of a data set': torch.utils.data.DataLoader(torch.utils.data.TensorDataset(TOKENS)),
}


@pytest.mark.parametrize('form', BATCHES)
def test_inputs_may_have_any_usual_form(form):
    model = new_model('BERT')
    got = profile(model, BATCHES[form], patterns=['Full()'])
    expected = profile(model, [TOKENS[:len(got.lengths)]], patterns=['Full()'])
    np.testing.assert_allclose(got.before, expected.before, rtol=1e-6)


@pytest.mark.parametrize('call, error, message', [
    (lambda: profile(longformer(), [TOKENS]), ValueError, "'model' must.*attention that"),
    (lambda: profile(new_model('BERT'), []), ValueError, "'batches' must.*least.*input.*got none"),
    (lambda: profile(new_model('BERT'), ['a text']), TypeError, "'batches' must.*tensors.*got str"),
    (lambda: profile(new_model('BERT'), [TOKENS / 2]), TypeError, "'batches' must.*got torch.fl"),
    (lambda: profile(new_model('BERT'), None), TypeError, "'batches' must be .*got NoneType"),
    (lambda: profile(new_model('BERT'), {'input_ids': [[3, 4], [5]]}), TypeError,
     "'batches' must .* rows of equal lengths .*padding=True"),
    (lambda: profile(new_model('BERT'), [TOKENS], sample=1), ValueError, "'sample' must be at"),
    (lambda: profile(new_model('BERT'), [TOKENS], special='[SEP]'), TypeError, "'special' must be"),
    (lambda: profile(new_model('BERT'), [TOKENS], special=[-1]), ValueError, "'special' must not"),
    (lambda: profile(new_model('DeepSeek-V3.2'), [TOKENS]), ValueError,
     "'model' must attend to all keys"),
    (lambda: profile(new_model('BERT'), [TOKENS]).save('profile.pkl'), ValueError,
     "'path' must end with .npz .got 'profile.pkl'"),
])
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1


# Candidates ##########################################################################


def test_listed_edges_are_candidates_like_other_patterns():
    edges = EdgeList(LENGTH, torch.stack([torch.zeros(LENGTH, dtype=torch.long),
                                          torch.arange(LENGTH)]))
    found = profile(new_model('BERT'), [TOKENS], patterns=[edges, '2 keys of 3 clusters'])
    assert found.pattern(2, 0) == edges
    np.testing.assert_allclose(found.pattern_share[:, 0], found.kinds[:, 0], atol=1e-6)


@pytest.mark.slow
def test_every_set_of_candidates_is_measured():
    found = profile(new_model('Llama'), [TOKENS],
                    patterns=[name for names in profiling.CANDIDATES.values() for name in names])
    assert np.isfinite(found.pattern_error).all() and (found.pattern_edges >= 1).all()
    for number, name in enumerate(found.patterns):
        if 'clusters' in name:
            assert repr(found.pattern(0, number)) == name
        else:
            graph = found.pattern(0, number).build(LENGTH, crop=True, seed=0)
            assert graph.num_edges >= LENGTH, name


@pytest.mark.parametrize('given, error, match', [
    ('2 own values', ValueError, "'expression' must be an expression"),
    ('2 keys of 3 clusters | Nothing()', ValueError, 'unknown pattern'),
    (3, TypeError, "'patterns' must be")])
def test_what_is_no_candidate_is_refused(given, error, match):
    with pytest.raises(error, match=match):
        profile(new_model('BERT'), [TOKENS], patterns=[given])
