"""The distribution of drawn masks, what their gradient estimates, and how they are frozen."""

import itertools

import pytest
import torch
from scipy import integrate, special, stats

from graphattn import BipartiteGraph
from graphattn.functional import pair_attention
from graphattn.graphs.pair_mask import PairMask
from graphattn.patterns import Mask
from graphattn.sources import LearnedMaskSource, PatternSource
from graphattn.sources.mask_graph import MaskGraph

PTR = torch.tensor([0, 8, 11, 11, 12, 17])
ALPHA = [-3., -0.5, 0., 1.2]
TEMPERATURES = [0.1, 1., 5.]


def no_tokens(heads: int) -> torch.Tensor:
    return torch.empty(0, heads, 1)


def draw(source, generator=None) -> PairMask | MaskGraph:
    tokens = no_tokens(source.heads)
    return source(tokens, tokens, torch.tensor([0]), generator=generator)


def dense(source, length: int) -> torch.Tensor:
    """A draw for one sequence, ``[heads, length, length]``."""
    tokens = torch.zeros(length, source.heads, 1)
    mask = source(tokens, tokens, torch.tensor([0, length]))
    if isinstance(mask, PairMask):
        return mask.dense(length).detach()
    return torch.stack([segment.to_mask().float() for segment in _heads_of(mask, length)])


def _heads_of(graph: MaskGraph, length: int) -> list[BipartiteGraph]:
    edges = graph.edge_index.as_tensor().split(graph.edges_per_segment().tolist(), dim=1)
    return [BipartiteGraph(part - head * length, length) for head, part in enumerate(edges)]


def replicas(heads: int, **options) -> LearnedMaskSource:
    """A source whose heads are independent draws of one mask of four values."""
    source = LearnedMaskSource(heads, 2, mode='dam_unstructured', **options).double()
    with torch.no_grad():
        source.logit.copy_(torch.tensor(ALPHA).expand(heads, 4))
    return source


@pytest.mark.parametrize('temperature', TEMPERATURES)
def test_a_value_is_on_with_its_probability_at_every_temperature(temperature):
    source = replicas(20_000, temperature=temperature)
    values = draw(source, torch.Generator().manual_seed(0)).values
    assert set(values.unique().tolist()) == {0., 1.}
    for alpha, num_on in zip(ALPHA, values.sum(0).tolist()):
        assert stats.binomtest(int(num_on), 20_000, special.expit(alpha)).pvalue > 1e-4


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_draws_what_single_precision_does(dtype):
    source = LearnedMaskSource(2, 64, mode='dam_unstructured')
    with torch.no_grad():
        source.logit.fill_(-7.)
    exact, values = [draw(source.to(kind), torch.Generator().manual_seed(0)).values
                     for kind in (torch.float, dtype)]
    assert values.dtype == dtype and torch.equal(values.float(), exact)
    assert stats.binomtest(int(values.sum()), values.numel(), special.expit(-7.)).pvalue > 1e-4


def test_two_gumbel_noises_are_one_logistic_noise():
    """Soft draws follow sigmoid((alpha + G1 - G2) / tau) of Sec. 4.1."""
    values = draw(replicas(5000, hard=False, temperature=0.7),
                  torch.Generator().manual_seed(0)).values.detach()
    gumbel = stats.gumbel_r.rvs(size=(2, 4, 5000), random_state=0)
    for alpha, ours, noise in zip(ALPHA, values.t().numpy(), (gumbel[0] - gumbel[1])):
        theirs = special.expit((alpha + noise) / 0.7)
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-4


# Any function of four bits is a polynomial that is linear in each of them.
SUBSETS = [subset for size in range(5) for subset in itertools.combinations(range(4), size)]
WEIGHTS = torch.linspace(-1, 2, len(SUBSETS), dtype=torch.double).roll(5)


def polynomial(values: torch.Tensor) -> torch.Tensor:
    """One loss for each row of four values."""
    terms = [values[:, list(subset)].prod(dim=1) for subset in SUBSETS]
    return torch.stack(terms, dim=1) @ WEIGHTS


