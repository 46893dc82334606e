"""Options of a run that follow from the user's data."""

from __future__ import annotations

from jsonargparse import Namespace

MODEL = 'model.init_args.model.init_args'


def fit_model(options: Namespace, num_classes: int, **sizes: int) -> None:
    """Write the sizes that the data require into the options of a run.

    The number of classes is set, and sizes of the encoder that are smaller than in ``sizes`` are
    raised. Options that the model lacks are skipped.
    """
    if f'{MODEL}.num_classes' in options:
        options[f'{MODEL}.num_classes'] = num_classes
    for name, size in sizes.items():
        option = f'{MODEL}.encoder.init_args.{name}'
        if option in options:
            options[option] = max(options[option], size)
