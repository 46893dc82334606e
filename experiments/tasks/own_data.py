"""What a task whose data are the user's decides about the run."""

from __future__ import annotations

from jsonargparse import Namespace

MODEL = 'model.init_args.model.init_args'


def fit_model(options: Namespace, num_classes: int, **sizes: int) -> None:
    """Writes into the options of a run as many classes as there are, and the ``sizes`` of the
    encoder where those that stand there are smaller; what a model of another kind does not have is
    left out."""
    if f'{MODEL}.num_classes' in options:
        options[f'{MODEL}.num_classes'] = num_classes
    for name, size in sizes.items():
        option = f'{MODEL}.encoder.init_args.{name}'
        if option in options:
            options[option] = max(options[option], size)
