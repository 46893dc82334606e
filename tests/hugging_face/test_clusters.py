"""Clusters of each head are found on some inputs, measured on others, and saved with a model."""

import numpy as np
import pytest
import torch

from graphattn.hugging_face import (
    Profile,
    attach,
    attached,
    attachment,
    detach,
    fit,
    load_attached,
    profile,
    save_attached,
)
from graphattn.hugging_face.clusters import ClusterPoints, ClusterSums
from graphattn.sources import ContentClusterSource, HeadClusters, PatternSource
from tests.hugging_face.test_profile import new_model
from tests.test_hugging_face import LENGTH, TOKENS

FAMILIES = ['BERT', 'Llama', 'GPT-2']
CLUSTERS = ['4 keys of 6 clusters', '8 keys of 6 clusters | SlidingWindow(1)',
            '6 keys of 3 clusters']
OPTIONS = {'BERT': {}, 'Llama': {'use_cache': False}, 'GPT-2': {'use_cache': False}}


def outputs(model, tokens, along=None, head=0):
    """Return the outputs of a head of BERT's first layer ``[tokens, channels]``, and the weights of
    all keys of the heads."""
    layer, seen = model.encoder.layer[0].attention.self, []
    hook = layer.register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        if along is None:
            model(tokens)
        else:
            with attached(model, along, layers=[0], heads=[head]):
                model(tokens, output_attentions=True)
    hook.remove()
    return seen[0][0].unflatten(-1, (4, -1))[0, :, head].double(), seen[0][1]


# Measuring ###########################################################################


@pytest.mark.slow
def test_each_half_of_the_inputs_measures_the_clusters_of_the_other():
    model, inputs = new_model('BERT'), TOKENS.split(1)
    found = profile(model, inputs, patterns=CLUSTERS)
    apart = [profile(model, [each], patterns=CLUSTERS) for each in inputs]
    for row in range(4):
        for number in range(len(CLUSTERS)):
            error, norm, edges = 0., 0., 0.
            for each, other in zip(inputs, apart[::-1]):
                dense, _ = outputs(model, each, head=row)
                sparse, weight = outputs(model, each, other.pattern(row, number), row)
                error += float((dense - sparse).square().sum())
                norm += float(dense.square().sum())
                edges += int((weight[0, row] > 0).sum()) / LENGTH / 2
            assert found.pattern_error[row, number] == pytest.approx(error / norm, rel=1e-4)
            assert found.pattern_edges[row, number] == pytest.approx(edges)


@pytest.mark.parametrize('family', FAMILIES)
def test_pairs_of_clusters_are_joined_until_queries_have_their_keys(family):
    """The only input is measured along its own clusters."""
    found = profile(new_model(family), [TOKENS[:1]], patterns=['4 keys of 6 clusters'])
    edges = found.pattern_edges[:, 0]
    assert (edges <= 4 + 1e-6).all() and edges.mean() > 3
    denser = profile(new_model(family), [TOKENS[:1]], patterns=['999 keys of 6 clusters'])
    np.testing.assert_allclose(denser.pattern_edges[:, 0], found.keys, rtol=1e-6)
    assert denser.pattern_error.max() < 1e-9
    shares = found.pattern_share[:, 0], found.pattern_edges[:, 0] / found.keys
    assert (shares[0] > shares[1]).all()  # more weight than the same number of average pairs


@pytest.mark.parametrize('family', ['BERT', 'Llama'])
def test_an_attached_model_has_the_edges_that_were_measured(family):
    model = new_model(family)
    found = profile(model, [TOKENS[:1]], patterns=CLUSTERS[1:2])
    attach(model, fit(found, 1.).along())
    with torch.no_grad():
        weight = model(TOKENS[:1], output_attentions=True, **OPTIONS[family]).attentions[0]
    edges = (weight[0] > 0).sum((1, 2)) / LENGTH
    assert edges.tolist() == pytest.approx(found.pattern_edges[:4, 0].tolist())


# Finding #############################################################################


def groups(seed, answer, is_causal=False):
    """Return the queries and keys of an input, and their weights. The queries of a group give
    nearly all weight to the keys of the group of its answer."""
    generator = torch.Generator().manual_seed(seed)
    of_query, of_key = torch.randint(4, (2, 40), generator=generator)
    noise = .1 * torch.randn(2, 1, 40, 8, generator=generator)
    points = 12 * torch.eye(4, 8)
    query, key = noise[0] + points[answer[of_query]], noise[1] + points[of_key]
    logit = query @ key.mT * 8**-.5
    if is_causal:
        logit = logit.masked_fill(~torch.ones(40, 40, dtype=torch.bool).tril(), -torch.inf)
    return query, key, logit.softmax(2)


