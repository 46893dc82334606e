import pytest
import torch
import torch.nn.functional as F

from graphattn.models import Encoder, MaskedLanguageModel
from graphattn.patterns import SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource

PTR = torch.tensor([0, 4, 5, 12])
TOKENS = torch.randint(20, (12,), generator=torch.Generator().manual_seed(0))
SEGMENTS = torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1])


def model(source=None, next_sentence=True, **options):
    sizes = dict(num_tokens=20, max_length=8, channels=16, heads=2, num_layers=2, num_segments=2)
    encoder = Encoder(source or PatternSource(SlidingWindow(1)), **{**sizes, **options})
    return MaskedLanguageModel(encoder, next_sentence)


@pytest.mark.parametrize('norm_first', [True, False])
def test_logits_of_tokens_and_sequences(norm_first):
    bert = model(norm_first=norm_first)
    token_logits, sequence_logits = bert(TOKENS, PTR, segments=SEGMENTS)
    x = bert.encoder(TOKENS, PTR, segments=SEGMENTS)
    linear, _, norm = bert.transform
    hidden = norm(F.gelu(x @ linear.weight.T + linear.bias))
    torch.testing.assert_close(token_logits,
                               hidden @ bert.encoder.token_embedding.weight.T + bert.token_bias)
    pooled = bert.pooler.linear(x[[0, 4, 5]]).tanh()
    torch.testing.assert_close(sequence_logits, bert.next_sentence(pooled))


def test_the_decoder_is_the_embedding():
    bert = model()
    assert [name for name, value in bert.named_parameters() if value.shape == (20, 16)] == [
        'encoder.token_embedding.weight']
    weight = bert.encoder.token_embedding.weight
    unseen = next(i for i in range(20) if i not in TOKENS)
    bert(TOKENS, PTR)[0].square().sum().backward()
    assert weight.grad[unseen].any()  # through the decoder alone


def test_parameters_are_initialised_as_in_bert():
    source = BlockModelSource(heads=2, head_channels=32, clusters=4)
    source.linear = torch.nn.Linear(2, 2)
    before = {name: value.clone() for name, value in source.state_dict().items()}
    bert = model(source, share_source=True, channels=64)
    weights = {f'{name}.weight': module.weight for name, module in bert.named_modules()
               if isinstance(module, torch.nn.Linear | torch.nn.Embedding)
               and not name.startswith('encoder.source')}
    assert len(weights) == 3 + 2 * 6 + 3
    for name, weight in weights.items():
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.25), name
    biases = [value for name, value in bert.named_parameters()
              if name.endswith('bias') and not name.startswith('encoder.source')]
    assert biases and not any(bias.any() for bias in biases)
    for name, value in before.items():
        assert torch.equal(source.state_dict()[name], value)


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['dam_structured', 'dam_unstructured'])
def test_a_frozen_mask_gives_the_logits_of_its_draw(mode):
    """Some rows have no pair."""
    source = LearnedMaskSource(2, 8, mode=mode, border=False, init_std=1.)
    drawn = model(source, share_source=True, norm_first=False).double()
    num_empty = 0
    for seed in range(5):
        masks = source.freeze('sample', generator=torch.Generator().manual_seed(seed))
        frozen = model(PatternSource(masks), share_source=True, norm_first=False).double()
        frozen.load_state_dict(drawn.state_dict(), strict=False)
        results = [bert(TOKENS, PTR, segments=SEGMENTS, return_graphs=True,
                        generator=torch.Generator().manual_seed(seed)) for bert in (drawn, frozen)]
        *drawn_logits, (mask, _) = results[0]
        *frozen_logits, (graph, _) = results[1]
        assert mask == graph
        for ours, theirs in zip(frozen_logits, drawn_logits):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        num_empty += int((graph.in_degree() == 0).sum())
    assert num_empty > 0
