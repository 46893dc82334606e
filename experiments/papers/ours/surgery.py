r"""Losses of a trained dense model after each of its heads was given a graph, compared with other
graphs of the same density.

    graphattn study surgery --scale small
    graphattn study surgery --scale small --trained gpt2
    graphattn study surgery --scale small --model FOLDER --data ids.npy

The model is a GPT-2 of 8 layers and 8 heads, trained on microbial communities, from the package
``microformer-mgm`` (MIT licence; pip install --no-deps microformer-mgm). The data are sequences of
at least 128 tokens, which are drawn from the model itself. With ``--trained``, the model is a small
GPT-2 or ModernBERT, which is first trained on the documentation of the installed Python.

At each density, the study compares these kinds of edges, and then trains all models for the same
number of steps:

- graphs that are fitted to the heads (:func:`graphattn.hugging_face.fit`), among patterns alone, or
  among patterns and clusters by content;
- the fit among patterns, but with clusters in the heads that then cost less loss
  (:mod:`experiments.surgery.clusters`);
- a window, BigBird's edges or random keys in all heads.

The scale ``small`` has 3 seeds at a density of 5 %, and one seed at other densities. The scale
``smoke`` has an untrained model.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from scipy.stats import spearmanr
from torch import Tensor, nn

from analysis.certificate import certificate
from experiments.papers.figures import points
from experiments.papers.ours.dense_models import LR, Kind, dense_model, mask_of
from experiments.papers.study import OUT, ScaleName, Study, Table, mean_and_spread, spread_of
from experiments.runs.command_line import run_function
from experiments.sparsify import as_input, load_model
from experiments.surgery import Adaptation, adapt, drawn_tokens, loss_of, mean_loss
from experiments.surgery.clusters import with_clusters
from experiments.surgery.losses import Loss
from experiments.surgery.tokens import PADDING
from graphattn.hugging_face import Profile, attach, fit, head_costs, profile
from graphattn.hugging_face.profiling import CANDIDATES
from graphattn.patterns import Causal, Full, Pattern, parse
from graphattn.utils.files import write_whole

CHECKPOINT = 'resources/general_model'  # in the package mgm
FIT, FIT_ALL = 'fitted to heads', 'fitted, also to clusters'
CLUSTERED, ALL = 'fitted, or clusters', 'all keys'
BEFORE, AFTER = 'cut', 'adapted'
LOSS = 'loss over the dense one, %'
FAMILIES = {
    'window': [f'SlidingWindow({radius})' for radius in range(128)],
    'BigBird': [f'SlidingWindow({radius}) | GlobalTokens(1) | RandomKeys({max(1, radius // 2)})'
                for radius in range(96)],
    'random': [f'RandomKeys({count}) | SlidingWindow(0)' for count in range(1, 192)],
    ALL: ['Full()']}


class Scale(NamedTuple):
    """The sizes of the study at one scale."""

    densities: tuple[float, ...]
    seeds: int  # at 5 %
    steps: int
    held_out: int
    profiled: int
    sequences: int  # drawn, if no data is given
    length: int
    least: int  # tokens of a sequence


SCALES = {'smoke': Scale((.3,), 1, 2, 4, 2, 12, 32, 8),
          'small': Scale((.02, .05, .1, .25), 3, 300, 32, 32, 2400, 512, 128),
          'paper': Scale((.02, .05, .1, .25), 5, 1000, 64, 32, 10_000, 512, 128)}


def main(scale: ScaleName = 'small', trained: Kind | None = None, model: Path | None = None,
         data: Path | None = None, mask_token: NonNegativeInt | None = None,
         densities: list[float] | None = None, seeds: PositiveInt | None = None,
         steps: NonNegativeInt | None = None, out: Path = OUT) -> None:
    """Fit graphs to the heads of a dense model, and compare them with other graphs after the same
    training.

    Args:
        scale: Scale of the study: smoke, small or paper.
        trained: A kind of model, gpt2 or modernbert, which is trained first and used instead of
            'model', 'data' and 'mask_token'.
        model: The folder of a language model; if omitted, the model of the package microformer-mgm.
        data: An .npy file of token ids with -1 for padding; if omitted, sequences are drawn from
            the model.
        mask_token: Id of the mask, for a model of masked tokens.
        densities: Maximum fractions of the pairs that are edges.
        seeds: Number of trainings at each density; by default more at 5 % than at other densities.
        steps: Number of training steps.
        out: The folder of all studies.
    """
    name = trained or (model and model.name)
    study, sizes = Study(f'surgery-{name}' if name else 'surgery', scale, out), SCALES[scale]
    if trained:
        model, mask_token = dense_model(study, trained), mask_of(trained)
        data = model / 'ids.npy'
    sizes = sizes._replace(densities=tuple(densities or sizes.densities),
                           steps=sizes.steps if steps is None else steps)
    dense = _untrained() if scale == 'smoke' and not model else load_model(model or _packaged())
    tokens = _tokens(study, dense, sizes, data)
    setting = Setting(study, dense, tokens[sizes.held_out:], tokens[:sizes.held_out], sizes,
                      mask_token, LR if trained else 1e-4)
    measured = setting.profile()
    costs, before, rows = setting.costs(measured), setting.loss(dense), []
    for density in sizes.densities:
        for name in (FIT, FIT_ALL, CLUSTERED, *FAMILIES):
            if name in FAMILIES and setting.of_family(name, density) is None:
                continue
            count = seeds or (sizes.seeds if density in (.05, .3) else 1)
            found = [setting.trained(name, density, seed, measured, costs) for seed in range(count)]
            row = {'edges': name, 'density, %': 100 * density,
                   'true density, %': 100 * found[0]['density']}
            for when in (BEFORE, AFTER):
                row |= {f'{when}, loss': statistics.mean(one[when] for one in found)}
                row |= mean_and_spread(f'{when}, {LOSS}', [100 * (one[when] / before - 1)
                                                          for one in found])
            rows.append(row)
    longest = int((tokens != PADDING).sum(1).max())
    further = setting.trained(ALL, 1., 0, measured, costs)[AFTER]
    about = (f'dense loss {before:.4f}, {further:.4f} after the same training; '
             f'{len(setting.train)} sequences of {sizes.least} to {longest} tokens, '
             f'{sizes.steps} steps of {setting.settings(0).batch_size}')
    drawn = [{'edges': row['edges'], 'pairs': f"{row['density, %']:g} % of the pairs",
              'when': when, LOSS: row[f'{when}, {LOSS}'],
              spread_of(LOSS): row[spread_of(f'{when}, {LOSS}')]}
             for row in rows for when in (BEFORE, AFTER)]
    lines = about.replace('; ', ';\n')
    study.report(Table(rows, points(drawn, 'edges', [LOSS], f'A dense model along graphs.\n{lines}',
                                    panel='pairs', series='when'), about))
    told = correlations(measured, costs, min(longest, 256))
    print('rank correlations with the costs of heads: ' + ', '.join(
        f'{name} {value:.2f}' for name, value in told.items()))
    write_whole(study.folder / 'correlations.json',
                lambda path: path.write_text(json.dumps(told, indent=1)))


class Setting(NamedTuple):
    """A dense model, its data, and the study that keeps what was computed."""

    study: Study
    dense: nn.Module
    train: Tensor
    held_out: Tensor
    sizes: Scale
    mask_token: int | None = None
    lr: float = 1e-4

    def settings(self, seed: int) -> Adaptation:
        return Adaptation(self.sizes.steps, lr=self.lr, seed=seed)

    def loss(self, model: nn.Module) -> float:
        return mean_loss(model, self.held_out, self._own_loss, 8)

    def profile(self) -> Profile:
        path = self.study.folder / 'profile.npz'
        if path.is_file():
            return Profile.load(path)
        measured = profile(self.dense, map(as_input, self.profiled.split(4)),
                           patterns=[*chain(*CANDIDATES.values())])
        measured.save(path)
        return measured

    def costs(self, measured: Profile) -> np.ndarray:
        """Return the rise of the loss for each head."""
        some = partial(mean_loss, tokens=self.held_out[:8], loss=self._own_loss, batch_size=8)
        return np.array(self._once('costs', lambda: head_costs(self.dense, measured,
                                                               some).tolist()))

    def trained(self, name: str, density: float, seed: int, measured: Profile,
                costs: np.ndarray) -> dict[str, float]:
        """Return the density and the losses along one kind of edges, before and after training."""
        def run() -> dict[str, float]:
            along, true = self.along(name, density, measured, costs)
            sparse = attach(copy.deepcopy(self.dense), along)
            before = self.loss(sparse)
            adapt(sparse, self.train, self._own_loss, self.settings(seed))
            return {'density': true, BEFORE: before, AFTER: self.loss(sparse)}
        return self._once(f'{name}-{density:g}-{self.sizes.steps}-{seed}'.replace(' ', '_'), run)

    def along(self, name: str, density: float, measured: Profile,
              costs: np.ndarray) -> tuple[object, float]:
        """Return the graphs of one kind of edges to attach the model to, and their density."""
        if name in FAMILIES:
            return self.of_family(name, density)
        chosen = fit(measured if name == FIT_ALL else of_positions(measured), density, costs=costs)
        if name == CLUSTERED:
            others = self.train[self.sizes.profiled:2 * self.sizes.profiled]
            chosen = with_clusters(self.dense, chosen, measured, partial(
                mean_loss, tokens=others, loss=self._own_loss, batch_size=8))
        edges = (chosen.density * measured.keys).mean()
        return chosen.along(), float(edges * sum(self._lengths) / self._num_edges(Full()))

    def of_family(self, name: str, density: float) -> tuple[str, float] | None:
        """Return the densest pattern of a family within a density, and its density, if any."""
        pairs, best = self._num_edges(Full()), None
        for pattern in FAMILIES[name]:
            true = self._num_edges(parse(pattern)) / pairs
            if true > density:
                break
            best = pattern, true
        return best

    @property
    def profiled(self) -> Tensor:
        return self.train[:self.sizes.profiled]

    @property
    def _lengths(self) -> list[int]:
        return (self.profiled != PADDING).sum(1).tolist()

    def _num_edges(self, pattern: Pattern) -> int:
        """Count the edges, within what the model may attend to, of the profiled sequences."""
        pattern = pattern & _allowed(self.mask_token is None)
        return sum(count * pattern.build(length, seed=0, crop=True).num_edges
                   for length, count in Counter(self._lengths).items())

    @property
    def _own_loss(self) -> Loss:
        return loss_of(self.dense, self.mask_token)

    def _once(self, name: str, compute: Callable[[], object]) -> object:
        """Return the result of ``compute()``, which the study's folder keeps as JSON."""
        path = self.study.folder / 'runs' / f'{name}.json'
        if not path.is_file():
            print(f'surgery: {name}')
            result = json.dumps(compute())
            write_whole(path, lambda temporary: temporary.write_text(result))
        return json.loads(path.read_text())


