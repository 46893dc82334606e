"""Certificates: reach by matrix powers, measures by dense linear algebra, and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.certificate import MAX_PATH_TOKENS, certificate, graphs_of_heads, read_ids
from analysis.commands import COMMANDS
from analysis.expander import expander
from analysis.hamiltonian import HamiltonianPath
from analysis.spectrum import spectrum
from graphattn import BipartiteGraph
from graphattn.hugging_face import attach, detach, load_attached, save_attached
from graphattn.patterns import Causal, Full, GlobalTokens, RandomKeys, SlidingWindow
from graphattn.sources import BlockModelSource, ContentClusterSource, PatternSource
from tests.clusters import random_clusters

main = COMMANDS['certificate']

LAYERS = [[SlidingWindow(1).build(12), RandomKeys(1).build(12, seed=3)],
          [GlobalTokens(1).build(12), SlidingWindow(0).build(12)]]
CAUSAL = [[(SlidingWindow(1) & Causal()).build(12)] * 2,
          [(SlidingWindow(4, dilation=2) & Causal()).build(12)] * 2]


@pytest.mark.parametrize('layers, pairs', [(LAYERS, 144), (CAUSAL, 78)], ids=['any', 'causal'])
def test_reach_is_that_of_products_of_masks(layers, pairs):
    found, reach = certificate(layers), np.eye(12, dtype=bool)
    for heads in layers:
        step = np.eye(12, dtype=bool)
        for graph in heads:
            step |= graph.to_mask().numpy()
        reach = step.astype(int) @ reach > 0
    assert found.reached == pytest.approx(reach.sum() / pairs)
    assert (found.layers_to_reach_all is None) == (reach.sum() < pairs)
    assert found.density == pytest.approx(np.mean(found.density_of_head))
    assert found.num_layers == 2 and found.num_heads == 4


def test_spectrum_expander_and_certificate_have_one_gap():
    graph = SlidingWindow(2).build(20) | RandomKeys(1).build(20, seed=0)
    gap, = certificate([[graph]]).gap_of_head
    assert gap == pytest.approx(spectrum(graph).lambda_2, abs=1e-12)
    assert gap == pytest.approx(expander(graph).lambda_2, abs=1e-12)


def shuffled(graph):
    """Return a graph whose tokens are numbered at random."""
    order = torch.randperm(graph.num_queries, generator=torch.Generator().manual_seed(0))
    return BipartiteGraph.from_edge_index(order[torch.stack([graph.key, graph.query]).long()],
                                          graph.num_queries)


@pytest.mark.parametrize('layers, self_loops, path, with_path, universal', [
    ([[SlidingWindow(1).build(9)]], True, 'yes', 1, 'yes'),  # in eight layers that take turns
    ([[SlidingWindow(4).build(9)]] * 2, True, 'yes', 2, 'yes'),
    ([[SlidingWindow(0).build(9)], [Full().build(9)]], True, 'yes', 1, 'yes'),
    ([[(Full() - SlidingWindow(0)).build(9)]] * 2, False, 'yes', 2, 'no'),
    ([[(Full() - SlidingWindow(0)).build(9), SlidingWindow(0).build(9)]], True, 'yes', 1, 'yes'),
    ([[(GlobalTokens(1) | SlidingWindow(0)).build(9)]] * 2, True, 'no', 0, 'no'),  # a star
    ([[Causal().build(9)]] * 2, True, 'yes', 2, 'no'),
    ([[shuffled((SlidingWindow(1) | GlobalTokens(1)).build(200))]] * 2, True, 'yes', 2, 'yes')])
def test_conditions_of_universal_approximation(layers, self_loops, path, with_path, universal):
    found = certificate(layers)
    assert (found.self_loops, found.hamiltonian_path, found.layers_with_path, found.universal) == (
        self_loops, path, with_path, universal)


def test_a_path_among_many_tokens_is_not_decided(monkeypatch):
    assert MAX_PATH_TOKENS == 1024
    monkeypatch.setattr('analysis.certificate.MAX_PATH_TOKENS', 8)
    layers = [[Full().build(9)]]
    found = certificate(layers)
    assert found.hamiltonian_path == found.universal == 'not decided'
    assert found.layers_with_path == 0 and 'not decided' in str(found)
    assert certificate([[(Full() - SlidingWindow(0)).build(9)]]).universal == 'no'


def test_a_search_without_an_answer_is_not_decided(monkeypatch):
    limits = []

    def searched(graph, time_limit):
        limits.append(time_limit)
        return HamiltonianPath(None, 'CP-SAT', 'no answer', time_limit, None)

    monkeypatch.setattr('analysis.certificate.hamiltonian_path', searched)
    found = certificate([[Full().build(9)]] * 4, time_limit=8.)
    assert found.hamiltonian_path == 'not decided' and limits == [4, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="'time_limit' must be positive"):
        certificate([[Full().build(9)]], time_limit=0.)


@pytest.mark.parametrize('layers, match', [
    ([], "'layers' must"), ([[]], "'layers' must"),
    ([[Full().build(3)], [Full().build(4)]], "'layers' .*got 3,"),
    ([[Full().build(3, 4)]], "'graph' must")])
def test_what_is_refused(layers, match):
    with pytest.raises(ValueError, match=match):
        certificate(layers)


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a tiny GPT-2 whose layers attend along different patterns."""
    transformers = pytest.importorskip('transformers')
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=20, n_positions=32, n_embd=8, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=1))
    along = PatternSource(['SlidingWindow(1)', 'GlobalTokens(1)'])
    save_attached(attach(model, [along, 'SlidingWindow(2)']), tmp_path / 'sparse')
    return tmp_path / 'sparse'


