"""Losses of a dense model along graphs that are fitted to its heads, and along other graphs."""

import copy
import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
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
from experiments.papers.ours.dense_models import LR, MASK, Kind, dense_model
from experiments.papers.study import Study, Table, mean_and_spread, spread_of
from experiments.sparsify import as_input, load_model
from experiments.surgery import Adaptation, adapt, drawn_tokens, loss_of, mean_loss
from experiments.surgery.clusters import with_clusters
from experiments.surgery.tokens import PADDING
from graphattn.hugging_face import Profile, attach, fit, head_costs, profile
from graphattn.hugging_face.profiling import CANDIDATES
from graphattn.patterns import Causal, Full, Pattern, parse
from graphattn.utils.files import write_whole

FIT, FIT_ALL = 'fitted to heads', 'fitted, also to clusters'
# the fit among patterns, but with clusters by content in the heads that then cost less loss
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
    densities: tuple[float, ...]
    seeds: int  # at 5 %, and one at other densities
    steps: int
    held_out: int
    profiled: int
    sequences: int  # drawn from the model
    length: int
    least: int  # tokens of a sequence


SCALES = {'smoke': Scale((.3,), 1, 2, 4, 2, 12, 32, 8),
          'small': Scale((.02, .05, .1, .25), 3, 300, 32, 32, 2400, 512, 128),
          'paper': Scale((.02, .05, .1, .25), 5, 1000, 64, 32, 10_000, 512, 128)}


@dataclass(frozen=True)
class Surgery(Study):
    """A study of graphs for the heads of a dense model.

    Args:
        trained: A kind of model, gpt2 or modernbert, which is trained first; if omitted, the model
            of the package microformer-mgm.
        densities: Maximum fractions of the pairs that are edges.
        seeds: Number of trainings at each density; by default more at 5 % than at other densities.
        steps: Number of training steps.
    """

    trained: Kind | None = None
    densities: list[float] | None = None
    seeds: PositiveInt | None = None
    steps: NonNegativeInt | None = None

    @property
    def folder(self) -> Path:
        return self.shared / (f'{self.name}-{self.trained}' if self.trained else self.name)

    @cached_property
    def sizes(self) -> Scale:
        sizes = SCALES[self.scale]
        return sizes._replace(densities=tuple(self.densities or sizes.densities),
                              steps=sizes.steps if self.steps is None else self.steps)

    @cached_property
    def dense(self) -> nn.Module:
        if self.trained:
            return load_model(dense_model(self, self.trained))
        return _untrained() if self.scale == 'smoke' else load_model(_packaged())

    @property
    def mask_token(self) -> int | None:
        return MASK if self.trained == 'modernbert' else None

    @cached_property
    def tokens(self) -> Tensor:
        """Sequences, the held-out ones first."""
        sizes = self.sizes
        path = (dense_model(self, self.trained) / 'ids.npy' if self.trained else
                self.folder / 'tokens.npy')
        if not path.is_file():
            drawn = drawn_tokens(self.dense, sizes.sequences, sizes.length, seed=0)
            write_whole(path, lambda temporary: np.save(temporary, drawn.numpy()))
        tokens = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.int64))
        return tokens[(tokens != PADDING).sum(1) >= sizes.least]

    @property
    def held_out(self) -> Tensor:
        return self.tokens[:self.sizes.held_out]

    @property
    def train(self) -> Tensor:
        return self.tokens[self.sizes.held_out:]

    @property
    def profiled(self) -> Tensor:
        return self.train[:self.sizes.profiled]

    @property
    def lengths(self) -> list[int]:
        return (self.profiled != PADDING).sum(1).tolist()

    @property
    def adaptation(self) -> Adaptation:
        return Adaptation(self.sizes.steps, lr=LR if self.trained else 1e-4)

    def loss(self, model: nn.Module, tokens: Tensor) -> float:
        return mean_loss(model, tokens, loss_of(self.dense, self.mask_token), 8)

    @cached_property
    def measured(self) -> Profile:
        path = self.folder / 'profile.npz'
        if path.is_file():
            return Profile.load(path)
        measured = profile(self.dense, map(as_input, self.profiled.split(4)),
                           patterns=[*chain(*CANDIDATES.values())])
        measured.save(path)
        return measured

    @cached_property
    def costs(self) -> np.ndarray:
        """The rise of the loss for each head, on text of the training."""
        loss = partial(self.loss, tokens=self.profiled[:8])
        return np.array(self._once('costs-in-training', lambda: head_costs(
            self.dense, self.measured, loss).tolist()))

    def losses(self, name: str, density: float, seed: int) -> dict[str, float]:
        def run() -> dict[str, float]:
            along, true = self.along(name, density)
            sparse = attach(copy.deepcopy(self.dense), along)
            before = self.loss(sparse, self.held_out)
            adapt(sparse, self.train, loss_of(self.dense, self.mask_token),
                  self.adaptation._replace(seed=seed))
            return {'density': true, BEFORE: before, AFTER: self.loss(sparse, self.held_out)}
        return self._once(f'{name}-{density:g}-{self.sizes.steps}-{seed}'.replace(' ', '_'), run)

    def along(self, name: str, density: float) -> tuple[object, float]:
        if name in FAMILIES:
            return self.of_family(name, density)
        measured, costs = self.measured, self.costs
        chosen = fit(measured if name == FIT_ALL else of_positions(measured), density, costs=costs)
        if name == CLUSTERED:
            others = self.train[self.sizes.profiled:2 * self.sizes.profiled]
            chosen = with_clusters(self.dense, chosen, measured, partial(self.loss, tokens=others))
        edges = (chosen.density * measured.keys).mean() * sum(self.lengths)
        return chosen.along(), float(edges / num_edges(Full(), self.lengths, measured.is_causal))

    def of_family(self, name: str, density: float) -> tuple[str, float] | None:
        return densest(FAMILIES[name], density, self.lengths, self.mask_token is None)

    def _once(self, name: str, compute: Callable[[], object]) -> object:
        """Return the result of ``compute()``, which the study's folder keeps as JSON."""
        path = self.folder / 'runs' / f'{name}.json'
        if not path.is_file():
            print(f'surgery: {name}')
            result = json.dumps(compute())
            write_whole(path, lambda temporary: temporary.write_text(result))
        return json.loads(path.read_text())


