"""Give each head of a dense Hugging Face model a graph, train it a little, and report.

    graphattn sparsify --model FOLDER --data text.txt --density 0.05 --steps 300 --out sparse
    graphattn sparsify --model FOLDER --data ids.npy --loss 1.01 --out sparse
    graphattn sparsify --model FOLDER --data ids.npy --candidates '[windows,clusters]' --out sparse

``graphattn.hugging_face.load_attached(folder)`` then loads the model from the folder ``--out``. If
the command is interrupted, the same command continues.
"""

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from experiments.runs.command_line import run_function
from experiments.surgery import (
    Adaptation,
    adapt,
    check_lora,
    loss_of,
    mean_loss,
    read_tokens,
    with_adapters,
)
from experiments.surgery.report import costs_of_lengths, write_report
from experiments.surgery.tokens import PADDING
from graphattn.hugging_face import (
    Fit,
    Profile,
    attach,
    fit,
    fit_to_loss,
    head_costs,
    profile,
    save_attached,
)
from graphattn.hugging_face.profiling import CANDIDATES
from graphattn.utils.files import check_folder, write_whole
from graphattn.utils.reading import read_array, read_json
from graphattn.utils.schema import Array, check_schema

OPTIONS, RESULTS, STATE = 'sparsify.json', 'results.json', 'adapting.pt'


def main(
    model: str,
    data: str,
    out: str,
    density: float = 0.05,
    loss: float | None = None,
    steps: int = 300,
    lr: float = 2e-4,
    batch_size: int = 4,
    distill: float = 0.,
    length: int | None = None,
    mask_token: int | None = None,
    leave_one_out: bool = True,
    candidates: Sequence[str] = ('windows',),
    lora: int | None = None,
    profiled: int = 16,
    held_out: int = 32,
    seed: int = 0,
) -> None:
    """Profile a model, fit a pattern to each head, train the model along these patterns, and write
    all results.

    Args:
        model: The folder of a language model, as ``save_pretrained`` writes it.
        data: A text file, which the model's tokenizer reads, or an ``.npy`` file of token ids with
            -1 for padding.
        out: The folder to write: the attached model, ``report.html`` and ``results.json``.
        density: Fraction of the allowed pairs of tokens that are edges, over all heads.
        loss: Maximum ratio of the loss before training to the dense model's loss, such as 1.01. If
            given, the command finds the smallest density with this loss, and ``density`` is not
            used.
        steps: Number of training steps along the graphs.
        lr: Learning rate of AdamW.
        batch_size: Number of sequences in a training step.
        distill: Weight in the loss of the divergence from the dense model's predictions, from 0 to
            1.
        length: Number of tokens of a sequence; if omitted, the maximum of the model.
        mask_token: Id of the mask, for a model of masked tokens.
        leave_one_out: Whether to measure for each head how much the loss rises if only this head is
            sparse. The fit then gives more edges to heads that cost more.
        candidates: The sets of patterns from which the fit chooses: windows, strided, clusters and
            random. The clusters differ from head to head, and their edges grow with the square of
            the length. Random keys change while a sequence grows, so that generation needs
            ``use_cache=False``.
        lora: Rank of LoRA adapters. If given, adapters are trained instead of the weights, and
            merged into the weights at the end. This needs the package peft.
        profiled: Number of sequences to profile.
        held_out: Number of sequences on which losses are measured and the model is not trained.
        seed: Seed of the training.
    """
    options = dict(locals()) | {'candidates': list(candidates)}
    for name, count in (('batch_size', batch_size), ('profiled', profiled), ('held_out', held_out)):
        if count < 1:
            raise ValueError(f"'{name}' must be positive (got {count})")
    if steps < 0 or not 0 <= distill <= 1 or not lr > 0:
        raise ValueError(f"'steps' must be at least 0, 'lr' positive and 'distill' from 0 to 1 "
                         f"(got {steps}, {lr} and {distill})")
    for name in candidates or ['nothing']:
        if name not in CANDIDATES:
            raise ValueError(f"'candidates' must contain only names from {', '.join(CANDIDATES)} "
                             f"(got {name!r})")
    if lora is not None:
        check_lora(lora)
    folder = Path(out)
    check_folder('out', folder)
    _check_options(folder, options)
    dense = load_model(Path(model))
    tokens = read_tokens(Path(data), Path(model), _length(dense, length), dense.config.vocab_size)
    if len(tokens) <= held_out:
        raise ValueError(f"'data' must contain more than {held_out} sequences, the number of "
                         f"'held_out' sequences (got {len(tokens)})")
    surgery = Surgery(dense, tokens[held_out:], tokens[:held_out], folder, batch_size, mask_token)
    write_whole(folder / OPTIONS, lambda path: path.write_text(json.dumps(options, indent=1)))
    measured = surgery.profile(profiled, [pattern for name in candidates
                                          for pattern in CANDIDATES[name]])
    costs = surgery.costs(measured) if leave_one_out else None
    if loss is None:
        chosen = fit(measured, density, costs=costs)
    else:
        chosen = fit_to_loss(dense, measured, surgery.loss, loss, costs=costs)
    print(chosen)
    sparse = surgery.cut(chosen, Adaptation(steps, lr, batch_size, distill, seed), lora)
    save_attached(sparse, folder)
    sizes = costs_of_lengths(dense, sparse, min(_length(dense, None), longest_of(sparse)))
    # Layers with windows of their own allow fewer pairs.
    density_of_pairs = float(np.average(chosen.density, weights=measured.keys))
    results = {**surgery.losses, 'density': density_of_pairs,
               'share': float(chosen.share.mean()), 'heads': chosen.as_table(), 'lengths': sizes}
    write_whole(folder / RESULTS, lambda path: path.write_text(json.dumps(
        results, indent=1, allow_nan=False)))
    write_report(folder / 'report.html', sparse, chosen, costs, results,
                 longest_sequence(surgery.held_out))
    (folder / STATE).unlink(missing_ok=True)
    print(f"loss {results['dense']:.4f} dense, {results['cut']:.4f} cut, "
          f"{results['adapted']:.4f} adapted, at {results['density']:.2%} of the pairs")
    print(f'results are in {folder}')


