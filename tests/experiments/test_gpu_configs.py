"""Objectives take their steps on a GPU: who waits for it has a reason."""

from __future__ import annotations

import pytest
import torch

from graphattn.functional import choose
from tests.experiments.test_configs import CONFIGS, batches, built, whole, with_pretraining

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.simulated_gpu import simulated_gpu  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]

# How often a step waits: for what the bounds of ids are, and where sequences begin; and then for
# edges that the batch decides. Its backward pass never does.
WAITS = {
    'choices/swag': 8,
    'choices/wikihop': 14,
    'density/digits': 2,
    'digits/bigbird': 2,
    'digits/diffuser': 2,
    'digits/full': 2,
    'digits/nystromformer': 2,
    'documents/imdb': 2,
    'duplicates/diffuser': 2,
    'glue/local': 3,
    'glue/sparsebert': 3,
    'lra/clean/listops': 2,
    'lra/clean/retrieval': 2,
    'lra/sbm/text': 4,
    'mlm/small': 4,
    'mlm/small_dam_s': 7,
    'mlm/small_soft': 5,
    'pretraining/diffuser': 4,
    'questions/squad2': 7,
    'questions/triviaqa': 14,
}


@pytest.fixture
def gpu(monkeypatch):
    # Whose operators are not torch's, and want a real GPU.
    monkeypatch.setattr('torch_geometric.typing.WITH_TORCH_SCATTER', False)
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', 'gather')
    with torch.random.fork_rng(devices=[]), simulated_gpu() as waits:
        torch.manual_seed(0)
        yield waits


@pytest.mark.filterwarnings('ignore:You are trying to `self.log')
@pytest.mark.parametrize('name', WAITS)
def test_an_objective_takes_a_step_there(gpu, name, tmp_path):
    objective, data = built(with_pretraining(whole(CONFIGS / f'{name}.yaml'), tmp_path))
    objective.to('cuda').train()

    def batch():
        return objective.transfer_batch_to_device(next(batches(objective, data)),
                                                  torch.device('cuda'), 0)

    objective.training_step(batch(), 0).backward()  # builds what is kept
    objective.zero_grad()
    gpu.clear()
    loss = objective.training_step(batch(), 0)
    assert gpu.total() <= WAITS[name], gpu
    gpu.clear()
    loss.backward()
    assert not gpu
    assert {x.grad.device.type for x in objective.parameters() if x.grad is not None} == {'cuda'}
    with torch.inference_mode():
        objective.eval().validation_step(batch(), 0)
