"""Config files: how they are merged, parsed safely and written."""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace, get_loader, set_dumper, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from experiments.runs.command import Strict
from experiments.runs.shipped import CONFIGS, config_names, did_you_mean
from graphattn.utils.reading import check_aliases, read_yaml
from graphattn.utils.trust import importing_only

_OF_OBJECTS = {'class_path', 'init_args', 'dict_kwargs'}
_load = get_loader('yaml')  # reads 1e-3 as a number, unlike a reader of YAML 1.1


class Parser(Strict, LightningArgumentParser):
    """A parser that fills in and parses the defaults of nested classes once, not twice a level."""

    is_nested = True  # true for all parsers but the outermost

    def parse_object(self, obj: Namespace | dict[str, Any], namespace: Namespace | None = None,
                     env: bool | None = None, defaults: bool = True, **kwargs: Any) -> Namespace:
        # obj is the namespace here, and its nested values are filled in
        if defaults and self.is_nested:
            namespace, defaults = self.get_defaults(skip_validation=True), False
        return super().parse_object(obj, namespace, env, defaults, **kwargs)

    def _apply_actions(self, cfg: Namespace | dict[str, Any], *args: Any,
                       **kwargs: Any) -> Namespace:
        if not self.is_nested and isinstance(cfg, dict):
            cfg = on_its_base(cfg)
            self._check_names(cfg)
        # otherwise, obj overrides that namespace
        is_parsed = self.is_nested and not args and not kwargs
        return cfg if is_parsed else super()._apply_actions(cfg, *args, **kwargs)

    def _check_names(self, config: dict[str, Any]) -> None:
        known = self.names()
        for name, value in config.items():
            is_group = isinstance(value, dict) and any(dest.startswith(f'{name}.')
                                                       for dest in known)
            for path in [f'{name}.{key}' for key in value] if is_group else [name]:
                if path not in known:
                    raise TypeError(self.refusal(path))


def bound_aliases() -> None:
    """Let jsonargparse refuse aliases that grow exponentially, and write strings that are read back
    unchanged."""
    set_loader('yaml', _load_checked, exceptions=(yaml.YAMLError,))
    set_dumper('yaml', _dump)


def _load_checked(text: str) -> Any:
    """Parse a config, or an option, which is never None: '#1.csv' would be a comment."""
    check_aliases(text)
    try:
        value = _load(text)
    except TypeError as error:  # jsonargparse raises it for '?' and '1:'
        raise yaml.YAMLError("names of options must be strings") from error
    return text if value is None else value


class _Dumper(getattr(yaml, 'CSafeDumper', yaml.SafeDumper)):
    """A YAML dumper that quotes strings which would otherwise be read as another type."""


def _quoted_if_needed(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if _is_read_as_itself(text) else '"'
    return dumper.represent_scalar('tag:yaml.org,2002:str', text, style)


@lru_cache(maxsize=4096)
def _is_read_as_itself(text: str) -> bool:
    """Return whether jsonargparse (1e5 is a number) and PyYAML (2026-01-01 is a date) both read a
    string without quotes as itself."""
    try:
        return _load(text) == yaml.safe_load(text) == text
    except (yaml.YAMLError, TypeError, ValueError):  # ValueError: an invalid date
        return False


_Dumper.add_representer(str, _quoted_if_needed)


def _dump(config: dict[str, Any]) -> str:
    return yaml.dump(config, Dumper=_Dumper, default_flow_style=False, allow_unicode=True,
                     sort_keys=False)


def laid_over(*paths: Path) -> dict[str, Any]:
    """Read configs from files into one dict, in which later configs override earlier ones."""
    config: dict[str, Any] = {}
    for path in paths:
        lay_over(config, on_its_base(read_yaml(path)))
    return config


def on_its_base(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config, with dots in nested names, over the shipped config named by ``base``."""
    whole = {}
    if 'base' in config:
        path = CONFIGS / f'{config["base"]}.yaml'
        if path not in CONFIGS.rglob('*.yaml'):
            raise ValueError(f"'base' must be the name of a config in experiments/configs, which "
                             f"graphattn --help lists (got {config['base']!r})"
                             f"{did_you_mean(str(config['base']), config_names())}")
        whole = laid_over(path)
    for name, value in config.items():
        if name != 'base':
            for part in reversed(str(name).split('.')):
                value = {part: value}
            lay_over(whole, value)
    return whole


def lay_over(config: dict[str, Any], other: dict[str, Any]) -> None:
    """Update ``config`` by ``other``, recursively, except for arguments of another class."""
    for name, value in other.items():
        before = config.get(name)
        if isinstance(value, dict) and isinstance(before, dict) and value.get('class_path') in (
                None, before.get('class_path', value.get('class_path'))):
            lay_over(before, _with_init_args(value) if 'class_path' in before else value)
        else:
            config[name] = value


def _with_init_args(value: dict[str, Any]) -> dict[str, Any]:
    """Return what describes an object, with arguments of its class in ``init_args``, where they
    need not be written: ``data.path`` is ``data.init_args.path``, as on a command line."""
    arguments = {name: each for name, each in value.items() if name not in _OF_OBJECTS}
    if not arguments:
        return value
    of_object = {name: each for name, each in value.items() if name in _OF_OBJECTS}
    return {**of_object, 'init_args': {**of_object.get('init_args', {}), **arguments}}


def built(config: dict[str, Any], trust: Iterable[str] | None = (), **types: type) -> Namespace:
    bound_aliases()
    parser = Parser(exit_on_error=False)
    parser.is_nested = False
    for name, kind in types.items():
        parser.add_argument(f'--{name}', type=kind)
    with nullcontext() if trust is None else importing_only(trust):
        return parser.instantiate(parser.parse_object({name: config[name] for name in types}))
