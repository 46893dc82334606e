"""The contract of a batch: what is missing or wrong is named."""

import pytest
import torch

from experiments.data.batch import ChoiceBatch, TextBatch, TokenBatch, check_batch

TOKENS, PTR, LABEL = torch.tensor([5, 3, 9, 5]), torch.tensor([0, 1, 4]), torch.tensor([1, 0])
GOOD = TokenBatch(TOKENS, PTR, LABEL)


@pytest.mark.parametrize('batch, words', [
    ({'input_ids': TOKENS, 'ptr': PTR}, "'tokens' .*missing"),
    ((TOKENS, PTR, LABEL), "'tokens'.*missing .*tuple"), (TOKENS, "'tokens' .*missing"),
    (GOOD._replace(label=[1, 0]), "'label'.*list"),
    (GOOD._replace(tokens=TOKENS.int()), "'tokens'.*int32"),
    (GOOD._replace(label=LABEL.float()), "'label'.*float32"),
    (GOOD._replace(tokens=TOKENS.view(2, 2)), "'tokens'.*shape .2, 2."),
    (GOOD._replace(ptr=torch.tensor([0, 1])), "'ptr' .*got .0, 1."),
    (GOOD._replace(ptr=torch.tensor([0, 3, 1, 4])), "'ptr' of a batch"),
    (GOOD._replace(ptr=torch.tensor([], dtype=torch.int64)), "'ptr' of a batch"),
    (GOOD._replace(label=TOKENS[:3]), "'label'")])
def test_what_is_wrong_with_a_batch_is_named(batch, words):
    with pytest.raises((TypeError, ValueError), match=words):
        check_batch(batch)


def test_batches_of_other_objectives_have_fields_of_their_own():
    score = TextBatch(TOKENS, PTR, TOKENS, TOKENS[:0], TOKENS[:0], LABEL.float())
    check_batch(score, TextBatch)
    with pytest.raises(TypeError, match="but 'num_global'.*missing .got TextBatch"):
        check_batch(score, ChoiceBatch)
