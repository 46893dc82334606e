"""Models of transformers along all edges give what they give before, or are refused.

``python -m tests.families`` tries every model; these are some of each kind. ``--question`` packing
and weights ask whether packed sequences, and weights that a model returns, are equal too."""

import re
from itertools import cycle

import pytest

pytest.importorskip('transformers')

from tests.families import packing, weights  # noqa: E402
from tests.families.attaching import examine  # noqa: E402

pytestmark = pytest.mark.slow

EQUAL = [
    # encoders
    'BertModel', 'AlbertModel', 'MobileBertModel', 'NomicBertModel', 'LayoutLMModel',
    # decoders
    'LlamaForCausalLM', 'GPT2LMHeadModel', 'MistralModel', 'Qwen2Model', 'DeepseekV32Model',
    'Gemma2ForCausalLM', 'GptOssForCausalLM',
    # both
    'T5Model', 'BartModel', 'Pix2StructForConditionalGeneration',
    'EncoderDecoderModel (bert, gpt2)',
    # of images
    'ViTModel', 'SwinModel', 'DetrModel', 'LightGlueForKeypointMatching',
    # of sounds
    'Wav2Vec2Model', 'WhisperModel', 'ParakeetEncoder', 'NemotronAsrStreamingEncoder',
    'MoonshineModel',
    # of more than one kind
    'CLIPModel', 'PaliGemmaModel', 'LlavaForConditionalGeneration', 'Kosmos2Model',
]
# Some of the attention has code of its own.
IN_PART = {
    'GitForCausalLM': 'GitSelfAttention', 'SamModel': 'SamVisionSdpaAttention',
    'BigBirdPegasusForConditionalGeneration': 'BigBirdPegasusSelfAttention',
    'VisionEncoderDecoderModel (vit, trocr)': 'TrOCRAttention',
    'EncoderDecoderModel (big_bird, bert)': 'BigBirdSelfAttention',
    'LlavaForConditionalGeneration (clip_vision_model, gptj)': 'GPTJAttention',
    'Phi4MultimodalVisionModel': 'MultiheadAttention',
}
REFUSED = {
    'InformerModel': "'model' must have self-attention .* decoder.layers.0",
    'TrOCRForCausalLM': "'model' must have .* AttentionInterface ",
}


@pytest.mark.parametrize('name', EQUAL)
def test_attached_to_all_edges_a_model_equals_itself(name):
    assert (found := examine(name)).result == 'equal', found


@pytest.mark.parametrize('name, is_eager', [*zip([
    'BertModel', 'LlamaForCausalLM', 'MoonshineModel', 'T5Model', 'PaliGemmaModel',
    'BigBirdPegasusModel', 'CLIPModel'], cycle([False, True]))])
def test_layers_that_are_not_attached_attend_as_before(name, is_eager):
    assert (found := examine(name, is_eager, layers=[1])).result == 'equal', found


@pytest.mark.parametrize('name', IN_PART)
def test_what_stays_as_it_is_is_named(name):
    found = examine(name)
    assert found.result == 'equal, in part' and IN_PART[name] in found.why, found


@pytest.mark.parametrize('name', REFUSED)
def test_who_cannot_be_attached_is_refused_and_stays_as_he_is(name):
    found = examine(name)
    assert found.result == 'refused' and re.search(REFUSED[name], found.why), found


PACKED = [
    # position ids that attention does not receive, in encoders and decoders
    'BertModel', 'DistilBertForMaskedLM', 'ModernBertModel', 'RobertaModel', 'NomicBertModel',
    'OPTForCausalLM', 'GPT2LMHeadModel', 'EsmModel', 'Gemma3ForConditionalGeneration',
    # those that it receives, with windows, sinks, softcaps and relative positions
    'LlamaForCausalLM', 'MistralModel', 'Gemma2ForCausalLM', 'GptOssForCausalLM', 'Qwen2VLModel',
    'T5EncoderModel',
]
NOT_PACKED = {
    'BartForCausalLM': "'position_ids' must count up by 1 .* positions do not begin again",
    'CsmDepthDecoderModel': "'position_ids' must count up by 1 .* positions do not begin again",
    'DogeModel': "'position_ids' must count up by 1 .* masks do not mark packed sequences",
    'DeepseekV32Model': "'position_ids' must count up by 1 .* chooses its own keys",
    'JambaModel': "'position_ids' must count up by 1 .* tokens meet outside attention",
    'MobileBertModel': "'position_ids' must count up by 1 .* tokens meet outside attention",
    'InklingModel': "'position_ids' must count up by 1 .* tokens meet outside attention",
    'ColPaliForRetrieval': "'position_ids' must count up by 1 .* masks do not mark packed",
}


@pytest.mark.parametrize('name', PACKED)
def test_packed_sequences_equal_the_same_sequences_alone(name):
    assert (found := packing.examine(name)).result == 'equal', found


@pytest.mark.parametrize('name', NOT_PACKED)
def test_what_cannot_mark_packed_sequences_is_refused_by_name(name):
    found = packing.examine(name)
    assert found.result == 'refused' and re.search(NOT_PACKED[name], found.why), found


@pytest.mark.parametrize('name, layers', [*zip([
    'BertModel', 'GPT2LMHeadModel', 'T5Model', 'LlamaModel', 'GptOssModel', 'BartModel', 'ViTModel',
    'Wav2Vec2Model', 'CLIPModel', 'T5Gemma2Model', 'DeepseekV32Model',
    'EncoderDecoderModel (bert, gpt2)'], cycle([None, [1]]))])
def test_weights_that_a_model_returns_are_those_of_its_own_code(name, layers):
    assert (found := weights.examine(name, layers)).result == 'equal', found
