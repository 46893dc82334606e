"""The plug-in of pytest, with the fixture ``check_attention``. Imports are deferred to its first
use."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def check_attention() -> Callable[..., Any]:
    """Return :func:`graphattn.testing.check_attention`, which raises if an implementation of
    attention is wrong."""
    from graphattn.testing import check_attention
    return check_attention
