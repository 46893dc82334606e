"""Every sampler draws from the distribution that it promises, for factors of any magnitude."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from scipy.stats import binom

from graphattn.samplers import FactorModel
from tests.fuzz.budget import cases
from tests.fuzz.strategies import SEEDS, ModelCase, model_cases
from tests.samplers.test_contract import DISTRIBUTIONS, WAYS, Way, highest_bound

every_sampler = pytest.mark.parametrize('sample', WAYS.values(), ids=WAYS)
HIGHEST = (0.9, 0.3, 0.02)
ERROR = 1e-12  # the probability with which a case of a faultless sampler fails


def served(sample: Way, case: ModelCase) -> FactorModel:
    """Copies of the model side by side, if the sampler can draw from one."""
    one = replace(case, copies=1).model()
    assume(sample.method != 'thin' or highest_bound(one) < 1)
    return case.model()


@every_sampler
@cases(12)
@given(case=model_cases(copies=2000, highest=HIGHEST), seed=SEEDS)
def test_pairs_are_as_frequent_as_promised(sample, case, seed):
    """Counts of each pair are binomial; bounds are exact and share one probability of error."""
    model = served(sample, case)
    graph = sample(model, generator=torch.Generator().manual_seed(seed)).validate()
    prob = DISTRIBUTIONS[sample.sampler](case.probability()).numpy()
    counts = case.counts(graph).numpy()
    # Factors and their products are rounded to the dtype.
    room = prob * (64 * torch.finfo(case.dtype).eps)
    alone = ERROR / max(2 * len(prob), 1)
    too_few = binom.cdf(counts, case.copies, (prob - room).clip(0, 1)) < alone
    too_many = binom.sf(counts - 1, case.copies, (prob + room).clip(0, 1)) < alone
    is_off = too_few | too_many
    if is_off.any():
        raise AssertionError(f'{counts[is_off]} of {case.copies} for {prob[is_off]}')


@pytest.mark.parametrize('sample', [way for way in WAYS.values() if way.sampler == 'sample_fastrg'],
                         ids=str)
@cases(6)
@given(case=model_cases(copies=500, highest=(5., 1.5)), seed=SEEDS)
def test_rates_above_one(sample: Way, case, seed):
    test_pairs_are_as_frequent_as_promised.hypothesis.inner_test(sample, case, seed)
