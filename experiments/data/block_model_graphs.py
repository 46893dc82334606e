"""PATTERN and CLUSTER: node classification on graphs of stochastic block models.

The graphs are drawn from the published distribution. CLUSTER agrees with its released files. The
released PATTERN has 1.2 % more nodes and 3.3 % more edges than its distribution implies, and graphs
of 44 nodes, although the distribution implies at least 45.

Source: Dwivedi et al., "Benchmarking Graph Neural Networks" (2020), Sec. 4.4 and Appendix A.3.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from tqdm import tqdm

from experiments.data.cached_arrays import cached_arrays

PARTS = 'train', 'val', 'test'


@dataclass(frozen=True)
class Distribution:
    """The random distribution from which the graphs of a data set are drawn."""

    num_communities: int  # of a graph, of 5 to 34 nodes each
    inside: float  # probability of an edge within a community
    between: float  # and between communities
    num_graphs: tuple[int, int, int]  # for training, validation and test
    vocabulary: int  # number of input features, of which each node has one
    num_patterns: int = 0  # each planted in as many graphs of a part; if 0, communities are sought
    pattern_size: int = 0  # nodes
    pattern_edges: float = 0.  # probability of an edge within a pattern, and to the other nodes


DISTRIBUTIONS = {
    'PATTERN': Distribution(5, .5, .35, (10_000, 2_000, 2_000), vocabulary=3, num_patterns=100,
                            pattern_size=20, pattern_edges=.5),
    'CLUSTER': Distribution(6, .55, .25, (10_000, 1_000, 1_000), vocabulary=7),
}
# Mean numbers of nodes and edges of a graph of the released files. Edges are counted in both
# directions.
_MIN_SIZE, _MAX_SIZE = 5, 34


def block_model_graphs(name: str, seed: int = 0, cache: Path = Path('data/cache'),
                       num_graphs: tuple[int, int, int] | None = None) -> dict[str, list[Data]]:
    """Return the graphs of ``'PATTERN'`` or ``'CLUSTER'``, drawn once and cached."""
    if name not in DISTRIBUTIONS:
        raise ValueError(f"'name' must be {' or '.join(map(repr, DISTRIBUTIONS))} (got {name!r})")
    distribution = DISTRIBUTIONS[name]
    if num_graphs is not None:
        distribution = Distribution(**{**asdict(distribution), 'num_graphs': tuple(num_graphs)})
    for number in distribution.num_graphs:
        if distribution.num_patterns and number % distribution.num_patterns:
            raise ValueError(f"'num_graphs' must contain only multiples of "
                             f"{distribution.num_patterns}, the number of patterns (got {number})")
    parameters = {'name': name, 'seed': seed, 'version': 1, **asdict(distribution)}
    arrays = cached_arrays(cache, name.lower(), parameters, lambda: _draw_all(distribution, seed))
    return {part: _graphs(arrays, part, distribution.vocabulary) for part in PARTS}


def _draw_all(distribution: Distribution, seed: int) -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(seed), {}
    patterns = [_pattern(distribution, rng) for _ in range(distribution.num_patterns)]
    for part, number in zip(PARTS, distribution.num_graphs):
        graphs = []
        for i in tqdm(range(number), desc=part, disable=None):
            pattern = patterns[i % len(patterns)] if patterns else None
            graphs.append(_draw(distribution, pattern, rng))
        pairs, features, labels = (np.concatenate(each, axis=-1) for each in zip(*graphs))
        num_pairs, num_nodes = ([each[i].shape[-1] for each in graphs] for i in (0, 1))
        arrays |= {f'{part}_pairs': pairs, f'{part}_features': features, f'{part}_labels': labels,
                   f'{part}_num_pairs': np.array(num_pairs), f'{part}_num_nodes':
                   np.array(num_nodes)}
    return arrays


def _pattern(distribution: Distribution,
             rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random pattern, and return its edges above the diagonal, bool ``[size, size]``, and
    the features of its nodes, int ``[size]``."""
    size = distribution.pattern_size
    return (rng.random((size, size)) < distribution.pattern_edges,
            rng.integers(distribution.vocabulary, size=size))


def _draw(distribution: Distribution, pattern: tuple[np.ndarray, np.ndarray] | None,
          rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = rng.integers(_MIN_SIZE, _MAX_SIZE + 1, distribution.num_communities)
    community = np.repeat(np.arange(len(sizes)), sizes)
    edge_prob = np.where(community[:, None] == community, distribution.inside,
                         distribution.between)
    if pattern is None:
        features = np.zeros(len(community), np.int64)
        # one node of each community shows its community as a feature
        known = np.cumsum(sizes) - sizes + rng.integers(sizes)
        features[known] = np.arange(1, len(sizes) + 1)
        label = community
    else:
        edges, of_pattern = pattern
        features = np.concatenate([rng.integers(distribution.vocabulary, size=len(community)),
                                   of_pattern])
        label = np.repeat([0, 1], [len(community), len(of_pattern)])
        edge_prob = np.pad(edge_prob, (0, len(of_pattern)),
                           constant_values=distribution.pattern_edges)
        # the edges of a pattern were drawn once, for all of its graphs
        edge_prob[len(community):, len(community):] = edges
    pairs = np.argwhere(np.triu(rng.random(edge_prob.shape) < edge_prob, k=1)).T
    place = rng.permutation(len(label))
    order = place.argsort()
    return tuple(each.astype(np.uint8) for each in (place[pairs], features[order], label[order]))


def _graphs(arrays: dict[str, np.ndarray], part: str, vocabulary: int) -> list[Data]:
    pairs, features, labels, num_pairs, num_nodes = (
        torch.from_numpy(arrays[f'{part}_{name}']).long()
        for name in ('pairs', 'features', 'labels', 'num_pairs', 'num_nodes'))
    graphs = zip(pairs.split(num_pairs.tolist(), dim=1), features.split(num_nodes.tolist()),
                 labels.split(num_nodes.tolist()))
    return [Data(x=torch.eye(vocabulary)[feature], y=label,
                 edge_index=torch.cat([pair, pair.flip(0)], dim=1))
            for pair, feature, label in graphs]