@dataclass
class Surgery:
    """A dense model whose heads are to attend along graphs, its data, and the folder that stores
    the results of finished steps."""

    dense: nn.Module
    train: Tensor
    held_out: Tensor
    folder: Path
    batch_size: int
    mask_token: int | None

    def __post_init__(self):
        self.own_loss = loss_of(self.dense, self.mask_token)
        self.losses: dict[str, float] = {}

    def loss(self, model: nn.Module) -> float:
        """Return the loss of ``model`` on the held-out data."""
        return mean_loss(model, self.held_out, self.own_loss, self.batch_size)

    def profile(self, sequences: int, patterns: Sequence[str]) -> Profile:
        path = self.folder / 'profile.npz'
        if path.is_file():
            return Profile.load(path)
        measured = profile(self.dense, [as_input(batch) for batch in
                                        self.train[:sequences].split(self.batch_size)],
                           patterns=patterns)
        measured.save(path)
        return measured

    def costs(self, measured: Profile) -> np.ndarray:
        """Return the cost of each head: the rise of the loss divided by the head's error, measured
        on as much of the training data as a quarter of the held-out data."""
        path = self.folder / 'costs.npy'
        if path.is_file():
            shape = len(measured.layer),
            costs = read_array(path)
            check_schema({'costs': costs}, {'costs': Array('f', shape)}, str(path))
            return costs
        some = self.train[:math.ceil(len(self.held_out) / 4)]
        costs = head_costs(self.dense, measured, partial(
            mean_loss, tokens=some, loss=self.own_loss, batch_size=self.batch_size))
        write_whole(path, lambda temporary: np.save(temporary, costs))
        return costs

    def cut(self, chosen: Fit, settings: Adaptation, lora: int | None = None) -> nn.Module:
        """Attach the chosen patterns to a copy of the model, train the copy, and return it. The
        losses before and after training are stored in ``losses``."""
        sparse = attach(copy.deepcopy(self.dense), chosen.along())
        self.losses = {'dense': self.loss(self.dense), 'cut': self.loss(sparse)}
        adapters = None if lora is None else with_adapters(sparse, lora, settings.seed)
        adapt(sparse, self.train, self.own_loss, settings,
              teacher=self.dense if settings.distill else None, state=self.folder / STATE)
        sparse = sparse if adapters is None else adapters.merge_and_unload()
        self.losses['adapted'] = self.loss(sparse)
        return sparse


def as_input(tokens: Tensor) -> dict[str, Tensor]:
    return {'input_ids': tokens.clamp(min=0), 'attention_mask': tokens != PADDING}


def load_model(folder: Path) -> nn.Module:
    """Load a model of transformers from its folder, in float32, as the class that its config
    names."""
    import transformers

    if not (folder / 'config.json').is_file():
        raise ValueError(f"'model' must be the folder of a model (got {folder}, without "
                         f"config.json)")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    name = (config.architectures or ['none'])[0]
    kind = getattr(transformers, name, None)
    if kind is None or not issubclass(kind, transformers.PreTrainedModel):
        raise ValueError(f"'model' must be a model of a class in transformers (got {name} in "
                         f"{folder})")
    model = kind.from_pretrained(folder, local_files_only=True)
    return model.float().eval()


def longest_sequence(tokens: Tensor) -> Tensor:
    """Return the sequence with the most tokens, without its padding."""
    longest = tokens[(tokens != PADDING).sum(1).argmax()]
    return longest[longest != PADDING]


def longest_of(model: nn.Module) -> float:
    """Return the maximum number of tokens for which all graphs of an attached model are defined."""
    sources = (getattr(module, 'graph_source', None) for module in model.modules())
    return min((source.max_length for source in sources if source is not None
                and source.max_length is not None), default=math.inf)


def _length(model: nn.Module, length: int | None) -> int:
    most = getattr(model.config, 'max_position_embeddings', None)
    if length is None:
        return most or 512
    if length < 8 or most is not None and length > most:
        raise ValueError(f"'length' must be from 8 to {most}, the number of positions of the model "
                         f"(got {length})")
    return length


def _check_options(folder: Path, options: dict) -> None:
    """Raise an error if the folder contains finished results, or an interrupted run with other
    options."""
    if (folder / RESULTS).exists():
        raise ValueError(f"'out' must be a new folder (got {folder}, which contains results); "
                         f"choose another folder")
    path = folder / OPTIONS
    if path.is_file():
        before = read_json(path)
        changed = [name for name in options if before.get(name) != options[name]]
        if changed:
            raise ValueError(f"'out' must be a new folder, or a folder of a run with the same "
                             f"options (got {folder}, with another {', '.join(changed)})")
    elif folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"'out' must be a new or empty folder (got {folder}); choose another "
                         f"folder")


if __name__ == '__main__':
    run_function(main, as_positional=False)