@pytest.mark.slow
def test_a_saved_model_is_certified(saved, tmp_path, capsys):
    layers = graphs_of_heads(saved, 20)
    assert [len(heads) for heads in layers] == [2, 1]
    assert layers[1][0] == (SlidingWindow(2) & Causal()).build(20)
    main([str(saved), '--n', '20', '--out', str(tmp_path / 'out')])
    assert 'layers to reach all' in capsys.readouterr().out
    found, = json.loads((tmp_path / 'out/certificate.json').read_text())['sparse']
    assert found['reached'] == certificate(layers).reached and len(found['gap_of_head']) == 3
    assert (tmp_path / 'out/certificate.png').stat().st_size > 10_000


@pytest.mark.slow
def test_folders_of_other_things_are_refused(saved, tmp_path, error_line, capsys):
    assert "'folder' must be a folder that save_attached" in error_line(main, [str(tmp_path)])
    model = load_attached(saved)
    detach(model)
    attach(model, BlockModelSource(2, 4, 2))
    save_attached(model, tmp_path / 'sampled')
    with pytest.raises(SystemExit):
        main([str(tmp_path / 'sampled')])
    assert "'tokens' must be ids of at least 512" in capsys.readouterr().err.split('\n')[-2]


@pytest.mark.slow
def test_graphs_that_depend_on_tokens_are_those_of_the_given_ones(saved, tmp_path):
    model = load_attached(saved)
    detach(model)
    clusters = random_clusters(4)
    clusters = replace(clusters, query=.05 * clusters.query, key=.05 * clusters.key)
    attach(model, [ContentClusterSource(['SlidingWindow(2)', clusters], 4), 'SlidingWindow(1)'])
    save_attached(model, tmp_path / 'clustered')
    ids = torch.randint(3, 20, (3, 24), generator=torch.Generator().manual_seed(0)).numpy()
    ids[0, 15:] = -1
    np.save(tmp_path / 'ids.npy', ids)
    layers = graphs_of_heads(model, 20, torch.from_numpy(ids[1]))
    first, second = layers[0]
    assert first == (SlidingWindow(2) & Causal()).build(20)
    assert second.num_edges > 40 and bool((second.key <= second.query).all())
    assert len(layers[1]) == 1
    other, = graphs_of_heads(model, 20, torch.from_numpy(ids[2]))[0][1:]
    assert other != second
    main([str(tmp_path / 'clustered'), '--n', '20', '--tokens', str(tmp_path / 'ids.npy'),
          '--out', str(tmp_path / 'out')])
    found, = json.loads((tmp_path / 'out/certificate.json').read_text())['clustered']
    assert found['density_of_head'] == certificate(layers).density_of_head.tolist()
    with pytest.raises(ValueError, match="'tokens' must have a sequence of 30 tokens .got at most"):
        read_ids(tmp_path / 'ids.npy', 30)
    with pytest.raises(ValueError, match="'tokens' must be an .npy file"):
        read_ids(tmp_path / 'none.npy', 3)


@pytest.mark.slow
def test_the_masks_of_a_model_hold():
    """Also of one without a head that generates, or with a window of its own."""
    transformers = pytest.importorskip('transformers')
    sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=2, intermediate_size=8, head_dim=4)
    bert = transformers.BertModel(transformers.BertConfig(**{
        name: size for name, size in sizes.items() if name not in ('num_key_value_heads',
                                                                   'head_dim')}))
    llama = transformers.LlamaModel(transformers.LlamaConfig(**sizes))
    mistral = transformers.MistralModel(transformers.MistralConfig(**sizes, sliding_window=3))
    for model, allowed in ((bert, Full()), (llama, Causal()),
                           (mistral, SlidingWindow(2, causal=True))):
        (graph,), = graphs_of_heads(attach(model, 'Full()'), 9)
        assert graph == allowed.build(9), type(model)
    t5 = transformers.T5Model(transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.warns(UserWarning, match='cross-attention'):
        attach(t5, 'SlidingWindow(2)')
    with pytest.raises(ValueError, match="'model' must be an encoder or a decoder .got T5Model"):
        graphs_of_heads(t5, 9)
    (graph,), = graphs_of_heads(t5.get_encoder(), 9)
    assert graph == SlidingWindow(2).build(9)
