"""The versions of packages in ``constraints.txt``: what others do may differ in detail."""

from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

VERSIONS = dict(line.split('==') for line in
                (Path(__file__).parents[1] / 'constraints.txt').read_text().splitlines()
                if '==' in line)


def is_pinned(name: str) -> bool:
    """Return whether the installed version of a package is the pinned one, of whatever build."""
    return Version(version(name)).public == VERSIONS[name]
