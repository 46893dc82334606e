"""Modules take their steps on a GPU: who waits for it has a reason."""

import pytest
import torch

from graphattn.functional import choose
from tests.experiments.test_configs import CONFIGS, batches, built, whole, with_pretraining

pytest.importorskip('triton', reason="backend 'triton' needs triton")

from tests.simulated_gpu import simulated_gpu  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore::RuntimeWarning'),
              pytest.mark.skipif(torch.cuda.is_available(), reason='there is a real one')]

# How often a step waits: for what the bounds of ids are, where sequences begin, and whether those
# of a graph begin there; and then for edges that the batch decides. Its backward pass does where it
# computes layers again, twice for each.
WAITS = {
    'choices/swag': 9,
    'choices/wikihop': 15,
    'density/digits': 3,
    'digits/bigbird': 2,
    'digits/nystromformer': 2,
    'documents/imdb': 3,
    'glue/sparsebert': 4,
    'lra/clean/retrieval': 3,
    'lra/sbm/text': 4,
    'mlm/small_dam_s': 7,
    'pretraining/diffuser': 5,
    'questions/triviaqa': 15,
}
COMPUTED_AGAIN = {'choices/wikihop', 'documents/imdb', 'pretraining/diffuser', 'questions/triviaqa'}


@pytest.fixture
def gpu(monkeypatch):
    # Whose operators are not torch's, and want a real GPU.
    monkeypatch.setattr('torch_geometric.typing.WITH_TORCH_SCATTER', False)
    monkeypatch.setitem(choose.FASTEST_SPARSE, 'cuda', choose.GATHER)
    with torch.random.fork_rng(devices=[]), simulated_gpu() as waits:
        torch.manual_seed(0)
        yield waits


@pytest.mark.filterwarnings('ignore:You are trying to `self.log')
@pytest.mark.parametrize('name', WAITS)
def test_an_objective_takes_a_step_there(gpu, name, tmp_path):
    module, data = built(with_pretraining(whole(CONFIGS / f'{name}.yaml'), tmp_path))
    module.to('cuda').train()

    def batch():
        return module.transfer_batch_to_device(next(batches(module, data)),
                                               torch.device('cuda'), 0)

    module.training_step(batch(), 0).backward()  # builds what is kept
    module.zero_grad()
    gpu.clear()
    loss = module.training_step(batch(), 0)
    assert gpu.total() <= WAITS[name], gpu
    gpu.clear()
    loss.backward()
    assert gpu.total() <= (4 if name in COMPUTED_AGAIN else 0), gpu
    assert {x.grad.device.type for x in module.parameters() if x.grad is not None} == {'cuda'}
    with torch.inference_mode():
        module.eval().validation_step(batch(), 0)
