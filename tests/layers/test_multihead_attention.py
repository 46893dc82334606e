"""torch's attention modules along graphs give what torch gives under the equivalent mask."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

from graphattn.layers import MultiheadAttention, from_torch
from graphattn.patterns import Full, GlobalTokens, Pattern, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource
from tests.pairwise import pairwise

BATCH, LENGTH, MEMORY, CHANNELS, HEADS = 2, 11, 7, 16, 4
PATTERN = SlidingWindow(2) | GlobalTokens(1)
PADDINGS = {'none': None, 'right': torch.arange(LENGTH) >= torch.tensor([[LENGTH], [6]]),
            'left': torch.arange(LENGTH) < torch.tensor([[0], [5]])}
OPTIONS = {'plain': {}, 'batch_first': {'batch_first': True}, 'no_bias': {'bias': False},
           'sizes': {'kdim': 12, 'vdim': 20, 'batch_first': True},
           'float64': {'dtype': torch.double}}


def not_edges(is_padding, pattern=PATTERN):
    """Return where queries may not attend by the pattern, bool ``[batch, L, L]``; padding attends
    to itself."""
    is_padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool) if is_padding is None else is_padding
    mask = ~torch.eye(LENGTH, dtype=torch.bool).repeat(BATCH, 1, 1)
    for row, padding in zip(mask, is_padding):
        at = (~padding).nonzero().squeeze(1)
        row[at[:, None], at] = ~pattern.build(len(at)).to_mask()
    return mask


def per_head(mask):
    return mask.repeat_interleave(HEADS, dim=0)


def pair(source=PATTERN, **options):
    """torch's module and ours, with the same weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(CHANNELS, HEADS, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=.5)
    ours = MultiheadAttention(CHANNELS, HEADS, **options, source=source)
    ours.load_state_dict(theirs.state_dict(), strict=isinstance(source, Pattern | None))
    return theirs, ours


def tokens(module, length=LENGTH):
    shape = (BATCH, length) if module.batch_first else (length, BATCH)
    return [torch.randn(*shape, size, dtype=module.out_proj.weight.dtype, requires_grad=True)
            for size in (module.embed_dim, module.kdim, module.vdim)]


def check(ours, theirs, call, is_token=None):
    """Outputs of tokens, weights, and gradients."""
    results = []
    for module in (ours, theirs):
        module.zero_grad()
        out, weight, inputs = call(module)
        out = out if module.batch_first else out.transpose(0, 1)
        out = out if is_token is None else out[is_token]
        grads = torch.autograd.grad(out.square().mean(), [*inputs, *module.parameters()])
        if weight is not None and is_token is not None:
            weight = weight[is_token]
        results.append((out, weight, grads))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('option, padding', [
    (option, padding) for option in OPTIONS for padding in PADDINGS
    if (option, padding) != ('sizes', 'left')])  # whose queries are not the keys
def test_equals_torch_under_the_mask(option, padding):
    theirs, ours = pair(**OPTIONS[option])
    query, key, value = tokens(theirs)
    is_padding = PADDINGS[padding]
    is_token = None if is_padding is None else ~is_padding
    if theirs.kdim == CHANNELS:
        key = query  # the same tokens

    def call(module):
        if module is theirs:
            return *module(query, key, value, attn_mask=per_head(not_edges(is_padding))), inputs
        return *module(query, key, value, key_padding_mask=is_padding), inputs

    inputs = [query, value] if key is query else [query, key, value]
    check(ours, theirs, call, is_token)


@pytest.mark.parametrize('kind', ['bool', 'float', 'heads', 'heads_float', 'causal'])
def test_masks_have_the_meaning_of_torch(kind):
    theirs, ours = pair(batch_first=True)
    x, _, value = tokens(theirs)
    shape = (LENGTH, LENGTH) if 'heads' not in kind else (BATCH * HEADS, LENGTH, LENGTH)
    forbidden = (torch.rand(shape) < .4) & ~torch.eye(LENGTH, dtype=torch.bool)
    edges = ~PATTERN.build(LENGTH).to_mask()
    if kind == 'causal':
        forbidden = ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask, expected = forbidden, forbidden | edges
    if 'float' in kind:
        mask = torch.randn(shape).masked_fill(forbidden, -math.inf)
        expected = mask.masked_fill(edges, -math.inf)
    is_causal = kind == 'causal'

    def call(module):
        if module is theirs:
            return *module(x, x, value, attn_mask=expected), [x, value]
        return *module(x, x, value, attn_mask=mask, is_causal=is_causal), [x, value]

    check(ours, theirs, call)
    if is_causal:  # torch wants the mask besides
        torch.testing.assert_close(ours(x, x, value, is_causal=True)[0],
                                   ours(x, x, value, attn_mask=mask)[0])


