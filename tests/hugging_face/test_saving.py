"""An attached model is saved in one call and loaded in one, or refused in one line."""

import hashlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from graphattn.hugging_face import attach, attachment, load_attached, save_attached
from graphattn.hugging_face.saving import GRAPHS, MANIFEST
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource
from tests.test_hugging_face import (
    DECODERS,
    FAMILIES,
    SIZES,
    TOKENS,
    cross_modules,
    inputs,
    longformer,
    new_model,
)

transformers = pytest.importorskip('transformers')
pytest.importorskip('safetensors')

WINDOW = SlidingWindow(2) | GlobalTokens(1)
ATTACHED = {
    'a pattern': lambda model: attach(model, WINDOW),
    'random keys': lambda model: attach(model, PatternSource(RandomKeys(3), seed=5)),
    'a layer': lambda model: attach(model, WINDOW, layers=[1]),
    'heads': lambda model: attach(model, PatternSource([WINDOW, SlidingWindow(1)]), heads=[2, 0]),
    'a graph for each layer': lambda model: attach(model, [WINDOW, 'bigbird(block=2)']),
    'hops': lambda model: attach(model, WINDOW, hops=3, teleport=.2, learn_teleport=True),
    'all hops': lambda model: attach(model, WINDOW, hops=torch.inf, teleport=.2),
    'a learned mask': lambda model: attach(model, LearnedMaskSource(4, 64, init_std=1.)),
    'a block model': lambda model: attach(model, BlockModelSource(4, 8, 8, fixed=WINDOW)),
}
KINDS = ['BERT', 'GPT-2', 'Llama', 'T5', 'ViT']


def hidden_of(model, family='BERT'):
    torch.manual_seed(1)
    with torch.no_grad():
        given = inputs(family, torch.ones(2, 20, dtype=torch.bool), is_dense=False)
        given |= {'use_cache': False} if FAMILIES[family][2] else {}
        return model(**given).last_hidden_state


