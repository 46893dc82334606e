"""Rows from all processes."""

from __future__ import annotations

import torch.distributed as dist


def gathered(rows: list) -> list:
    """Return the rows of all processes in one sorted list, which does not depend on the number of
    processes."""
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, rows)
        rows = [row for part in parts for row in part]
    return sorted(rows)
