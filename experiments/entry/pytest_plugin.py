"""Plug-in of pytest: the fixture ``check_attention``. Nothing heavy is imported before its use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def check_attention() -> Callable[..., Any]:
    """Return :func:`graphattn.testing.check_attention`, which raises if something is wrong."""
    from graphattn.testing import check_attention

    def check(*arguments: Any, **options: Any) -> Any:
        return check_attention(*arguments, **options).check()

    return check
