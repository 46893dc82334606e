"""Answers among tokens: the best spans against all of them, and what is refused."""

import math

import pytest
import torch

from graphattn.models import best_spans

PTR = torch.tensor([0, 5, 5, 12])


def spans_by_hand(logits, can_answer, begin, end, max_tokens):
    return sorted(((float(logits[i, 0] + logits[j, 1]), i, j)
                   for i in range(begin, end) for j in range(i, min(i + max_tokens, end))
                   if can_answer[i] and can_answer[j]), reverse=True)


@pytest.mark.parametrize('max_tokens', [1, 3, 30])
@pytest.mark.parametrize('num_best', [1, 4, 50])
def test_the_best_spans_have_the_highest_scores(num_best, max_tokens):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 2, generator=generator)
    can_answer = torch.rand(12, generator=generator) < .7
    score, first, last = best_spans(logits, PTR, can_answer, num_best=num_best,
                                    max_tokens=max_tokens)
    assert score.shape == first.shape == last.shape == (3, num_best)
    for sequence, (begin, end) in enumerate(zip(PTR.tolist(), PTR.tolist()[1:])):
        expected = spans_by_hand(logits, can_answer, begin, end, max_tokens)[:num_best]
        found = [row for row in zip(score[sequence].tolist(), first[sequence].tolist(),
                                    last[sequence].tolist()) if row[0] > -math.inf]
        assert [row[1:] for row in found] == [row[1:] for row in expected]
        assert [row[0] for row in found] == pytest.approx([row[0] for row in expected])


def test_no_sequences_have_no_spans():
    spans = best_spans(torch.zeros(0, 2), torch.tensor([0]), torch.zeros(0).bool(), num_best=3)
    assert spans.score.shape == spans.first.shape == (0, 3)
