"""The option ``--attention NAME``: a config of attention, laid over the configs of a training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from torch import nn

from experiments.runs.config_file import laid_over
from experiments.runs.inputs import flat
from experiments.runs.shipped import OF_GRAPHS, OF_SEQUENCES, attention_names, unknown
from graphattn.patterns import Full
from graphattn.sources import PatternSource

MODEL = 'model.init_args.model'
FROM_MODEL = 1  # a size of a source that is taken from the model
NEARLY_FULL = 0.9  # density


def with_attention(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line with the config of ``--attention NAME``, and a folder of
    its own for the run, after the other configs."""
    names, rest = taken('--attention', arguments)
    if options := [word for word in rest if word.startswith('--attention.')]:
        raise ValueError(f"'attention' is a name without options (got {options[0]}); pass those of "
                         f"its source as --model.model.encoder.source.NAME")
    if not names:
        return rest
    configs, _ = taken('--config', ['--config' if word == '-c' else word for word in rest])
    if not configs:
        raise ValueError("'attention' requires 'config'; pass --config NAME as well")
    # other configs are texts
    given = flat(laid_over(*(Path(path) for path in configs if Path(path).is_file())), 'all')
    is_of_graphs = 'GraphTransformer' in str(given.get(f'all.{MODEL}.class_path'))
    folder, name = OF_GRAPHS if is_of_graphs else OF_SEQUENCES, names[-1]
    if name not in (known := attention_names(folder)):
        raise ValueError(unknown("'attention'", name, known))
    root = given.get('all.trainer.default_root_dir', 'runs/unnamed')
    last = max(place for place, word in enumerate(rest)
               if word in ('-c', '--config') or word.startswith('--config='))
    end = last + (1 if '=' in rest[last] else 2)
    return [*rest[:end], '--config', str(folder / f'{name}.yaml'),
            '--trainer.default_root_dir', f'{root}_{name}', *rest[end:]]


def taken(option: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of an option, and the other words."""
    values, rest, words = [], [], iter(arguments)
    for word in words:
        if word == option:
            values.append(next(words, ''))
        elif word.startswith(f'{option}='):
            values.append(word.partition('=')[2])
        else:
            rest.append(word)
    return values, rest


def fit_source(options: Namespace) -> None:
    """Write those sizes of the source of attention that are taken from the model."""
    model: Any = options.get(f'{MODEL}.init_args') or {}
    model = model.get('encoder.init_args', model)
    source = model.get('source')
    sizes = source.get('init_args') if isinstance(source, Namespace) else None
    if not sizes or sizes.get('heads') != FROM_MODEL:
        return
    for name, size in {'heads': model['heads'],
                       'head_channels': (model.get('head_channels')
                                         or model['channels'] // model['heads']),
                       'size': model.get('max_length')}.items():
        if sizes.get(name) == FROM_MODEL:
            sizes[name] = size


def nearly_full(model: nn.Module, density: Mapping[str, float]) -> str | None:
    """Return a line that says so if a fixed pattern of the model joins nearly all pairs, and
    ``None`` otherwise."""
    patterns = [pattern for source in model.modules() if isinstance(source, PatternSource)
                for pattern in source.patterns if not isinstance(pattern, Full)]
    if not patterns or not density or min(density.values()) < NEARLY_FULL:
        return None
    return (f'the pattern {patterns[0]!s:.100} joins {min(density.values()):.0%} of all pairs, '
            f'because the sequences are short: this is nearly full attention; for a sparser one, '
            f'pass another --attention (graphattn train --help), or a smaller pattern of the '
            f'source')
