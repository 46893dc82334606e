"""Save an attached model in a folder, and load it.

The folder has what ``save_pretrained`` writes for the model without its graphs, so it also loads
by ``from_pretrained``. Beside it are ``graphs.json``, the manifest, which is written last, and
``graphs.safetensors``, the parameters of sources. Nothing in the folder is executed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from graphattn import sources
from graphattn._checks import check_kind
from graphattn.hugging_face.attaching import attach, attends, forget, kept
from graphattn.hugging_face.modules import (
    attention_modules,
    check_head_numbers,
    check_unchanged,
    heads_of,
    implementations,
)
from graphattn.sources import GraphSource
from graphattn.utils.building import BoundedBuilding
from graphattn.utils.files import as_path, check_folder
from graphattn.utils.reading import read_json
from graphattn.utils.schema import Between, check_schema

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ['load_attached', 'save_attached']

FORMAT = 1
MANIFEST, GRAPHS, ADAPTER = 'graphs.json', 'graphs.safetensors', 'adapter_config.json'
COUNT, SHARE = range(1, 2**31), Between(0, 1)
LAYER = {'name': str, 'num_heads': (None, COUNT), 'heads': (None, [range(2**31)]),
         'source': (None, str), 'arguments': (None, {str: object}), 'hops': (COUNT, 'inf'),
         'teleport': (SHARE, [SHARE]), 'backend': str, 'is_named': bool, 'learn_teleport': bool}
SCHEMA = {'format': FORMAT, 'model': str, 'layers': [LAYER], 'num_modules': COUNT,
          'implementations': {str: object}, 'files': {str: range(2**63)}, 'hash': str}
# transformers fetches and runs the code of implementations with '/' in their names.
IMPLEMENTATIONS: dict = {'': (None, re.compile(r'(?!graphattn)[\w|]+'))}
IMPLEMENTATIONS[str] = IMPLEMENTATIONS
# PEFT imports the module that it calls 'megatron_core' if there is a 'megatron_config'.
OF_ADAPTER = {'base_model_name_or_path': (None, str), 'megatron_config?': None, str: object}


def save_attached(model: PreTrainedModel, folder: str | PathLike, **options: Any) -> None:
    """Write an attached model, its sources and their parameters to a folder.

    Of a PEFT model, only the adapters are written. :func:`load_attached` then loads the base model
    from the path in their config, or takes it as an argument. Other files in the folder stay.

    Args:
        model (PreTrainedModel): An attached model, or a PEFT model around one.
        folder (path): The folder, created if it does not exist. The manifest ``graphs.json`` is
            written last, so that an interrupted save cannot be loaded.
        **options: Arguments of ``save_pretrained``, such as ``max_shard_size``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The model is not attached or was changed since, the folder cannot be written, or
            a source cannot be built from its arguments
            (:meth:`graphattn.sources.GraphSource.arguments`).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from graphattn.hugging_face import attach, attachment, load_attached, save_attached
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> with TemporaryDirectory() as folder:
        ...     save_attached(attach(bert, 'SlidingWindow(4)'), folder)
        ...     loaded = load_attached(folder)
        >>> print(attachment(loaded))
        layer                           heads  along                    hops
        encoder.layer.0.attention.self  all    SlidingWindow(radius=4)  1
    """
    from safetensors.torch import save_file

    folder = as_path('folder', folder)
    check_kind('model', model, nn.Module)
    is_adapted = hasattr(model, 'peft_config') and hasattr(model, 'get_base_model')
    base = model.get_base_model() if is_adapted else model
    check_unchanged(base)
    modules = attention_modules(base)
    attached = {name: module for name, module in modules.items() if attends(module)}
    if not attached:
        raise ValueError("'model' must be a model to which graphs are attached (got a model "
                         "without graphs); call attach first, or save the model by save_pretrained")
    check_folder('folder', folder)
    own = {'layers': [_layer(name, module) for name, module in attached.items()],
           'num_modules': len(modules)}
    tensors = {f'{name}.{key}': value.detach().cpu().clone().contiguous()
               for name, module in attached.items() for key, value in _state_of(module).items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f'.{folder.name}-') as temporary:
        written = Path(temporary) / 'written'
        with kept(base):
            forget(base)
            own['implementations'] = implementations(base.config)
            model.save_pretrained(written, **options)
        save_file(tensors, written / GRAPHS)
        manifest = {'format': FORMAT, 'model': _name_of(type(base)), **own,
                    'files': _sizes(written), 'hash': _hash(written / GRAPHS)}
        (written / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding='utf-8')
        _move(written, folder)


def load_attached(folder: str | PathLike, model: PreTrainedModel | None = None, *,
                  classes: Sequence[type] = (), **options: Any) -> PreTrainedModel:
    """Load a model that :func:`save_attached` wrote, attached to its graphs.

    The files can only build classes of transformers, of this library, and of ``classes``.

    Args:
        folder (path): The folder.
        model (PreTrainedModel, optional): A model to attach like the saved one; it is not attached
            yet and keeps its own weights. For adapters of PEFT, their base model. If omitted, the
            model is loaded from the folder.
        classes (sequence of type): Further classes of models and sources that the files may build.
        **options: Arguments of ``from_pretrained``, such as ``dtype``.

    Returns:
        The model; for adapters, the PEFT model around it.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The folder is damaged, or of another version, or names other classes; or
            ``model`` has other layers or heads.
    """
    folder = as_path('folder', folder)
    manifest = _read(folder)
    kinds = [layer['source'] and _found(folder, layer['source'], 'graphattn', GraphSource, classes)
             for layer in manifest['layers']]
    if _hash(folder / GRAPHS) != manifest['hash']:
        raise _damaged(folder, f"{GRAPHS} has other content than 'hash' says")
    tensors = _loaded(folder, GRAPHS)
    is_adapter, is_given = ADAPTER in manifest['files'], model is not None
    if not is_given:
        model = _load_model(folder, manifest, is_adapter, classes, options)
    _check_same(folder, manifest, model)
    base = model
    if is_adapter:  # before it is attached, because PEFT would look for its own copies of sources
        model = _load_adapters(folder, model)
    wrong = KeyError, TypeError, RuntimeError, *([] if is_given else [ValueError])
    built = [_built(folder, *each, tensors) for each in zip(manifest['layers'], kinds)]
    try:
        for layer, source in zip(manifest['layers'], built):
            _attach(base, layer, source, tensors)
    except wrong as error:
        forget(base)
        raise _damaged(folder, error) from error
    return model


# Writing #############################################################################


def _layer(name: str, module: nn.Module) -> dict[str, Any]:
    state, source = module.graph_attachment, _source(module)
    try:
        arguments = None if source is None else source.arguments()
    except ValueError as error:
        raise ValueError(f"'model' must have only sources that can be saved, but the source of "
                         f"{name!r} cannot: {error}") from error
    return {'name': name, 'num_heads': heads_of(module), 'heads': state.heads,
            'source': None if source is None else _name_of(type(source)), 'arguments': arguments,
            'hops': str(state.hops) if state.hops == float('inf') else state.hops,
            'teleport': state.teleport, 'backend': state.backend, 'is_named': state.is_named,
            'learn_teleport': hasattr(module, 'graph_teleport_logit')}


def _source(module: nn.Module) -> GraphSource | None:
    # PEFT may have wrapped it (modules_to_save).
    source = getattr(module, 'graph_source', None)
    copies = getattr(source, 'modules_to_save', None)
    if copies is not None:
        source = copies[source.active_adapters[0]]
    if source is not None and not isinstance(source, GraphSource):
        raise ValueError(f"'model' must have GraphSources as the sources of its layers to be saved "
                         f"(got {type(source).__name__}); remove wrappers around the sources first")
    return source


def _state_of(module: nn.Module) -> dict[str, Tensor]:
    source, logit = _source(module), getattr(module, 'graph_teleport_logit', None)
    state = {} if source is None else source.state_dict()
    return {f'graph_source.{key}': value for key, value in state.items()} | (
        {} if logit is None else {'graph_teleport_logit': logit})


def _name_of(kind: type) -> str:
    return f'{kind.__module__}.{kind.__qualname__}'


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(folder.rglob('*')) if path.is_file()}


def _hash(path: Path) -> str:
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _move(written: Path, folder: Path) -> None:
    # The old manifest is removed first, and the new one is moved last.
    if not folder.exists():
        written.chmod(0o755)
        written.rename(folder)
        return
    try:
        earlier = list(read_json(folder / MANIFEST)['files'])
    except (OSError, ValueError, KeyError, TypeError):
        earlier = []
    (folder / MANIFEST).unlink(missing_ok=True)
    for name in earlier:
        if not os.path.isabs(name) and '..' not in Path(name).parts:
            (folder / name).unlink(missing_ok=True)
    for name in [*_sizes(written).keys() - {MANIFEST}, MANIFEST]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).replace(folder / name)


# Reading #############################################################################


def _read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder, all of whose files exist and have the right sizes."""
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"'folder' must be a folder that save_attached has written completely "
                         f"(got {folder} without {MANIFEST}); call save_attached again, or load "
                         f"the model by from_pretrained and call attach")
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    if manifest.get('format') != FORMAT:
        raise ValueError(f"'folder' must have format {FORMAT} (got {manifest.get('format')!r} in "
                         f"{folder}); update graphattn, or save the folder again with the version "
                         f"that wrote it")
    _check_fields(folder, manifest, SCHEMA, MANIFEST)
    names = [layer['name'] for layer in manifest['layers']]
    if len(set(names)) < len(names) or not {GRAPHS} <= manifest['files'].keys():
        raise _damaged(folder, f"{MANIFEST} must have each layer once, and {GRAPHS} in 'files'")
    for name, size in manifest['files'].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise _damaged(folder, f'{name} must have {size:,} bytes')
    return manifest