@pytest.mark.parametrize('is_causal', [False, True])
def test_planted_clusters_are_joined_as_planted(is_causal):
    inputs = [groups(seed, torch.tensor([2, 0, 3, 1]), is_causal) for seed in range(4)]
    points = ClusterPoints([4], seed=0)
    for query, key, _ in inputs:
        points.begin(query, key)
    sums = ClusterSums(points.centroids())
    for query, key, weight in inputs:
        sums.begin(query, key)
        for rows in torch.arange(40).split(7):
            sums.add(rows, weight[:, rows])
    found, keys = sums.clusters()[4], 6 if is_causal else 12  # a quarter of those allowed
    assert ((found.edges <= keys).sum((1, 2)) == 4).all()
    query, key, weight = groups(9, torch.tensor([2, 0, 3, 1]), is_causal)
    mask = found.on(query, key).mask(keys, torch.arange(40))
    has_key = (weight * mask).sum(2) > .99
    assert has_key.float().mean() > .9  # the first queries have no key of their group before them
    assert not (found.edges <= 1).any()


# To a model and to files #############################################################


@pytest.mark.parametrize('family', FAMILIES)
def test_a_fit_chooses_them_and_a_saved_model_has_them(family, tmp_path):
    model = new_model(family)
    found = profile(model, [TOKENS], patterns=[*CLUSTERS, 'SlidingWindow(0)'])
    found.save(tmp_path / 'profile.npz')
    chosen = fit(Profile.load(tmp_path / 'profile.npz'), .3)
    assert chosen.patterns == fit(found, .3).patterns
    along = chosen.along()
    for number, name in enumerate(chosen.layers):
        rows = np.flatnonzero(chosen.layer == number)
        has_clusters = any('clusters' in chosen.patterns[row] for row in rows)
        assert type(along[name]) is (ContentClusterSource if has_clusters else PatternSource)
    assert {type(chosen.pattern(row)) for row in chosen.clusters} == {HeadClusters}
    attach(model, along)
    save_attached(model, tmp_path / 'model')
    loaded = load_attached(tmp_path / 'model')
    with torch.no_grad():
        expected = model(TOKENS, **OPTIONS[family]).last_hidden_state
        torch.testing.assert_close(loaded(TOKENS, **OPTIONS[family]).last_hidden_state, expected)
    assert {row['along'] for row in attachment(loaded)} == {
        row['pattern'] for row in chosen.as_table()}


def test_heads_with_clusters_are_attached_one_by_one_and_detached():
    model = new_model('BERT')
    found = profile(model, [TOKENS], patterns=CLUSTERS[:1])
    for head in range(4):
        attach(model, found.pattern(head, 0), layers=[0], heads=[head])
    with torch.no_grad():
        apart = model(TOKENS).last_hidden_state
    source = ContentClusterSource([found.pattern(head, 0) for head in range(4)],
                                  int(found.channels[0]))
    again = new_model('BERT')
    with torch.no_grad(), attached(again, source, layers=[0]):
        torch.testing.assert_close(again(TOKENS).last_hidden_state, apart)
    with pytest.raises(ValueError, match="'along' must be one pattern, or a sequence"):
        attach(again, source.causal(), layers=[0], heads=[0, 1, 2, 3])


@pytest.mark.parametrize('is_padded', [False, True])
@pytest.mark.parametrize('family', ['GPT-2', 'Llama'])
def test_a_sequence_is_generated_along_them_as_without_a_cache(family, is_padded):
    torch.manual_seed(0)
    model = new_model(family, {'GPT-2': 'GPT2LMHeadModel', 'Llama': 'LlamaForCausalLM'}[family])
    found = profile(model, [TOKENS], patterns=['3 keys of 6 clusters | SlidingWindow(1)'])
    attach(model, fit(found, 1.).along())
    prompt = TOKENS[:, :10]
    is_token = torch.arange(10) >= torch.tensor([[4 * is_padded], [0]])
    options = dict(attention_mask=is_token, do_sample=False, max_new_tokens=8, eos_token_id=None,
                   pad_token_id=0, output_logits=True, return_dict_in_generate=True)
    cached, whole = (model.generate(prompt, use_cache=use_cache, **options)
                     for use_cache in (True, False))
    assert torch.equal(cached.sequences, whole.sequences)
    torch.testing.assert_close(cached.logits, whole.logits)
    dense = detach(model).generate(prompt, **options)
    assert (torch.stack(dense.logits) - torch.stack(cached.logits)).abs().max() > 1e-3


def test_a_profile_whose_clusters_have_other_shapes_is_refused(tmp_path):
    found = profile(new_model('BERT'), [TOKENS], patterns=CLUSTERS)
    assert found.clusters.tolist() == [3, 6] and found.cluster_query.shape[:2] == (8, 9)
    assert found.cluster_edges.shape == (8, 9 + 36)
    vars(found)['cluster_key'] = found.cluster_key[:, 1:]
    found.save(tmp_path / 'profile.npz')
    with pytest.raises(ValueError, match="'cluster_key' must be an array of shape"):
        Profile.load(tmp_path / 'profile.npz')