def exact_mean(alpha: torch.Tensor) -> torch.Tensor:
    masks = torch.tensor(list(itertools.product([0., 1.], repeat=4)), dtype=torch.double)
    prob = alpha.sigmoid()
    return torch.where(masks == 1, prob, 1 - prob).prod(dim=1) @ polynomial(masks)


def slope_of_the_draws(alpha: float, temperature: float) -> float:
    """The mean derivative of sigmoid((alpha + noise) / temperature), by quadrature."""
    def integrand(noise):
        soft = special.expit((alpha + noise) / temperature)
        on = special.expit(noise)
        return soft * (1 - soft) / temperature * on * (1 - on)
    return integrate.quad(integrand, -40, 40, points=[-alpha], limit=200)[0]


@pytest.mark.slow
@pytest.mark.parametrize('temperature', TEMPERATURES)
def test_expectation_of_the_straight_through_gradient(temperature):
    """The true gradient, but for the density of the noise that the docstring names."""
    source = replicas(100_000, temperature=temperature)
    loss = polynomial(draw(source, torch.Generator().manual_seed(0)).values)
    per_draw, = torch.autograd.grad(loss.sum(), source.logit)
    alpha = torch.tensor(ALPHA, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(exact_mean, alpha)  # against finite differences
    exact, = torch.autograd.grad(exact_mean(alpha), alpha)
    prob = alpha.detach().sigmoid()
    ratio = torch.tensor([slope_of_the_draws(a, temperature) for a in ALPHA]) / (prob * (1 - prob))
    error = per_draw.std(dim=0) / 100_000**0.5
    assert float(((per_draw.mean(0) - exact * ratio) / error).abs().max()) < 5
    if temperature == 0.1:
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=0.02, rtol=0)
    else:  # the bias would not pass for noise
        assert float(((per_draw.mean(0) - exact) / error).abs().max()) > 20


@pytest.mark.parametrize('options', [dict(mode='soft'), dict(hard=False, temperature=0.7),
                                     dict(mode='dam_unstructured', hard=False),
                                     dict(mode='soft', border=True)], ids=str)
def test_gradient_of_soft_masks_equals_the_gradient_of_attention(options):
    torch.manual_seed(0)
    source = LearnedMaskSource(2, 8, init_std=1., logit_drop=4., **options).double()
    query, key, value = torch.randn(3, 17, 2, 3, dtype=torch.double)

    def attend(logit, query):
        mask = torch.func.functional_call(source, {'logit': logit}, (query, key, PTR),
                                          {'generator': torch.Generator().manual_seed(1)})
        return pair_attention(query, key, value, PTR, mask), mask.norm()

    logit = source.logit.detach().requires_grad_()
    assert torch.autograd.gradcheck(attend, (logit, query.requires_grad_()), fast_mode=True)


@pytest.mark.parametrize('hard', [True, False])
def test_structured_masks_share_value_and_noise_along_diagonals(hard):
    source = LearnedMaskSource(3, 9, init_std=2., hard=hard)
    mask = dense(source, 9)
    inside = mask[:, 1:-1, 1:-1]
    assert torch.equal(inside[:, 1:, 1:], inside[:, :-1, :-1])
    assert torch.equal(mask, mask.transpose(1, 2))
    for border in (mask[:, 0], mask[:, -1], mask[:, :, 0], mask[:, :, -1]):
        assert bool((border == 1).all())
    assert len(inside[0].unique()) == (2 if hard else 7)


@pytest.mark.parametrize('options', [dict(), dict(mode='dam_unstructured', border=True),
                                     dict(mode='soft', border=True)], ids=str)
def test_each_sequence_has_its_own_border(options):
    source = LearnedMaskSource(2, 9, **options)
    with torch.no_grad():
        source.logit.fill_(-100.)
    for length in (1, 2, 5, 9):
        edge = torch.zeros(length, length, dtype=torch.bool)
        edge[[0, -1]] = edge[:, [0, -1]] = True
        assert torch.equal(dense(source, length) > 1e-9, edge.expand(2, -1, -1))


def test_by_default_only_structured_masks_have_a_border():
    for mode, border in (('dam_structured', True), ('dam_unstructured', False), ('soft', False)):
        assert LearnedMaskSource(1, 4, mode=mode).layout.border == border
        assert LearnedMaskSource(1, 4, mode=mode, border=not border).layout.border != border