def _damaged(folder: Path, why: object) -> ValueError:
    return ValueError(f"'folder' must be a folder that save_attached wrote (got {folder}, which is "
                      f"damaged: {' '.join(str(why).split())}); call save_attached again")


def _check_fields(folder: Path, found: Any, schema: Any, name: str) -> None:
    try:
        check_schema(found, schema, name)
    except ValueError as error:
        raise _damaged(folder, error) from error


def _loaded(folder: Path, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / name)
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, f'{name}: {error}') from error


def _found(folder: Path, name: str, package: str, kind: type, classes: Sequence[type]) -> type:
    # Files may be untrusted: only given classes, or public ones of the package, are built.
    for given in classes:
        if _name_of(given) == name:
            return given
    module, _, own = name.rpartition('.')
    if module.split('.')[0] != package:
        raise ValueError(f"'classes' must contain {name}, because the files in {folder} may only "
                         f"name classes of graphattn or classes that you trust; pass classes=[...] "
                         f"with this class if you trust it")
    public = sources if package == 'graphattn' else importlib.import_module(package)
    found = getattr(public, own, None)
    if not inspect.isclass(found) or not issubclass(found, kind):
        raise ValueError(f"'folder' must name a public class of {package} (got {name} in "
                         f"{folder}); update {package}, or pass this class in 'classes'")
    return found