@pytest.mark.parametrize('kind', ['bool', 'float', 'added'])
def test_padding_masks_have_the_meaning_of_torch(kind):
    """Between two sequences, in which query i sits at key position i."""
    theirs, ours = pair(batch_first=True)
    query, (_, key, value) = tokens(theirs)[0], tokens(theirs, MEMORY)
    is_padding = torch.arange(MEMORY) >= torch.tensor([[MEMORY], [4]])
    mask = is_padding
    if kind != 'bool':
        mask = torch.zeros(BATCH, MEMORY).masked_fill(is_padding, -math.inf)
    if kind == 'added':
        mask = mask + torch.arange(MEMORY)
    edges = torch.stack([~PATTERN.build(LENGTH, MEMORY).to_mask()] * BATCH)

    def call(module):
        given = {'attn_mask': per_head(edges)} if module is theirs else {}
        if kind != 'bool' and module is theirs:
            given['attn_mask'] = torch.zeros(edges.shape).masked_fill(edges, -math.inf)
            given['attn_mask'] = per_head(given['attn_mask'])
        return *module(query, key, value, key_padding_mask=mask, **given), [query, key, value]

    check(ours, theirs, call, torch.ones(BATCH, LENGTH, dtype=torch.bool))


@pytest.mark.parametrize('std', [0, 1])
def test_a_floating_padding_mask_gets_a_gradient(std):
    theirs, ours = pair(Full(), batch_first=True)
    x, _, _ = tokens(theirs)
    bias = (std * torch.randn(BATCH, LENGTH)).requires_grad_()
    check(ours, theirs, lambda module: (*module(x, x, x, key_padding_mask=bias), [x, bias]))


def test_one_sequence_without_a_batch():
    theirs, ours = pair()
    x = torch.randn(LENGTH, CHANNELS)
    mask = ~PATTERN.build(LENGTH).to_mask()
    for average in (True, False):
        torch.testing.assert_close(ours(x, x, x, average_attn_weights=average),
                                   theirs(x, x, x, attn_mask=mask, average_attn_weights=average))
    assert ours(x, x, x, need_weights=False)[1] is None


def test_without_a_source_attention_is_complete():
    theirs, ours = pair(source=None)
    x = torch.randn(LENGTH, BATCH, CHANNELS)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x))


