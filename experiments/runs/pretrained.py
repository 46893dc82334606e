"""Pre-trained models as the beginning of other models."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import Namespace
from torch import nn

from experiments.runs.checkpoints import read_checkpoint
from experiments.runs.config_file import built
from graphattn.models import (
    Encoder,
    MaskedLanguageModel,
    SequenceClassifier,
    encoder_of,
    load_bert,
    load_roberta,
)
from graphattn.patterns import Full, Pattern
from graphattn.sources import GraphSource, LearnedMaskSource, PatternSource, as_source
from graphattn.utils.building import BoundedBuilding, check_finite
from graphattn.utils.reading import load_tensors, read_json, read_yaml


def pretrained_classifier(
    checkpoint: str | Path,
    num_classes: int,
    *,
    source: GraphSource | Pattern | str | None = None,
    freeze_how: Literal['threshold', 'sample', 'top-k'] | None = None,
    sparsity: float | None = None,
    pooling: Literal['pooler', 'mean'] = 'pooler',
    dropout: float = 0.1,
) -> SequenceClassifier:
    """Return a classifier with encoder and pooler of a masked language model, and a new head."""
    model, encoder_arguments = _load(Path(checkpoint))
    if source is not None:
        encoder = _with_source(model.encoder, encoder_arguments, as_source(source))
        num_frozen = 0
    else:
        encoder = model.encoder
        num_frozen = _freeze_masks(encoder, freeze_how or 'threshold', sparsity)
    for name, value in (('freeze_how', freeze_how), ('sparsity', sparsity)):
        if value is not None and num_frozen == 0:
            raise ValueError(f"'{name}' requires a pre-trained model with a learned mask (got "
                             f"{value!r}, and a model without a mask); omit '{name}'")
    classifier = SequenceClassifier(encoder, num_classes, pooling=pooling, dropout=dropout)
    if pooling == 'pooler':
        if model.pooler is None:
            raise ValueError(f"'pooling' must be 'mean', because the model in {checkpoint} has no "
                             f"pooler; pass pooling='mean'")
        classifier.pooler.load_state_dict(model.pooler.state_dict())
    return classifier


def load_encoder(encoder: Encoder, checkpoint: str | Path) -> None:
    """Load the parameters of a trained encoder, those of sources included, into an encoder of the
    same sizes, whose sources may be the causal form."""
    _load_learned(encoder, checkpoint, 'model.encoder.', 'encoder')


def tokenizer_of(checkpoint: str | Path) -> Path:
    return Path(checkpoint).parent.parent / 'tokenizer.json'


def load_model(model: nn.Module, checkpoint: str | Path) -> None:
    _load_learned(model, checkpoint, 'model.', 'parameters')


def _load_learned(module: nn.Module, checkpoint: str | Path, prefix: str, what: str) -> None:
    try:
        saved = read_checkpoint(Path(checkpoint))['state_dict']
    except (OSError, ValueError) as error:
        raise ValueError(f"'pretrained' cannot be read: {checkpoint} ({error})") from error
    weights = {name.removeprefix(prefix): value for name, value in saved.items()
               if name.startswith(prefix)}
    mine, theirs = ({name: tuple(value.shape) for name, value in state.items()}
                    for state in (module.state_dict(), weights))
    if mine != theirs:
        name = min(name for name in mine.keys() | theirs.keys()
                   if mine.get(name) != theirs.get(name))
        raise ValueError(f"'pretrained' must fit the {what} of this model (got {theirs.get(name)} "
                         f"for {name!r} in {checkpoint}, and {mine.get(name)} here)")
    module.load_state_dict(weights)


def roberta(
    weights: str | Path,
    model: SequenceClassifier | MaskedLanguageModel,
    *,
    tile_positions: bool = True,
) -> nn.Module:
    """Return ``model`` with the weights of a RoBERTa, whose tokenizer the data need."""
    from safetensors.torch import load_file

    config_path = Path(weights).parent / 'config.json'
    try:
        state_dict = (load_file(weights) if Path(weights).suffix == '.safetensors'
                      else load_tensors(Path(weights)))
        config = read_json(config_path)
    except Exception as error:  # unpickling, safetensors and JSON raise many types of errors
        raise ValueError(f"'weights' cannot be read: {weights} with {config_path} "
                         f"({error})") from error
    load_roberta(model, state_dict, config, tile_positions=tile_positions)
    return model


def begun_classifier(weights: str | Path, num_classes: int,
                     dropout: float = 0.1) -> SequenceClassifier:
    """Return a classifier with full attention and the weights of a BERT or RoBERTa, whose tokenizer
    the data need, from its folder."""
    encoder = encoder_of(weights, Full())
    model = SequenceClassifier(encoder, num_classes, pooling='pooler', dropout=dropout)
    is_bert = read_json(Path(weights) / 'config.json').get('model_type') == 'bert'
    (load_bert if is_bert else load_roberta)(model, weights)
    return model


def rebuilt(checkpoint: Path, read: Callable[[Path], dict], argument: str,
            trust: Iterable[str] = (), **others: type) -> Namespace:
    """Return the model in a checkpoint with its weights, and ``others`` of the config of its run;
    errors name the ``argument``."""
    path = _config_path(checkpoint)
    try:
        saved, config = read(checkpoint)['state_dict'], read_yaml(path)
        check_finite(saved, 'in this checkpoint')
        with BoundedBuilding(saved.values()):
            made = built(config | {'model': config['model']['init_args']['model']}, trust,
                         model=nn.Module, **others)
        made.model.load_state_dict({name.removeprefix('model.'): value for name, value in
                                    saved.items() if name.startswith('model.')})
    except Exception as error:  # unpickling, YAML and the named classes raise many types of errors
        raise ValueError(f"'{argument}' cannot be read: {checkpoint} with {path} "
                         f"({error})") from error
    return made


def _config_path(checkpoint: Path) -> Path:
    return checkpoint.parent.parent / 'config.yaml'


def _load(checkpoint: Path) -> tuple[MaskedLanguageModel, dict]:
    model = rebuilt(checkpoint, read_checkpoint, 'pretrained').model
    if not isinstance(model, MaskedLanguageModel):
        raise ValueError(f"'pretrained' must be a checkpoint of a MaskedLanguageModel (got "
                         f"{checkpoint}, a checkpoint of a {type(model).__name__})")
    config = read_yaml(_config_path(checkpoint))['model']['init_args']['model']
    return model, config['init_args']['encoder']['init_args']


def _freeze_masks(encoder: Encoder, how: str, sparsity: float | None) -> int:
    """Replace the learned masks of an encoder by fixed masks, in place, and return how many masks
    were replaced."""
    # The generator is separate, so that the masks depend only on the seed of the run.
    generator = torch.Generator().manual_seed(torch.initial_seed())
    learned = [(parent, name, child) for parent in encoder.modules()
               for name, child in parent.named_children() if isinstance(child, LearnedMaskSource)]
    for parent, name, source in learned:
        setattr(parent, name, PatternSource(source.freeze(how, sparsity, generator=generator)))
    return len(learned)


def _with_source(encoder: Encoder, arguments: dict, source: GraphSource) -> Encoder:
    """Return a copy of ``encoder``, built from its arguments, with another source, which layers
    share if it has no parameters."""
    has_parameters = next(source.parameters(), None) is not None
    sizes = {name: value for name, value in arguments.items()
             if name not in ('source', 'share_source')}
    renewed = Encoder(source, **sizes,
                      share_source=not has_parameters or arguments.get('share_source', False))
    weights = {name: value for name, value in encoder.state_dict().items()
               if 'source' not in name.split('.')}
    missing, unexpected = renewed.load_state_dict(weights, strict=False)
    assert not unexpected and all('source' in name.split('.') for name in missing)
    return renewed