def _built(folder: Path, layer: dict[str, Any], kind: type | None,
           tensors: dict[str, Tensor]) -> GraphSource | None:
    if (kind is None) != (layer['arguments'] is None):
        raise _damaged(folder, f"{layer['name']!r} must have 'source' and 'arguments', or neither")
    if kind is None:
        return None
    try:
        with BoundedBuilding(tensors.values()):
            return kind(**layer['arguments'])
    except Exception as error:  # arguments of another type raise any error
        raise _damaged(folder, f"'arguments' of {layer['name']!r}: {error}") from error


def _load_model(folder: Path, manifest: dict[str, Any], is_adapter: bool, classes: Sequence[type],
                options: dict[str, Any]) -> PreTrainedModel:
    from transformers import PreTrainedModel

    kind = _found(folder, manifest['model'], 'transformers', PreTrainedModel, classes)
    if 'attn_implementation' not in options:
        _check_fields(folder, manifest['implementations'], IMPLEMENTATIONS, "'implementations'")
        options = {'attn_implementation': manifest['implementations'], **options}
    path = _base_of_adapter(folder) if is_adapter else folder
    try:
        with BoundedBuilding(_weights(path)):
            return kind.from_pretrained(path, **options)
    except Exception as error:  # damaged files raise any error
        raise ValueError(f"'folder' must be a folder that {kind.__name__}.from_pretrained can load "
                         f"with these 'options' (got {path}: {' '.join(str(error).split())})"
                         ) from error


