import pytest
import torch

from graphattn.models import Encoder, SequenceClassifier, TokenClassifier
from graphattn.patterns import Full, SlidingWindow
from graphattn.sources import BlockModelSource, PatternSource

PTR = torch.tensor([0, 4, 5, 12])
TOKENS = torch.randint(20, (12,), generator=torch.Generator().manual_seed(0))
SIZES = dict(num_tokens=20, max_length=8, channels=16, heads=2, num_layers=2)


def encoder(source=None, **options):
    return Encoder(source or PatternSource(SlidingWindow(1)), **{**SIZES, **options})


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_ragged_batch_is_each_sequence_alone(norm_first):
    model = encoder(norm_first=norm_first).double().eval()
    alone = [model(part, torch.tensor([0, len(part)]))
             for part in TOKENS.split(PTR.diff().tolist())]
    torch.testing.assert_close(model(TOKENS, PTR), torch.cat(alone))


def test_layers_have_sources_of_their_own():
    model = encoder(BlockModelSource(heads=2, head_channels=8, clusters=4))
    first, second = (layer.attention.source for layer in model.layers)
    assert not torch.equal(first.centroid, second.centroid)
    graphs = model(TOKENS, PTR, return_graphs=True)[1]
    assert len(graphs) == 2 and graphs[0] != graphs[1]


def test_positions_start_over_in_every_sequence():
    model = encoder(PatternSource(SlidingWindow(0)))
    out = model(torch.tensor([3, 3, 3, 3]), torch.tensor([0, 2, 4]))
    assert torch.equal(out[:2], out[2:]) and not torch.equal(out[0], out[1])


@pytest.mark.parametrize('pooling', ['mean', 'first'])
def test_sequence_classifier_pools_each_sequence(pooling):
    model = SequenceClassifier(encoder(), 3, pooling=pooling, hidden_channels=5).eval()
    features = model.encoder(TOKENS, PTR)
    parts = features.split(PTR.diff().tolist())
    pooled = [part.mean(0) if pooling == 'mean' else part[0] for part in parts]
    torch.testing.assert_close(model(TOKENS, PTR), model.head(torch.stack(pooled)))


def test_token_classifier_has_logits_for_every_token():
    logits, graphs = TokenClassifier(encoder(), 3)(TOKENS, PTR, return_graphs=True)
    assert logits.shape == (12, 3) and len(graphs) == 2


def test_a_small_model_learns_eight_sequences_by_heart():
    torch.manual_seed(0)
    source = BlockModelSource(heads=2, head_channels=8, clusters=4)
    model = SequenceClassifier(encoder(source), 4)
    tokens, ptr = torch.randint(20, (64,)), torch.arange(9) * 8
    label = torch.randint(4, (8,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens, ptr), label).backward()
        optimizer.step()
    assert torch.equal(model.eval()(tokens, ptr).argmax(1), label)


@pytest.mark.parametrize('tokens, ptr, match', [
    (TOKENS.float(), PTR, "'tokens' must be int64"),
    (TOKENS.view(3, 4), PTR, "'tokens' must be int64"),
    (TOKENS + 10, PTR, "'tokens' must be ids from 0 to 19"),
    (TOKENS - 20, PTR, "'tokens' must be ids from 0 to 19"),
    (TOKENS, torch.tensor([0, 5]), "'ptr' must rise from 0 to the 12 tokens"),
    (TOKENS, torch.tensor([0, 6, 5, 12]), "'ptr' must rise"),
    (TOKENS, torch.tensor([0, 12]), "sequence of 12 tokens, but .* max_length=8"),
])
def test_bad_batches(tokens, ptr, match):
    with pytest.raises(ValueError, match=match):
        encoder()(tokens, ptr)


def test_an_empty_sequence_has_no_class():
    with pytest.raises(ValueError, match='empty sequence'):
        SequenceClassifier(encoder(), 3)(TOKENS, torch.tensor([0, 4, 4, 12]))
    assert encoder(PatternSource(Full()))(TOKENS, torch.tensor([0, 4, 4, 12])).shape == (12, 16)


def test_unknown_pooling():
    with pytest.raises(ValueError, match="'pooling' must be 'mean' or 'first'"):
        SequenceClassifier(encoder(), 3, pooling='max')
