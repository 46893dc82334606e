"""A trainer with the members that a task reads."""

from types import SimpleNamespace


def trainer(rank=0, world_size=1):
    """Return the trainer of an epoch that has just begun."""
    progress = SimpleNamespace(current=SimpleNamespace(processed=0),
                               total=SimpleNamespace(processed=0))
    return SimpleNamespace(world_size=world_size, global_rank=rank, fit_loop=SimpleNamespace(
        epoch_loop=SimpleNamespace(batch_progress=progress)))