def changed(model):
    """Move the parameters of sources away from where a new draw would put them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if 'graph' in name:
                parameter.add_(torch.randn(parameter.shape), alpha=.3)
    return model


@pytest.mark.slow
@pytest.mark.parametrize('kind, family', [*zip(ATTACHED, itertools.cycle(KINDS))])
def test_what_is_loaded_gives_what_was_saved(kind, family, tmp_path):
    model = changed(ATTACHED[kind](new_model(family)))
    expected = hidden_of(model, family)
    save_attached(model, tmp_path / 'saved')
    assert torch.equal(hidden_of(model, family), expected)  # saving changes nothing
    loaded = load_attached(tmp_path / 'saved')
    torch.testing.assert_close(hidden_of(loaded, family), expected)
    assert str(attachment(loaded)) == str(attachment(model))
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    dense = type(model).from_pretrained(tmp_path / 'saved')
    torch.testing.assert_close(hidden_of(dense, family), hidden_of(new_model(family), family))


def test_cross_attention_and_tied_weights_are_saved(tmp_path):
    model = new_model('T5', DECODERS['T5'])
    attach(model, WINDOW, layers=cross_modules(model))
    save_attached(model, tmp_path)
    loaded = load_attached(tmp_path)
    assert loaded.lm_head.weight is loaded.shared.weight or model.lm_head.weight is not (
        model.shared.weight)
    given = dict(input_ids=TOKENS, decoder_input_ids=TOKENS)
    torch.testing.assert_close(loaded(**given).logits, model(**given).logits)


def test_a_later_save_replaces_an_earlier_one_and_nothing_else(tmp_path):
    folder = tmp_path / 'saved'
    save_attached(attach(new_model('BERT'), WINDOW), folder, max_shard_size='20KB')
    assert (folder / 'model.safetensors.index.json').is_file()
    (folder / 'notes.txt').write_text('mine')
    save_attached(attach(new_model('Llama'), SlidingWindow(1)), folder)
    assert not list(folder.glob('model-0*')) and (folder / 'notes.txt').read_text() == 'mine'
    assert type(load_attached(folder)) is transformers.LlamaModel
    assert [path.name for path in tmp_path.iterdir()] == ['saved']


class Nearest(PatternSource):
    """A source of a user."""

    def __init__(self, radius):
        super().__init__(SlidingWindow(radius))
        self.radius = radius

    def arguments(self):
        return {'radius': self.radius}


def test_classes_of_users_are_built_only_if_they_are_named(tmp_path):
    model = attach(new_model('BERT'), Nearest(2))
    save_attached(model, tmp_path)
    with pytest.raises(ValueError, match="'classes' must.*tests.*Nearest.*if you trust it"):
        load_attached(tmp_path)
    loaded = load_attached(tmp_path, classes=[Nearest])
    torch.testing.assert_close(hidden_of(loaded), hidden_of(model))


def test_nothing_in_the_folder_is_a_pickle(saved):
    assert {path.suffix for path in saved.iterdir()} == {'.json', '.safetensors'}


def edit(folder, **entries):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | entries))


def edit_layer(folder, **entries):
    layers = json.loads((folder / MANIFEST).read_text())['layers']
    edit(folder, layers=[layer | entries for layer in layers])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 255
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[:-50])


def deepen(folder):
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | {'num_hidden_layers': 50_000}))
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(folder, files=manifest['files'] | {
        'config.json': (folder / 'config.json').stat().st_size})


def enlarge(folder):
    """Let the header of the parameters ask for 4 TB."""
    header = json.dumps({'x': {'dtype': 'F32', 'shape': [10**12], 'data_offsets': [0, 4 * 10**12]}})
    content = len(header).to_bytes(8, 'little') + header.encode()
    (folder / GRAPHS).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(folder, hash=hashlib.sha256(content).hexdigest(),
         files=manifest['files'] | {GRAPHS: len(content)})


def adapt(folder, **entries):
    (folder / 'adapter_config.json').write_text(json.dumps(entries))
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(folder, files=manifest['files'] | {
        'adapter_config.json': (folder / 'adapter_config.json').stat().st_size})


DAMAGE = {
    'a deep model': (deepen, 'sizes in the config need far more tensors'),
    'a large header': (enlarge, f'damaged: {GRAPHS}:'),
    'a kernel of a hub': (lambda folder: edit(folder, implementations={'': 'some-org/kernel'}),
                          "'implementations': expected None or a text .*got 'some-org/kernel'"),
    'an implementation of ours': (lambda folder: edit(folder, implementations={'': 'graphattn'}),
                                  "'implementations': expected .*got 'graphattn'"),
    'a large mask': (lambda folder: edit_layer(folder, arguments={'heads': 4, 'size': 10**6}),
                     'damaged: .*size'),
    'a head too many': (lambda folder: edit_layer(folder, heads=[99]), "damaged: 'heads' must"),
    'half a head': (lambda folder: edit_layer(folder, heads=[.5]),
                    r"damaged: .*'layers\[0\].heads\[0\]' must be an integer"),
    'a base on a hub': (lambda folder: adapt(folder, base_model_name_or_path='some-org/model'),
                        "'model' must be given.*got 'some-org/model'"),
    'no base': (lambda folder: adapt(folder), "damaged: .*'base_model_name_or_path' is missing"),
    'a module to import': (lambda folder: adapt(
        folder, base_model_name_or_path=None, megatron_config={}), "damaged: .*'megatron_config'"),
    'no manifest': (lambda folder: (folder / MANIFEST).unlink(),
                    f"has written completely .* without {MANIFEST}"),
    'half a manifest': (lambda folder: cut(folder / MANIFEST), 'damaged: .* not JSON'),
    'a list': (lambda folder: (folder / MANIFEST).write_text('[]'), 'damaged'),
    'another version': (lambda folder: edit(folder, format=9),
                        r"'folder' must.*format 1 \(got 9.*update graphattn"),
    'no layers': (lambda folder: edit(folder, layers=None), "damaged: .*'layers' must be a list"),
    'an empty layer': (lambda folder: edit(folder, layers=[{}]), 'damaged'),
    'no layer': (lambda folder: edit(folder, layers=[3]), 'damaged'),
    'half of the weights': (lambda folder: cut(folder / 'model.safetensors'),
                            'damaged: model.safetensors must have'),
    'no weights': (lambda folder: (folder / 'model.safetensors').unlink(), 'damaged: model'),
    'another mask': (lambda folder: flip(folder / GRAPHS), f'damaged: {GRAPHS} has other content'),
    'a strange argument': (lambda folder: edit_layer(folder, arguments={'sizes': 3}), 'damaged'),
    'a strange value': (lambda folder: edit_layer(folder, arguments={'heads': 4, 'size': -1}),
                        "damaged: 'arguments' of 'enc.*: 'size' must"),
    'another class': (lambda folder: edit_layer(folder, source='subprocess.Popen'),
                      "'classes' must.*subprocess.Popen"),
    'a private class': (lambda folder: edit_layer(folder, source='graphattn.sources.os.system'),
                        "'folder' must name a public class of graphattn"),
    'another model': (lambda folder: edit(folder, model='os.path'), "'classes' must.*os.path"),
    'a function': (lambda folder: edit(folder, model='transformers.pipeline'),
                   "'folder' must name a public class of transformers"),
}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp('saved')
    save_attached(attach(new_model('BERT'), LearnedMaskSource(4, 64)), folder)
    return folder


@pytest.mark.parametrize('case', DAMAGE)
def test_a_damaged_folder_is_refused_in_one_line(case, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / 'copy')
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises(ValueError, match=message) as raised:
        load_attached(folder)
    assert len(str(raised.value).splitlines()) == 1


def bert(**sizes):
    return transformers.BertModel(transformers.BertConfig(**SIZES | sizes))


@pytest.mark.parametrize('make, error, message', [
    (lambda: bert(num_hidden_layers=3), ValueError, "'model' must.*2 attention modules.*got 3"),
    (lambda: bert(num_attention_heads=2), ValueError, "'model' must have 4 heads .* \\(got 2"),
    (lambda: new_model('Llama'), ValueError, "'model' must.*attention module 'encoder.*class"),
    (longformer, ValueError, "'model' must.*attention that"),
    (lambda: attach(new_model('BERT'), WINDOW), ValueError, "'layers' must.*got 'encoder.layer"),
    (lambda: 'bert', TypeError, "'model' must.*PreTrainedModel.*got str"),
])
def test_another_model_is_refused_in_one_line(make, error, message, tmp_path):
    save_attached(attach(new_model('BERT'), WINDOW), tmp_path)
    with pytest.raises(error, match=message) as raised:
        load_attached(tmp_path, make())
    assert len(str(raised.value).splitlines()) == 1


class Lambda(SlidingWindow):
    """A pattern without an expression."""

    def __repr__(self):
        return 'lambda: 0'


@pytest.mark.parametrize('make, error, message', [
    (lambda: new_model('BERT'), ValueError, "'model' must.*attached.*got a model without graphs"),
    (lambda: 'bert', TypeError, "'model' must be a Module"),
    (lambda: attach(new_model('BERT'), Lambda(2)), ValueError,
     "'model'.*saved,.*source.*'encoder.layer.0.*an expression.*got Lambda"),
])
def test_what_cannot_be_saved_is_refused_and_nothing_written(make, error, message, tmp_path):
    with pytest.raises(error, match=message):
        save_attached(make(), tmp_path / 'folder')
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_midway_leaves_the_earlier_one(tmp_path, monkeypatch):
    model = attach(new_model('BERT'), WINDOW)
    save_attached(model, tmp_path / 'saved')

    def fail(self, folder, **options):
        Path(folder).mkdir()
        raise OSError('disk full')
    monkeypatch.setattr(transformers.PreTrainedModel, 'save_pretrained', fail)
    with pytest.raises(OSError, match='disk full'):
        save_attached(model, tmp_path / 'saved')
    assert [path.name for path in tmp_path.iterdir()] == ['saved']
    assert hidden_of(model).isfinite().all() and str(WINDOW) in str(attachment(model))
    load_attached(tmp_path / 'saved')


@pytest.mark.slow
@pytest.mark.parametrize('is_attached_before', [False, True])
@pytest.mark.parametrize('to_save', [None, ['graph_source']])
def test_adapters_of_peft_are_saved_with_their_graphs(is_attached_before, to_save, tmp_path):
    peft = pytest.importorskip('peft')
    if to_save and not is_attached_before:
        return
    new_model('Llama', DECODERS['Llama']).save_pretrained(tmp_path / 'base')
    base = transformers.LlamaForCausalLM.from_pretrained(tmp_path / 'base')
    source = LearnedMaskSource(4, 64, init_std=1.)
    if is_attached_before:
        attach(base, source)
    model = peft.get_peft_model(base, peft.LoraConfig(
        target_modules=['q_proj', 'v_proj'], init_lora_weights=False, modules_to_save=to_save,
        task_type='CAUSAL_LM'))
    if not is_attached_before:
        attach(model.get_base_model(), source)
    changed(model).eval()
    expected = model(TOKENS, use_cache=False).logits
    save_attached(model, tmp_path / 'saved')
    loaded = load_attached(tmp_path / 'saved')
    assert isinstance(loaded, peft.PeftModel)
    torch.testing.assert_close(loaded(TOKENS, use_cache=False).logits, expected)
    assert not (tmp_path / 'saved' / 'model.safetensors').exists()


def test_a_model_that_the_trainer_trained_is_saved(tmp_path):
    pytest.importorskip('accelerate')
    torch.manual_seed(0)
    model = new_model('Llama', DECODERS['Llama'])
    attach(model, LearnedMaskSource(4, 64, init_std=1.))
    before = model.model.layers[0].self_attn.graph_source.logit.clone()
    rows = [{'input_ids': row, 'labels': row} for row in TOKENS]
    trainer = transformers.Trainer(model, transformers.TrainingArguments(
        tmp_path / 'run', max_steps=2, learning_rate=.1, report_to=[], use_cpu=True,
        save_strategy='steps', save_steps=1, disable_tqdm=True), train_dataset=rows)
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / 'run' / 'checkpoint-1'))
    assert not torch.equal(model.model.layers[0].self_attn.graph_source.logit, before)
    save_attached(trainer.model, tmp_path / 'saved')
    loaded = load_attached(tmp_path / 'saved')
    torch.testing.assert_close(loaded(TOKENS, use_cache=False).logits,
                               model.eval()(TOKENS, use_cache=False).logits)