def test_each_pass_draws_in_training_only():
    source = LearnedMaskSource(4, 64)
    assert not torch.equal(draw(source).values, draw(source).values)
    tokens = torch.randn(17, 4, 1)
    graph = source.eval()(tokens, tokens, PTR)
    assert isinstance(graph, BipartiteGraph) and graph == source(tokens, tokens, PTR)
    soft = LearnedMaskSource(4, 64, mode='soft')
    for mask in (draw(soft), draw(soft.eval())):
        assert torch.equal(mask.values, soft.logit.sigmoid()) and isinstance(mask, PairMask)


@pytest.mark.parametrize('mode', ['dam_structured', 'dam_unstructured'])
def test_evaluation_thresholds_the_current_logits(mode):
    source = LearnedMaskSource(2, 8, mode=mode).eval()
    tokens = torch.randn(17, 2, 1)
    for _ in range(2):  # the second time after an update
        with torch.no_grad():
            source.logit.normal_()
        values = (source.logit > 0).double()
        expected = MaskGraph(values, source.layout, PTR)
        assert source(tokens, tokens, PTR) == expected
        assert PatternSource(source.freeze())(tokens, tokens, PTR) == expected


@pytest.mark.slow
def test_probability_is_the_relative_frequency_of_samples():
    source = LearnedMaskSource(1, 5, init_std=1.)
    generator = torch.Generator().manual_seed(0)
    masks = [source.freeze('sample', generator=generator)[0] for _ in range(2000)]
    frequency = torch.stack([mask.build(5).to_mask() for mask in masks]).double().mean(0)
    probability = source.probability().detach()[0]
    assert float((frequency - probability).abs().max()) < 5 * 0.5 / 2000**0.5
    assert bool((probability[0] == 1).all()) and source.probability().shape == (1, 5, 5)


@pytest.mark.parametrize('options', [dict(), dict(mode='dam_unstructured'),
                                     dict(mode='soft')], ids=str)
@pytest.mark.parametrize('sparsity', [0., 0.3, 0.5, 0.6])
def test_top_k_keeps_the_most_probable_pairs_and_as_many_as_fit(options, sparsity):
    torch.manual_seed(0)
    source = LearnedMaskSource(3, 10, init_std=1., **options)
    for mask, probability in zip(source.freeze('top-k', sparsity), source.probability().detach()):
        kept = mask.build(10).to_mask()
        most = round((1 - sparsity) * 100)
        assert int(kept.sum()) <= most
        if not bool(kept.all()):
            assert probability[kept].min() >= probability[~kept].max()
            next_best = probability == probability[~kept].max()
            assert int((kept | next_best).sum()) > most


def test_top_k_goes_as_far_as_the_border_allows():
    source = LearnedMaskSource(2, 128)
    reach = 1 - 508 / 128**2  # 96.9 %
    assert all(mask.build(128).num_edges == 508 for mask in source.freeze('top-k', reach))
    with pytest.raises(ValueError, match=r"'sparsity' must be at most 0.9690, .* \(got 0.97\)"):
        source.freeze('top-k', 0.97)
    assert LearnedMaskSource(1, 8, mode='soft').freeze('top-k', 1.)[0].build(8).num_edges == 0


def test_masks_are_frozen_once_for_the_same_logits(monkeypatch):
    made, build = [], Mask.__post_init__
    monkeypatch.setattr(Mask, '__post_init__', lambda self: (made.append(self), build(self)))
    source = LearnedMaskSource(3, 8, mode='dam_unstructured').eval()
    tokens = torch.randn(17, 3, 1)
    graphs = [source(tokens, tokens, PTR) for _ in range(3)]
    assert len(made) == 3 and graphs[0] is graphs[2]
    with torch.no_grad():
        source.logit.mul_(2)  # nothing turns
    assert source(tokens, tokens, PTR) is graphs[0] and len(made) == 3
    source.logit.data[0, 0].mul_(-1)
    assert source(tokens, tokens, PTR) is not graphs[0] and len(made) == 6
