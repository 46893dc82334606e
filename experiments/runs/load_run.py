"""Loading of trained runs in Python."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L

from experiments.runs.checkpoints import BEST, LAST, read_checkpoint
from experiments.runs.command import in_short
from experiments.runs.config_file import built
from experiments.runs.versions import versions
from graphattn.utils.building import BoundedBuilding
from graphattn.utils.reading import read_json, read_yaml
from graphattn.utils.schema import check_schema
from graphattn.utils.trust import Untrusted

if TYPE_CHECKING:
    from tokenizers import Tokenizer


CLASS = {'class_path': str, 'init_args?': {str: object}, 'dict_kwargs?': {str: object}}
SCHEMA = {'model': CLASS, 'data': CLASS, 'seed_everything': range(2**32),
          'trainer?': {str: object}, 'select_on?': (None, str), 'logger?': (None, str),
          'checkpoint_every?': (None, range(1, 2**63)), 'seeds?': (None, range(1, 2**63))}


class Run(NamedTuple):
    """A loaded run: its trained module, its data, its config, and names.

    Attributes:
        module (LightningModule): The trained module, in evaluation mode. Call its ``model`` with
            tokens and ``ptr``.
        data (LightningDataModule): The data of the training.
        config (dict): All options, resolved.
        tokenizer (tokenizers.Tokenizer, optional): The tokenizer of a run on text; ``None`` for
            other runs.
        classes (list of str, optional): The names of the classes. Empty if the task predicts a
            score, and ``None`` if classes have no names.
    """

    module: L.LightningModule
    data: L.LightningDataModule
    config: dict[str, Any]
    tokenizer: Tokenizer | None
    classes: list[str] | None


def load_run(folder: str | Path, trust: Iterable[str] = ()) -> Run:
    """Load a run with the weights that were tested.

    They are the last weights, or the best if ``select_on`` chose them.

    Args:
        folder: The folder of the run, its ``--trainer.default_root_dir``.
        trust: Packages whose classes the run's config.yaml may name, such as ``'mypackage.'``,
            besides graphattn, experiments, torch.nn and torch_geometric.transforms. Classes of
            other packages could run any command.

    Raises:
        OSError: A file of the run is missing.
        ValueError: A file is damaged or of another version (the message names the difference), or
            config.yaml names a class that is not trusted. Such a class is not imported.

    Example::

        import experiments

        run = experiments.load_run('runs/digits/sbm')
        run.data.prepare_data()
        run.data.setup('test')
        tokens, ptr, label = next(iter(run.data.test_dataloader()))
        guess = run.module.model(tokens, ptr).argmax(dim=1)
    """
    folder = Path(folder)
    config = read_config(folder)
    path = tested_checkpoint(folder, config)
    try:
        checkpoint = read_checkpoint(path)
    except ValueError as error:
        raise ValueError(f'{path} cannot be read ({error})') from error
    try:
        with BoundedBuilding(checkpoint['state_dict'].values()):
            made = built(config, trust, model=L.LightningModule, data=L.LightningDataModule)
    except Untrusted as error:
        raise ValueError(f"{folder / 'config.yaml'}: {error}") from error
    except Exception as error:  # the named classes can raise any error
        raise ValueError(f"{folder}: the model or data in config.yaml cannot be built "
                         f"{_other_versions(folder)}: {in_short(error)}") from error
    try:
        made.model.load_state_dict(checkpoint['state_dict'])
    except RuntimeError as error:
        raise ValueError(f"{folder}: the weights do not fit the model in config.yaml "
                         f"{_other_versions(folder)}: {in_short(error)}") from error
    if state := checkpoint.get(type(made.data).__qualname__):  # Lightning's key
        made.data.load_state_dict(state)
    path, tokenizer = folder / 'tokenizer.json', None
    if not path.exists():
        path = getattr(made.data, 'tokenizer_path', None) or getattr(made.model, 'tokenizer_path',
                                                                     None)  # of a pre-trained model
    if path is not None:
        made.data.tokenizer_path = str(path)
        tokenizer = made.data.load_tokenizer()
    return Run(made.model.eval(), made.data, config, tokenizer,
               getattr(made.data, 'classes', None))


def read_config(folder: Path) -> dict[str, Any]:
    """Return what config.yaml in the folder of a run contains, after checking its fields."""
    path = folder / 'config.yaml'
    if not path.exists():
        runs = ', '.join(sorted(path.parent.name for path in folder.glob('*/config.yaml')))
        raise FileNotFoundError(f"{folder} must be the folder of a run, with a config.yaml (got "
                                f"none{f'; there are runs in {runs}' if runs else ''})")
    config = read_yaml(path)
    check_schema(config, SCHEMA, str(path))
    return config


def tested_checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """Return the checkpoint whose weights the run in a folder has tested."""
    checkpoints = folder / 'checkpoints'
    has_best = config.get('select_on') is not None and (checkpoints / BEST).exists()
    return checkpoints / (BEST if has_best else LAST)


def _other_versions(folder: Path) -> str:
    """Return a text in brackets that lists the packages whose versions differ between a run and
    this installation."""
    try:
        saved = read_json(folder / 'summary.json')['versions']
        other = [f'{name} {saved.get(name)} instead of {version}'
                 for name, version in versions().items() if saved.get(name) != version]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f'(its versions are unknown: {error})'
    return f"(the run has {', '.join(other) or 'the same versions'})"
