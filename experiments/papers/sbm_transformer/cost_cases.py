"""The kinds of attention whose costs are compared, as layers and as counted operations.

Sizes are those of SBM-Transformer's models for Long Range Arena (Table 7): two heads of 32
channels, 128 clusters, 256 landmarks, projected keys or features, and two rounds of hashes.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.baselines import Baseline, Linear, Linformer, Nystromformer, Performer, Reformer
from experiments.benchmarks import flops
from experiments.benchmarks.layer import bring_to_density, infer, train
from experiments.benchmarks.measure import free_at_once, peak_bytes
from experiments.papers.sbm_transformer.long_range import FULL, patterns_at
from experiments.papers.study import TELEPORT
from graphattn import BipartiteGraph
from graphattn.graphs import GRAPHS
from graphattn.layers import GraphAttention
from graphattn.patterns import Pattern
from graphattn.sources import BlockModelSource, PatternSource

CHANNELS, HEADS, CLUSTERS = 64, 2, 128
WIDTH = CHANNELS // HEADS


class Eager(Baseline):
    """Full attention that stores its weights, the baseline of the papers."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        return (query / math.sqrt(WIDTH) @ key.mT).softmax(dim=-1) @ value


class Fused(Baseline):
    """Torch's full attention, which computes its weights block by block and stores none."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seed: int) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


FORMED, FUSED, SAMPLED, EDGES = 'full, weights formed', 'full, SDPA', 'SBM', 'SBM, edges alone'
POISSON = 'SBM, Algorithm 1'
MODULES: dict[str, Callable[..., Baseline]] = {
    FORMED: Eager, FUSED: Fused,
    'linear': Linear, 'linear, released': partial(Linear, form='released'),
    'Reformer': Reformer, 'Performer': Performer,
    'Performer, ReLU': partial(Performer, kernel='relu'),
    'Linformer': Linformer, 'Nystromformer': Nystromformer}
# The k of Table 6: number of rounds of hashes, features, projected keys or landmarks.
RANKS = {'Reformer': 2, 'Performer': 256, 'Performer, ReLU': 256, 'Linformer': 256,
         'Nystromformer': 256}
STEPS: dict[str, Callable[[int, int, int], flops.Steps]] = {  # of n, d and k
    **dict.fromkeys((FORMED, FUSED), lambda n, d, k: flops.along_edges(n**2, d)),
    'linear': lambda n, d, k: flops.linear(n, d),
    'linear, released': lambda n, d, k: flops.linear(n, d, normalised=False),
    'Reformer': lambda n, d, k: flops.reformer(n, d, rounds=k, chunk=64),
    **dict.fromkeys(('Performer', 'Performer, ReLU'), flops.performer),
    'Linformer': flops.linformer,
    'Nystromformer': lambda n, d, k: flops.nystromformer(n, d, k, 35, 6)}
RADIUS = 64  # radius of windows, at all lengths
PATTERNS = [name for name in patterns_at(2048, RADIUS) if name != FULL]


class Case(NamedTuple):
    """A kind of attention on n tokens, for block models with graphs of a density."""

    name: str
    n: int
    density: float | None = None

    def pattern(self) -> tuple[Pattern, int]:
        return patterns_at(self.n, RADIUS)[self.name]

    def layer(self) -> nn.Module:
        torch.manual_seed(0)
        if self.name == 'Linformer':
            return Linformer(CHANNELS, HEADS, self.n)
        if self.name in MODULES:
            return MODULES[self.name](CHANNELS, HEADS)
        if self.name in PATTERNS:
            pattern, hops = self.pattern()
            return GraphAttention(CHANNELS, HEADS, PatternSource(pattern), hops=hops,
                                  teleport=TELEPORT if hops > 1 else 0.)
        is_poisson = self.name == POISSON  # where an edge has probability 1 - exp(-p)
        source = BlockModelSource(HEADS, WIDTH, CLUSTERS, exploration=0.,
                                  distribution='poisson' if is_poisson else 'bernoulli')
        bring_to_density(source, -math.log1p(-self.density) if is_poisson else self.density)
        return GraphAttention(CHANNELS, HEADS, source)

    def attend(self) -> tuple[nn.Module, Callable[[], Tensor]]:
        """Return the layer, and a function that applies it to tokens."""
        layer, (x, ptr) = self.layer(), self._tokens()
        if self.name == EDGES:
            graph = cache(self.graph)
            return layer, lambda: layer(x, ptr, graph=graph())
        return layer, lambda: layer(x, ptr)

    def graph(self) -> BipartiteGraph | None:
        """Return the graph along which this case attends, if there is one."""
        with torch.no_grad():
            return self.layer().eval()(*self._tokens(), return_graph=True)[1]

    def steps(self, trains: bool = False) -> flops.Steps:
        """Return the operations of one head by step, maybe with those of the gradient alone."""
        if self.name in STEPS:
            return STEPS[self.name](self.n, WIDTH, RANKS.get(self.name, 0))
        num_edges = self.graph().num_edges
        if self.name in PATTERNS:
            return flops.along_edges(num_edges, WIDTH, self.pattern()[1])
        if self.name == EDGES:
            return flops.along_edges(num_edges / HEADS, WIDTH)
        return flops.block_model(self.n, WIDTH, CLUSTERS, self._drawn(), num_edges / HEADS, trains)

    def _drawn(self) -> flops.Steps:
        """Return the operations by which one head samples its graph."""
        if self.name == POISSON:
            return flops.algorithm_1(self.n, CLUSTERS)
        layer, (x, ptr) = self.layer().eval(), self._tokens()
        query, key = (linear(x).unflatten(-1, (HEADS, -1))
                      for linear in (layer.lin_query, layer.lin_key))
        model = layer.source.block_model(query, key, ptr)
        return {name: number / HEADS for name, number in flops.sampler(model).items()}

    def _tokens(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(self.n, CHANNELS), torch.tensor([0, self.n])


def peaks(case: Case) -> tuple[int, int]:
    """Return the peak bytes of inference and of a training step, with the graph."""
    free_at_once()
    for step in (infer, train):
        step(*case.attend())  # loops are compiled now
    found = []
    for step in (infer, train):
        GRAPHS.clear()
        own = case.attend()
        found.append(peak_bytes(lambda step=step, own=own: step(*own), warm_up=1))
        del own
    return found[0], found[1]
