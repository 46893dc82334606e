"""Config files: what they say together, that none is longer than it looks, and that each string in
them stays one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace, get_loader, set_dumper, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from graphattn.utils.reading import check_aliases, read_yaml
from graphattn.utils.trust import importing_only

_load = get_loader('yaml')  # which knows 1e-3 as a number, as YAML 1.1 does not


class Parser(LightningArgumentParser):
    """Parses as jsonargparse does, which fills in the defaults of nested classes twice at each
    level, and parses what they already have once more: at the fourth level, sixteen times. This one
    does both once."""

    is_nested = True  # all are but the outermost

    def parse_object(self, obj: Namespace | dict[str, Any], namespace: Namespace | None = None,
                     env: bool | None = None, defaults: bool = True, **kwargs: Any) -> Namespace:
        if defaults and self.is_nested:  # obj is the namespace, and what is nested there is filled
            namespace, defaults = self.get_defaults(skip_validation=True), False
        return super().parse_object(obj, namespace, env, defaults, **kwargs)

    def _apply_actions(self, cfg: Namespace | dict[str, Any], *args: Any,
                       **kwargs: Any) -> Namespace:
        is_parsed = self.is_nested and not args and not kwargs  # that namespace; else obj, over it
        return cfg if is_parsed else super()._apply_actions(cfg, *args, **kwargs)


def bound_aliases() -> None:
    """Have jsonargparse refuse YAML whose aliases multiply, nine times nine and so on, and write
    and read each string as that string."""
    set_loader('yaml', _load_checked, exceptions=(yaml.YAMLError,))
    set_dumper('yaml', _dump)


def _load_checked(text: str) -> Any:
    """Load a config, or the value of one option. Of the values only 'null', which does not come
    here, stands for none; '#1.csv' would be a comment."""
    check_aliases(text)
    try:
        value = _load(text)
    except TypeError as error:  # jsonargparse's own, of '?' and '1:'
        raise yaml.YAMLError('a name must be a text') from error
    return text if value is None else value


class _Dumper(yaml.SafeDumper):
    """Quotes each string that a reader would take for something else."""


def _quoted_if_needed(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if _is_read_as_itself(text) else '"'
    return dumper.represent_scalar('tag:yaml.org,2002:str', text, style)


def _is_read_as_itself(text: str) -> bool:
    """Return whether jsonargparse (1e5 is a number) and PyYAML (2026-01-01 is a date) both do."""
    try:
        return _load(text) == yaml.safe_load(text) == text
    except (yaml.YAMLError, TypeError, ValueError):  # ValueError: a date that is none
        return False


_Dumper.add_representer(str, _quoted_if_needed)


def _dump(config: dict[str, Any]) -> str:
    return yaml.dump(config, Dumper=_Dumper, default_flow_style=False, allow_unicode=True,
                     sort_keys=False)


def laid_over(*paths: Path) -> dict[str, Any]:
    """Read configs, each laid over those before it, as the command line does.

    Raises:
        ValueError: One of them is not YAML.
        OSError: One of them cannot be read.
    """
    config: dict[str, Any] = {}
    for path in paths:
        lay_over(config, read_yaml(path))
    return config


def lay_over(config: dict[str, Any], other: dict[str, Any]) -> None:
    """Let ``other`` have the last word in ``config``."""
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(config.get(name), dict):
            lay_over(config[name], value)
        else:
            config[name] = value


def built(config: dict[str, Any], trust: Iterable[str] | None = (), **types: type) -> Namespace:
    """Build what entries of a config describe.

    Args:
        config (dict): With ``class_path`` and ``init_args`` at each of the names.
        trust (iterable of str, optional): Packages whose classes the config may name, beside
            those of :data:`graphattn.utils.trust.TRUSTED`; all that there are if ``None``.
        **types: The class that the one at a name must be of.

    Raises:
        Exception: Whatever jsonargparse, or what is built, raises.
    """
    bound_aliases()
    parser = Parser(exit_on_error=False)
    parser.is_nested = False
    for name, kind in types.items():
        parser.add_argument(f'--{name}', type=kind)
    with nullcontext() if trust is None else importing_only(trust):
        return parser.instantiate(parser.parse_object({name: config[name] for name in types}))