def main(study: Surgery) -> Table:
    sizes, before, rows = study.sizes, study.loss(study.dense, study.held_out), []
    for density in sizes.densities:
        for name in (FIT, FIT_ALL, CLUSTERED, *FAMILIES):
            if name in FAMILIES and study.of_family(name, density) is None:
                continue
            count = study.seeds or (sizes.seeds if density in (.05, .3) else 1)
            found = [study.losses(name, density, seed) for seed in range(count)]
            row = {'edges': name, 'density, %': 100 * density,
                   'true density, %': 100 * found[0]['density']}
            for when in (BEFORE, AFTER):
                row |= {f'{when}, loss': statistics.mean(one[when] for one in found)}
                row |= mean_and_spread(f'{when}, {LOSS}', [100 * (one[when] / before - 1)
                                                          for one in found])
            rows.append(row)
    longest = int((study.tokens != PADDING).sum(1).max())
    about = (f'dense loss {before:.4f}, {study.losses(ALL, 1., 0)[AFTER]:.4f} after the same '
             f'training; {len(study.train)} sequences of {sizes.least} to {longest} tokens, '
             f'{sizes.steps} steps of {study.adaptation.batch_size}')
    drawn = [{'edges': row['edges'], 'pairs': f"{row['density, %']:g} % of the pairs",
              'when': when, LOSS: row[f'{when}, {LOSS}'],
              spread_of(LOSS): row[spread_of(f'{when}, {LOSS}')]}
             for row in rows for when in (BEFORE, AFTER)]
    lines = about.replace('; ', ';\n')
    figure = points(drawn, 'edges', [LOSS], f'A dense model along graphs.\n{lines}', panel='pairs',
                    series='when')
    told = correlations(study.measured, study.costs, min(longest, 256))
    return Table(rows, figure, f'{about}\nrank correlations with the costs of heads: ' + ', '.join(
        f'{name} {value:.2f}' for name, value in told.items()))


def of_positions(measured: Profile) -> Profile:
    return measured.among([name for name in measured.patterns if 'clusters' not in name])


def densest(patterns: list[str], density: float, lengths: list[int],
            is_causal: bool) -> tuple[str, float] | None:
    """Return the densest of ascending patterns within a density, and its density, if any."""
    pairs, best = num_edges(Full(), lengths, is_causal), None
    for pattern in patterns:
        true = num_edges(parse(pattern), lengths, is_causal) / pairs
        if true > density:
            break
        best = pattern, true
    return best


def num_edges(pattern: Pattern, lengths: list[int], is_causal: bool) -> int:
    allowed = pattern & (Causal() if is_causal else Full())
    return sum(count * allowed.build(length, seed=0, crop=True).num_edges
               for length, count in Counter(lengths).items())


def correlations(measured: Profile, costs: np.ndarray, length: int) -> dict[str, float]:
    """Return Spearman's correlations of measures of heads, and of their smallest graphs that hold
    90 % of the best candidate's weight, with their costs."""
    measured = of_positions(measured)
    enough = measured.pattern_share >= .9 * measured.pattern_share.max(1, keepdims=True)
    chosen = np.where(enough, measured.pattern_edges, np.inf).argmin(1)
    allowed = Causal() if measured.is_causal else Full()
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


def _packaged() -> Path:
    found = find_spec('mgm')  # not imported
    if found is None or not found.submodule_search_locations:
        raise ValueError("'trained' must be given, unless the package mgm is installed (pip "
                         "install --no-deps microformer-mgm)")
    return Path(found.submodule_search_locations[0]) / 'resources' / 'general_model'


def _untrained() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=1, pad_token_id=2)).eval()
