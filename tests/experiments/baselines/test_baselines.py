"""Each baseline against its explicit n x n form, or where it becomes full attention."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.attention import PerformerAttention

from experiments.baselines import (
    Baseline,
    Combiner,
    Linear,
    Linformer,
    Nystromformer,
    Performer,
    Reformer,
    Sinkhorn,
    Synthesizer,
)
from graphattn.layers import GraphAttention
from graphattn.patterns import Full
from graphattn.sources import PatternSource

CHANNELS, HEADS = 12, 3
PTR = torch.tensor([0, 8, 24, 32])


def tokens(num_tokens: int = int(PTR[-1])) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_tokens, CHANNELS, dtype=torch.double, generator=generator)


def made(kind: type[Baseline], **options) -> Baseline:
    torch.manual_seed(0)
    return kind(CHANNELS, HEADS, **options).double()


def full_attention(baseline: Baseline, x: Tensor) -> Tensor:
    """Softmax attention with the baseline's projections."""
    full = GraphAttention(CHANNELS, HEADS, PatternSource(Full())).double()
    full.load_state_dict({name: value for name, value in baseline.state_dict().items()
                          if name in full.state_dict()})
    return full(x, PTR)


def with_weights(baseline: Baseline, x: Tensor, weights) -> Tensor:
    """Attention of one sequence with the weights made of queries and keys ``[heads, n, C]``."""
    key_linear = baseline.lin_query if baseline.lin_key is None else baseline.lin_key
    query, key, value = (linear(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)
                         for linear in (baseline.lin_query, key_linear, baseline.lin_value))
    return baseline.lin_out((weights(query, key) @ value).transpose(0, 1).flatten(1))


def all_sequences(baseline: Baseline, x: Tensor, weights) -> Tensor:
    return torch.cat([with_weights(baseline, part, weights)
                      for part in x.split(PTR.diff().tolist())])


# Linear ##############################################################################


