"""The random patterns draw what they promise: exact counts, and no pair before another."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from graphattn.patterns import GlobalTokens, RandomBlocks, RandomKeys, RandomPairs, RandomRegular

pytestmark = pytest.mark.slow

UNLIKELY = 1e-4  # of a dozen tests of right samplers, one in 800 suites would fail


def chance_of_such_means(draws: np.ndarray, mean: float) -> float:
    """The p-value of a mean in all cells at once, ``[num_draws, num_cells]``.

    It is Hotelling's form of the chi-square test, for cells of one draw depend on one another:
    they sum to a fixed number.
    """
    num_draws = len(draws)
    variance, direction = np.linalg.eigh(np.cov(draws, rowvar=False))
    varies = variance > 1e-9 * variance.max()
    deviation = (draws.mean(0) - mean) @ direction
    assert np.abs(deviation[~varies]).max(initial=0) < 1e-9
    statistic = num_draws * (deviation[varies] ** 2 / variance[varies]).sum()
    num_free = varies.sum()
    ratio = statistic * (num_draws - num_free) / (num_free * (num_draws - 1))
    return stats.f.sf(ratio, num_free, num_draws - num_free)


def masks(pattern, num_draws: int, *size: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(0)
    return np.stack([pattern.build(*size, seed=generator).to_mask().numpy()
                     for _ in range(num_draws)]).astype(float)


@pytest.mark.parametrize('count', [3, 8], ids=lambda count: f'{count} of 10')
def test_random_keys_favour_no_cell(count):
    draws = masks(RandomKeys(count), 800, 4, 10)
    assert (draws.sum(2) == count).all()
    assert chance_of_such_means(draws.reshape(800, -1), count / 10) > UNLIKELY


@pytest.mark.parametrize('count', [2, 3, 4], ids=lambda count: f'{count} of 6')
def test_random_keys_favour_no_subset(count):
    subset = RandomKeys(count).build(30_000, 6, seed=0).key.view(-1, count)
    number = (2 ** subset).sum(1)
    observed = [int((number == sum(2**j for j in chosen)).sum())
                for chosen in combinations(range(6), count)]
    assert sum(observed) == 30_000
    assert stats.chisquare(observed).pvalue > UNLIKELY


@pytest.mark.parametrize(('num_keys', 'count'), [(1, 1), (8, 3), (7, 7), (100, 7), (12, 4)])
def test_evenly_spaced_keys_are_the_midpoints_of_equal_arcs(num_keys, count):
    graph = RandomKeys(count, spacing='uniform').build(num_keys)
    assert graph.in_degree().tolist() == [count] * num_keys
    assert graph.out_degree().tolist() == [count] * num_keys
    from_first = graph.key[:count]
    gaps = torch.cat([from_first, from_first[:1] + num_keys]).diff()
    assert int(gaps.max() - gaps.min()) <= 1
    assert abs(2 * int(from_first[0]) - num_keys // count) <= 1


@pytest.mark.parametrize(('size', 'count', 'block'), [((12, 12), 2, 3), ((13, 8), 3, 3)])
def test_random_blocks_are_whole_blocks(size, count, block):
    mask = RandomBlocks(count, block).build(*size, seed=0).to_mask()
    per_block = torch.zeros(-(-size[0] // block), -(-size[1] // block))
    for i, j in mask.nonzero().tolist():
        per_block[i // block, j // block] = 1
    assert per_block.sum(1).tolist() == [count] * len(per_block)
    spread = per_block.repeat_interleave(block, 0).repeat_interleave(block, 1)
    assert torch.equal(spread[:size[0], :size[1]].bool(), mask)


def test_random_blocks_favour_no_cell():
    draws = masks(RandomBlocks(2, 2), 800, 4, 12).reshape(800, -1)
    assert chance_of_such_means(draws, 2 / 6) > UNLIKELY


@pytest.mark.parametrize('count', [5, 17], ids=lambda count: f'{count} of 20')
def test_random_pairs_favour_no_pair(count):
    draws = masks(RandomPairs(count), 800, 4, 5).reshape(800, -1)
    assert (draws.sum(1) == count).all()
    assert chance_of_such_means(draws, count / 20) > UNLIKELY


def test_random_global_tokens_favour_no_token():
    draws = masks(GlobalTokens(3, random=True), 800, 10).diagonal(axis1=1, axis2=2)
    assert (draws.sum(1) == 3).all()
    assert chance_of_such_means(draws, 0.3) > UNLIKELY


def test_random_global_blocks_favour_no_block_and_spare_the_first_tokens():
    draws = masks(GlobalTokens(4, random=True, first=3, block=2), 800, 12)
    draws = draws.diagonal(axis1=1, axis2=2)
    assert not draws[:, :3].any() and not draws[:, 11].any()  # 11 is half a block
    assert (draws[:, 3:11:2] == draws[:, 4:11:2]).all()
    assert (draws.sum(1) == 4).all()
    assert chance_of_such_means(draws[:, 3:11:2], 2 / 4) > UNLIKELY


@pytest.mark.parametrize('num_tokens', range(1, 10))
def test_random_regular_is_regular_for_every_degree(num_tokens):
    for degree in range(num_tokens):
        for seed in range(4):
            graph = RandomRegular(degree).build(num_tokens, seed=seed)
            assert_regular(graph, degree)


def assert_regular(graph, degree: int) -> None:
    assert (graph.in_degree() == degree).all() and (graph.out_degree() == degree).all()
    assert not (graph.key == graph.query).any()


@pytest.mark.parametrize('degree', [2, 4], ids=lambda degree: f'{degree} of 6')
def test_random_regular_favours_no_pair(degree):
    draws = masks(RandomRegular(degree), 500, 7)
    off_diagonal = ~np.eye(7, dtype=bool)
    assert chance_of_such_means(draws[:, off_diagonal], degree / 6) > UNLIKELY
