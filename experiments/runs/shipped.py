"""The configs of this project, which ``graphattn train --config NAME`` and ``base: NAME`` name."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / 'configs'


def config_names() -> list[str]:
    return [path.relative_to(CONFIGS).with_suffix('').as_posix()
            for path in sorted(CONFIGS.rglob('*.yaml'))]