def _load_adapters(folder: Path, model: nn.Module) -> nn.Module:
    from peft import PeftModel

    _read_adapter(folder)
    try:
        with BoundedBuilding([*_weights(folder), *model.parameters()]):
            return PeftModel.from_pretrained(model, folder)
    except Exception as error:  # damaged files raise any error
        raise _damaged(folder, error) from error


def _weights(folder: Path) -> list[Tensor]:
    """Return the tensors of all safetensors files in a folder, which are not read yet."""
    return [tensor for path in sorted(folder.glob('*.safetensors'))
            for tensor in _loaded(folder, path.name).values()]


def _read_adapter(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / ADAPTER)
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    _check_fields(folder, config, OF_ADAPTER, ADAPTER)
    return config


def _base_of_adapter(folder: Path) -> Path:
    path = _read_adapter(folder)['base_model_name_or_path']
    if not path or not Path(path).is_dir():  # a name of a hub would be fetched
        raise ValueError(f"'model' must be given, because the adapters in {folder} do not name the "
                         f"folder of their base model (got {path!r}); pass the base model")
    return Path(path)


def _check_same(folder: Path, manifest: dict[str, Any], model: nn.Module) -> None:
    modules = attention_modules(model)
    if len(modules) != manifest['num_modules']:
        raise ValueError(f"'model' must have {manifest['num_modules']} attention modules, like the "
                         f"model saved in {folder} (got {len(modules)}); pass a model of this size")
    for layer in manifest['layers']:
        if layer['name'] not in modules:
            raise ValueError(f"'model' must have an attention module {layer['name']!r}, like the "
                             f"model saved in {folder} (got {next(iter(modules))!r}); pass a model "
                             f"of the class that was saved")
        heads = heads_of(modules[layer['name']])
        if heads != layer['num_heads']:
            raise ValueError(f"'model' must have {layer['num_heads']} heads in {layer['name']!r}, "
                             f"like the model saved in {folder} (got {heads}); pass a model of "
                             f"this size")
        if layer['heads'] is not None:
            try:
                check_head_numbers(layer['heads'], layer['name'], modules[layer['name']])
            except ValueError as error:
                raise _damaged(folder, error) from error


def _attach(model: nn.Module, layer: dict[str, Any], source: GraphSource | None,
            tensors: dict[str, Tensor]) -> None:
    attach(model, source, layers=[layer['name']], backend=layer['backend'],
           hops=float(layer['hops']) if isinstance(layer['hops'], str) else layer['hops'],
           teleport=layer['teleport'], learn_teleport=layer['learn_teleport'])
    module, heads = model.get_submodule(layer['name']), layer['heads']
    module.graph_attachment = replace(module.graph_attachment, is_named=layer['is_named'],
                                      heads=None if heads is None else tuple(heads))
    state = {key: tensors[f'{layer["name"]}.{key}'] for key in _state_of(module)}
    module.load_state_dict(state, strict=False)