def test_block_models_draw_edges_between_two_sequences():
    source = BlockModelSource(heads=HEADS, head_channels=CHANNELS // HEADS, clusters=8)
    ours = MultiheadAttention(CHANNELS, HEADS, batch_first=True, source=source)
    x, memory = torch.randn(BATCH, 4, CHANNELS), torch.randn(BATCH, LENGTH, CHANNELS)
    out, weight = ours(x, memory, memory, key_padding_mask=PADDINGS['left'],
                       average_attn_weights=False)
    assert weight.shape == (BATCH, HEADS, 4, LENGTH)
    assert not weight[PADDINGS['left'][:, None, None].expand_as(weight)].any()
    assert ((weight > 0).sum(-1) < (~PADDINGS['left']).sum(1)[:, None, None]).any()  # not complete
    value = torch.nn.functional.linear(memory, *(x.chunk(3)[2] for x in (ours.in_proj_weight,
                                                                         ours.in_proj_bias)))
    value = value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    expected = ours.out_proj((weight @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    out.square().sum().backward()
    assert any(parameter.grad.any() for parameter in ours.source.parameters())


# Modules of torch's ###################################################################


def layer(**options):
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(CHANNELS, HEADS, 24, dropout=0., **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=.3)
    return made


KINDS = {'post': {}, 'pre': {'norm_first': True}, 'gelu': {'batch_first': True,
                                                         'activation': 'gelu'},
         'no_bias': {'bias': False, 'norm_first': True}}


@pytest.mark.parametrize('depth, padding, kind, mode', pairwise(
    [0, 2], PADDINGS, KINDS, ['train', 'eval', 'inference']))
def test_encoders_equal_torch_under_the_mask(depth, padding, kind, mode):
    options = KINDS[kind]
    theirs = layer(**options)
    if depth:
        theirs = nn.TransformerEncoder(theirs, depth, norm=nn.LayerNorm(CHANNELS),
                                       enable_nested_tensor=False)
    theirs.train(mode == 'train')
    before = copy.deepcopy(theirs.state_dict())
    ours = from_torch(theirs, 'SlidingWindow(2) | GlobalTokens(1)')
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x, is_padding = torch.randn(LENGTH, BATCH, CHANNELS), PADDINGS[padding]
    is_token = torch.ones(BATCH, LENGTH, dtype=torch.bool) if is_padding is None else ~is_padding
    x = x.transpose(0, 1) if options.get('batch_first') else x
    with torch.inference_mode(mode == 'inference'):
        expected = theirs(x, per_head(not_edges(is_padding)))
        got = ours(x, src_key_padding_mask=is_padding)
    if not options.get('batch_first'):
        expected, got = expected.transpose(0, 1), got.transpose(0, 1)
    torch.testing.assert_close(got[is_token], expected[is_token], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(theirs.state_dict(), before)  # a copy


@pytest.mark.slow
def test_compiled_encoders_return_the_same():
    encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)
    ours, x = from_torch(encoder, PATTERN), torch.randn(LENGTH, BATCH, CHANNELS)
    results = []
    torch._dynamo.reset()
    for module in (ours, torch.compile(ours, backend='aot_eager')):
        out = module(x, src_key_padding_mask=PADDINGS['left'])
        results.append([out, *torch.autograd.grad(out.sin().sum(), [*ours.parameters()])])
    torch.testing.assert_close(*results)


def test_converting_keeps_options_and_trainable_parameters():
    theirs = nn.MultiheadAttention(CHANNELS, HEADS, .25, False, kdim=3, vdim=5, batch_first=True,
                                   dtype=torch.double).eval()
    theirs.out_proj.weight.requires_grad_(False)
    ours = from_torch(theirs, PATTERN)
    assert (ours.dropout, ours.kdim, ours.vdim, ours.batch_first) == (.25, 3, 5, True)
    assert not ours.training and not ours.out_proj.weight.requires_grad
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    theirs.q_proj_weight.data.zero_()
    assert ours.q_proj_weight.any()


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def pruned(module, name):
    with torch.no_grad():  # so that it can be copied
        return prune.l1_unstructured(module, name, .5)


# What may have become of attention before it is converted.
BECAME = {
    'parametrised': lambda module: register_parametrization(module, 'in_proj_weight', Halved()),
    'parametrised output': lambda module: weight_norm(module.out_proj),
    'pruned': lambda module: pruned(module, 'in_proj_weight'),
    'pruned output': lambda module: pruned(module.out_proj, 'weight'),
    'hooked': lambda module: module.register_forward_hook(
        lambda module, inputs, outputs: (-outputs[0], outputs[1])),
    'frozen': lambda module: module.in_proj_bias.requires_grad_(False),
}


@pytest.mark.parametrize('became', BECAME)
def test_converting_keeps_modifications_of_attention(became):
    theirs, x = pair()[0], torch.randn(LENGTH, BATCH, CHANNELS)
    BECAME[became](theirs)
    ours = from_torch(theirs, Full())
    copied = copy.deepcopy(ours)
    assert isinstance(ours, MultiheadAttention)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x), atol=1e-5, rtol=1e-5)
    learned = [{name for name, parameter in module.named_parameters() if parameter.requires_grad}
               for module in (ours, theirs)]
    assert learned[0] == learned[1]
    torch.testing.assert_close(copied(x, x, x), ours(x, x, x))


def test_converted_encoders_have_hops_and_learned_teleports():
    encoder = nn.TransformerEncoder(layer(batch_first=True), 2, enable_nested_tensor=False)
    ours = from_torch(encoder, PATTERN, hops=3, teleport=.25, learn_teleport=True)
    ours(torch.randn(BATCH, LENGTH, CHANNELS)).square().sum().backward()
    for logit in (part.self_attn.teleport_logit for part in ours.layers):
        torch.testing.assert_close(logit.sigmoid(), torch.full((HEADS,), .25))
        assert (logit.grad != 0).all()
    again = from_torch(ours, PATTERN)
    assert again.state_dict().keys() == encoder.state_dict().keys()


@pytest.mark.parametrize('options', [dict(hops=2), dict(teleport=.1), dict(hops=0)])
def test_several_hops_need_self_attention(options):
    module = MultiheadAttention(16, 4, source=PATTERN, **options)
    with pytest.raises(ValueError, match="'hops' must.*same tokens"):
        module(X, X + 1, X)


class Doubled(nn.MultiheadAttention):
    def forward(self, *inputs, **options):
        out, weight = super().forward(*inputs, **options)
        return 2 * out, weight


def frozen(length):
    return PatternSource(LearnedMaskSource(4, length, mode='dam_unstructured').freeze())


X = torch.randn(LENGTH, BATCH, CHANNELS)
BAD = {
    'bias_kv': (lambda: MultiheadAttention(16, 4, add_bias_kv=True), ValueError, "'add_bias_kv'"),
    'zero': (lambda: from_torch(nn.MultiheadAttention(16, 4, add_zero_attn=True), PATTERN),
             ValueError, "'add_zero_attn' must be False"),
    'heads': (lambda: MultiheadAttention(16, 4, source=LearnedMaskSource(2, 8)), ValueError,
              r"'source' must.*4.*\(got"),
    'learned': (lambda: from_torch(nn.MultiheadAttention(16, 4), PATTERN, learn_teleport=True),
                ValueError, "'teleport' must.*got 0.0"),
    'module': (lambda: from_torch(nn.Linear(2, 2), PATTERN), TypeError, "'module' .*got Linear"),
    'forward': (lambda: from_torch(Doubled(16, 4), PATTERN), TypeError, "'module' .*got Doubled"),
    'channels': (lambda: pair()[1](X[..., 1:], X, X), ValueError, "'query' must have 16 channels"),
    'dimensions': (lambda: pair()[1](X, X[0], X[0]), ValueError, "'query', 'key' and 'value' must"),
    'batch': (lambda: pair()[1](X, X[:, :1], X[:, :1]), ValueError, "'key' and 'value' must have"),
    'mask_shape': (lambda: pair()[1](X, X, X, attn_mask=torch.zeros(3, 3)), ValueError,
                   r"'attn_mask' must have shape \[11, 11\] or \[8, 11, 11\]"),
    'padding': (lambda: pair()[1](X, X, X, key_padding_mask=torch.zeros(11, 2)), ValueError,
                r"'key_padding_mask' must have shape \[2, 11\]"),
    'length': (lambda: pair(frozen(4))[1](X, X, X), ValueError, "must have at most 4 tokens"),
    'rectangular': (lambda: pair(LearnedMaskSource(4, 16))[1](X, X[:5], X[:5]), ValueError,
                    "'key_ptr' must be None for a learned mask"),
    'soft_weights': (lambda: pair(LearnedMaskSource(4, 16, mode='soft'))[1](X, X, X), ValueError,
                     "weights are requested"),
}


@pytest.mark.parametrize('case', BAD)
def test_errors_name_the_argument(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize('source', ['Full()', PatternSource(['Full()', 'Full()'])])
@pytest.mark.parametrize('average', [True, False])
def test_weights_of_all_pairs_are_those_of_torch(source, average):
    """Which are not put into a table edge by edge, whether or not heads share a graph."""
    torch_module = nn.MultiheadAttention(16, 2, batch_first=True).double()
    module = from_torch(torch_module, source)
    x = torch.randn(3, 5, 16, dtype=torch.double)
    torch.testing.assert_close(module(x, x, x, average_attn_weights=average),
                               torch_module(x, x, x, average_attn_weights=average))