def features(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


@pytest.mark.parametrize('options, total', [
    ({}, lambda product: product.sum(dim=-1, keepdim=True)),
    ({'form': 'released'}, lambda product: math.sqrt(product.size(-1)))])
def test_linear_attention_is_its_explicit_form(options, total):
    def weights(query: Tensor, key: Tensor) -> Tensor:
        product = features(query) @ features(key).mT
        return product / total(product)

    baseline = made(Linear, **options)
    torch.testing.assert_close(baseline(tokens(), PTR), all_sequences(baseline, tokens(), weights))


# Linformer ###########################################################################


def test_linformer_projects_along_the_sequence():
    baseline = made(Linformer, max_length=16, rank=5)
    x = tokens(10)
    query, key, value = (linear(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)
                         for linear in (baseline.lin_query, baseline.lin_key, baseline.lin_value))
    key, value = (torch.einsum('hrn,hnc->hrc', baseline.projection[:, :, :10], y)
                  for y in (key, value))
    out = (query @ key.mT / math.sqrt(CHANNELS / HEADS)).softmax(dim=-1) @ value
    torch.testing.assert_close(baseline(x, torch.tensor([0, 10])),
                               baseline.lin_out(out.transpose(0, 1).flatten(1)))


# Performer ###########################################################################


@pytest.mark.slow
@torch.no_grad()
def test_performer_comes_to_softmax_with_many_features():
    errors = []
    for num_features in (64, 16384):
        baseline = made(Performer, features=num_features)
        expected = full_attention(baseline, tokens())
        errors.append(float((baseline(tokens(), PTR) - expected).norm() / expected.norm()))
    assert errors[1] < 0.02 and errors[1] < errors[0] / 5


def test_performer_survives_logits_that_leave_its_features_no_number():
    baseline = made(Performer, features=32)
    x = (1e3 * tokens()).requires_grad_()
    out = baseline(x, PTR)
    grad, = torch.autograd.grad(out.sum(), x)
    assert out.isfinite().all() and grad.isfinite().all()


def test_performer_with_relu_is_that_of_pyg():
    width = CHANNELS // HEADS
    theirs = PerformerAttention(CHANNELS, HEADS, head_channels=width, qkv_bias=True).double()
    baseline = made(Performer, kernel='relu', features=theirs.fast_attn.num_rows)
    with torch.no_grad():
        baseline.projection.copy_(theirs.fast_attn.projection_matrix)
    pairs = {'q': 'lin_query', 'k': 'lin_key', 'v': 'lin_value', 'attn_out': 'lin_out'}
    for their_name, name in pairs.items():
        getattr(theirs, their_name).load_state_dict(getattr(baseline, name).state_dict())
    expected = [theirs(part[None])[0] for part in tokens().split(PTR.diff().tolist())]
    torch.testing.assert_close(baseline(tokens(), PTR), torch.cat(expected))


# Reformer ############################################################################


def shared_query_weights(query: Tensor, key: Tensor) -> Tensor:
    logit = query @ F.normalize(key, dim=-1).mT / math.sqrt(key.size(-1))
    alone = key.size(1) == 1
    is_self = torch.eye(key.size(1), dtype=torch.bool)
    return logit.masked_fill(is_self & (not alone), -torch.inf).softmax(dim=-1)


@pytest.mark.parametrize('chunk, rounds', [(16, 1), (8, 3), (11, 1)])
def test_reformer_of_one_or_two_chunks_is_full_attention_with_queries_for_keys(chunk, rounds):
    baseline = made(Reformer, rounds=rounds, chunk=chunk)
    expected = all_sequences(baseline, tokens(), shared_query_weights)
    torch.testing.assert_close(baseline(tokens(), PTR), expected)


def test_tokens_of_one_direction_meet_and_others_do_not():
    baseline = made(Reformer, rounds=1, chunk=4)
    with torch.no_grad():
        baseline.lin_query.bias.zero_()
    pair = torch.randn(2, CHANNELS, dtype=torch.double)
    groups = torch.cat([pair[0] + 0 * tokens(4), -pair[0] + 0 * tokens(4),
                        pair[1] + 0 * tokens(4), -pair[1] + 0 * tokens(4)])
    x = groups.requires_grad_()
    out = baseline(x, torch.tensor([0, 16]), generator=torch.Generator().manual_seed(0))
    grad, = torch.autograd.grad(out[0].sum(), x)
    assert grad[1:4].any(dim=1).all()
    assert grad.any(dim=1).sum() <= 8  # its chunk and the one before


# Nystromformer #######################################################################


def test_more_landmarks_than_tokens_are_full_attention():
    baseline = made(Nystromformer, landmarks=20, kernel_size=None)
    torch.testing.assert_close(baseline(tokens(), PTR), full_attention(baseline, tokens()))


def test_landmarks_are_means_of_adjacent_tokens():
    """Its explicit form, for a length that the landmarks do not divide."""
    baseline = made(Nystromformer, landmarks=3, kernel_size=None, iterations=30)
    x = tokens(8)
    share = torch.tensor([[3, 3, 3, 0, 0, 0, 0, 0], [0, 0, 0, 3, 3, 3, 0, 0],
                          [0, 0, 0, 0, 0, 0, 4.5, 4.5]]).double() / 9

    def weights(query: Tensor, key: Tensor) -> Tensor:
        scale = math.sqrt(key.size(-1))
        kernels = [(left @ right.mT / scale).softmax(dim=-1) for left, right in (
            (query, share @ key), (share @ query, share @ key), (share @ query, key))]
        return kernels[0] @ torch.linalg.pinv(kernels[1]) @ kernels[2]

    torch.testing.assert_close(baseline(x, torch.tensor([0, 8])),
                               with_weights(baseline, x, weights))


@pytest.mark.parametrize('heads', [1, 4])
def test_the_convolution_is_that_of_each_head(heads):
    baseline = Nystromformer(32, heads, landmarks=4, kernel_size=33)  # wider than the sequences
    value = torch.randn(4, heads, 16, 32 // heads)
    alone = Nystromformer(32, heads, landmarks=4, kernel_size=None)
    alone.load_state_dict({name: weight for name, weight in baseline.state_dict().items()
                           if name != 'conv.weight'})
    added = baseline.attend(value, value, value, 0) - alone.attend(value, value, value, 0)
    with torch.backends.mkldnn.flags(enabled=False):  # which writes outside its memory here
        expected = baseline.conv(value)
    torch.testing.assert_close(added, expected, atol=1e-5, rtol=1e-4)


# Combiner, Sinkhorn and Synthesizer ##################################################


def combiner(baseline: Combiner, query: Tensor, key: Tensor) -> Tensor:
    """The factored probabilities of Combiner-Fixed, token by token."""
    scale, rows = math.sqrt(query.size(-1)), []
    blocks = torch.arange(key.size(1)).split(baseline.block)
    inner = [torch.einsum('hc,hjc->hj', query[:, block].amax(dim=1), key[:, block]) / scale
             for block in blocks]
    for i in range(query.size(1)):
        own = i // baseline.block
        seen = [key[:, block] if number == own else key[:, block].amax(dim=1, keepdim=True)
                for number, block in enumerate(blocks)]
        chosen = (torch.einsum('hc,hrc->hr', query[:, i], torch.cat(seen, dim=1)) / scale).softmax(
            dim=-1).split([part.size(1) for part in seen], dim=1)
        rows.append(torch.cat([part if number == own else part * inner[number].softmax(dim=-1)
                               for number, part in enumerate(chosen)], dim=1))
    return torch.stack(rows, dim=1)


def sinkhorn(baseline: Sinkhorn, query: Tensor, key: Tensor) -> Tensor:
    """The sum of the weights of the own block and of the sorted blocks, slot by slot."""
    scale, length = math.sqrt(query.size(-1)), key.size(1)
    blocks = torch.arange(length).split(baseline.block)
    sums = torch.stack([key[:, block].sum(dim=1) for block in blocks], dim=1)
    sort = (sums @ baseline.sorting[:, :, :len(blocks)]).exp()
    for _ in range(baseline.iterations):
        sort = sort / sort.sum(dim=2, keepdim=True)
        sort = sort / sort.sum(dim=1, keepdim=True)
    rows = []
    for i in range(length):
        own = i // baseline.block
        moved = torch.zeros(HEADS, min(baseline.block, length), length, dtype=torch.double)
        for number, block in enumerate(blocks):
            moved[:, range(len(block)), block] = sort[:, own, number, None]
        slots = torch.einsum('hc,htj,hjc->ht', query[:, i], moved, key) / scale
        local = torch.einsum('hc,hjc->hj', query[:, i], key[:, blocks[own]]) / scale
        row = torch.einsum('ht,htj->hj', slots.softmax(dim=-1), moved)
        rows.append(row.index_add(1, blocks[own], local.softmax(dim=-1)))
    return torch.stack(rows, dim=1)


def synthesizer(baseline: Synthesizer, query: Tensor, key: Tensor) -> Tensor:
    logit = torch.stack([torch.relu(query[head]) @ baseline.weight[head] + baseline.bias[head]
                         for head in range(HEADS)])
    return logit[..., :key.size(1)].softmax(dim=-1)


@pytest.mark.parametrize('kind, formula, options', [
    (Combiner, combiner, {'block': 3}),
    (Sinkhorn, sinkhorn, {'block': 3, 'max_length': 16}),
    (Sinkhorn, sinkhorn, {'block': 8, 'max_length': 20, 'iterations': 2}),
    (Synthesizer, synthesizer, {'max_length': 17})])
def test_forward_and_gradients_are_those_of_the_papers_formula(kind, formula, options):
    baseline, found = made(kind, **options), []
    for attend in (lambda x: baseline(x, PTR), lambda x: all_sequences(
            baseline, x, lambda query, key: formula(baseline, query, key))):
        x = tokens().requires_grad_()
        out = attend(x)
        leaves = x, *baseline.parameters()
        found.append((out, *torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True,
                                                materialize_grads=True)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


def test_random_logits_are_no_function_of_the_tokens():
    baseline = made(Synthesizer, max_length=17, form='random')
    value = baseline.lin_value(tokens(8)).unflatten(-1, (HEADS, -1))
    x = tokens(8).requires_grad_()
    expected = torch.einsum('hij,jhc->ihc', baseline.weight[:, :8, :8].softmax(dim=-1), value)
    out = baseline(x, torch.tensor([0, 8]))
    torch.testing.assert_close(out, baseline.lin_out(expected.flatten(1)), rtol=0, atol=1e-10)
    weight, = torch.autograd.grad(out.sum(), baseline.weight, retain_graph=True)
    explicit, = torch.autograd.grad(baseline.lin_out(expected.flatten(1)).sum(), baseline.weight)
    torch.testing.assert_close(weight, explicit, rtol=0, atol=1e-10)
