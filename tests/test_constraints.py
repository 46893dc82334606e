"""All that is installed for the tests has its version in ``constraints.txt``: a package that comes
out later breaks no test that passed before."""

from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from graphattn.hugging_face import OLDEST
from tests.pinned import VERSIONS, is_pinned

ROOT = Path(__file__).parents[1]


def requirements(name: str, extras: set[str]) -> list[Requirement]:
    """Return the requirements of an installed package here, with some of its extras."""
    asked = [Requirement(line) for line in distribution(name).requires or []]
    return [requirement for requirement in asked if requirement.marker is None
            or any(requirement.marker.evaluate({'extra': extra}) for extra in {'', *extras})]


def brought_along(name: str, extras: set[str]) -> set[str]:
    """The installed packages that a package needs, and those need, but for the ones that who asks
    for them pins, as torch does those of CUDA."""
    found: set[str] = set()
    left = [(name, frozenset(extras))]
    seen = set(left)
    while left:
        for requirement in requirements(*left.pop()):
            try:
                distribution(requirement.name)
            except PackageNotFoundError:
                continue
            if not any(bound.operator == '==' for bound in requirement.specifier):
                found.add(canonicalize_name(requirement.name))
            package = requirement.name, frozenset(requirement.extras)
            if package not in seen:
                seen.add(package)
                left.append(package)
    return found


@pytest.mark.skipif(not is_pinned('torch'), reason='other versions bring other packages along')
def test_versions_of_all_packages_are_fixed():
    pinned = {canonicalize_name(name) for name in VERSIONS}
    extras = set(distribution('graphattn').metadata.get_all('Provides-Extra'))
    needed = brought_along('graphattn', extras)
    assert needed > {'torch', 'pyyaml', 'cloudpickle'}
    assert needed <= pinned, needed - pinned


def test_the_oldest_transformers_are_those_that_attach_takes():
    setup = ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    assert f'transformers>={OLDEST}' in setup['options.extras_require']['text'].split()