def of_positions(measured: Profile) -> Profile:
    """Return the profile of patterns alone, without clusters by content."""
    return measured.among([name for name in measured.patterns if 'clusters' not in name])


def _allowed(is_causal: bool) -> Pattern:
    return Causal() if is_causal else Full()


def correlations(measured: Profile, costs: np.ndarray, length: int) -> dict[str, float]:
    """Return Spearman's correlations of measures of heads, and of their graphs, with their costs.

    The graph of a head is the smallest candidate that holds at least 90 % of the weight that any
    candidate holds, at a length.
    """
    measured = of_positions(measured)
    enough = measured.pattern_share >= .9 * measured.pattern_share.max(1, keepdims=True)
    chosen = np.where(enough, measured.pattern_edges, np.inf).argmin(1)
    allowed = _allowed(measured.is_causal)
    graphs = [(measured.pattern(row, at) & allowed).build(length, seed=0, crop=True)
              for row, at in enumerate(chosen)]
    proven = certificate([graphs])
    measures = {'entropy': measured.entropy, 'effective rank': measured.rank,
                'edges for 90 %': measured.edges[:, 0], 'first token': measured.kinds[:, 0],
                'same edges': measured.same_edges, 'hops': proven.hops_of_head,
                'gap': proven.gap_of_head, 'sigma': proven.sigma_of_head,
                'density': proven.density_of_head}
    return {name: float(spearmanr(values, costs, nan_policy='omit').statistic)
            for name, values in measures.items()}


def _tokens(study: Study, dense: nn.Module, sizes: Scale, data: Path | None) -> Tensor:
    path = data or study.folder / 'tokens.npy'
    if not path.is_file():
        drawn = drawn_tokens(dense, sizes.sequences, sizes.length, seed=0)
        write_whole(path, lambda temporary: np.save(temporary, drawn.numpy()))
    tokens = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.int64))
    tokens = tokens[(tokens != PADDING).sum(1) >= sizes.least]
    if len(tokens) <= sizes.held_out:
        raise ValueError(f"'data' must hold more than {sizes.held_out} sequences of {sizes.least} "
                         f"tokens and more (got {len(tokens)})")
    return tokens


def _packaged() -> Path:
    found = find_spec('mgm')  # not imported
    if found is None or not found.submodule_search_locations:
        raise ValueError("'model' must be given, unless the package mgm is installed (pip install "
                         "--no-deps microformer-mgm)")
    return Path(found.submodule_search_locations[0]) / CHECKPOINT


def _untrained() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=1, pad_token_id=2)).eval()


if __name__ == '__main__':
    run_function(main)
