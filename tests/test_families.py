"""Models of transformers along all edges give what they give before, or are refused.

``python -m tests.families`` tries every model; these are some of each kind."""

from __future__ import annotations

import pytest

pytest.importorskip('transformers')

from tests.families.attaching import examine  # noqa: E402

EQUAL = [
    # encoders
    'BertModel', 'AlbertModel', 'MobileBertModel', 'NomicBertModel',
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


@pytest.mark.slow
@pytest.mark.parametrize('name', EQUAL)
def test_attached_to_all_edges_a_model_equals_itself(name):
    assert (found := examine(name)).result == 'equal', found


@pytest.mark.slow
@pytest.mark.parametrize('name', ['BertModel', 'LlamaForCausalLM', 'MoonshineModel', 'T5Model',
                                  'PaliGemmaModel', 'BigBirdPegasusModel', 'CLIPModel'])
@pytest.mark.parametrize('is_eager', [False, True])
def test_layers_that_are_not_attached_attend_as_before(name, is_eager):
    assert (found := examine(name, is_eager, layers=[1])).result == 'equal', found


@pytest.mark.slow
@pytest.mark.parametrize('name', IN_PART)
def test_what_stays_as_it_is_is_named(name):
    found = examine(name)
    assert found.result == 'equal, in part' and IN_PART[name] in found.why, found


@pytest.mark.slow
@pytest.mark.parametrize('name', REFUSED)
def test_who_cannot_be_attached_is_refused_and_stays_as_he_is(name):
    import re
    found = examine(name)
    assert found.result == 'refused' and re.search(REFUSED[name], found.why), found
