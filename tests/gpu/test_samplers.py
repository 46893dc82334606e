"""Draw on a real GPU, and compare what is drawn with the distributions."""

import pytest
import torch

from graphattn.functional import edge_probability
from graphattn.samplers import FactorModel
from tests.graphs import random_graph
from tests.samplers import test_contract as contract

tiles = pytest.importorskip('graphattn.ops.triton.tiles', reason='kernels for GPUs need triton')

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'),
              pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')]


def on_gpu(model: FactorModel) -> FactorModel:
    factors = (model.query_factor, model.mixing, model.key_factor)
    return FactorModel(*(x.cuda() for x in factors), query_ptr=model.query_ptr.cuda(),
                       key_ptr=model.key_ptr.cuda(), exploration=model.exploration)


class OnGpu(contract.Way):
    """Draws on the GPU, and returns the graph on the CPU."""

    def __call__(self, model, generator=None, **options):
        seed = None if generator is None else generator.initial_seed()
        there = torch.Generator('cuda').manual_seed(0 if seed is None else seed)
        return super().__call__(on_gpu(model), generator=there, **options).to('cpu')


WAYS = {name: OnGpu(way.sampler, way.method) for name, way in contract.WAYS.items()}
TESTS = (contract.test_cells_follow_the_distribution, contract.test_cells_are_independent)


@pytest.mark.parametrize('test', TESTS, ids=lambda test: test.__name__)
@pytest.mark.parametrize('model', contract.MODELS)
@pytest.mark.parametrize('way', WAYS)
def test_cells(way, model, test):
    test(WAYS[way], contract.MODELS[model])


@pytest.mark.parametrize('test', [
    contract.test_edge_counts_agree_with_expected_edges,
    contract.test_a_cell_of_probability_zero_is_never_drawn,
    contract.test_clusters_of_query_and_key_stay_paired,
    contract.test_each_edge_is_drawn_once], ids=lambda test: test.__name__)
@pytest.mark.parametrize('way', WAYS)
def test_graphs(way, test):
    test(WAYS[way])


@pytest.mark.parametrize('by', ['rows', 'tiles'])
@pytest.mark.parametrize('clusters', [1, 5, 32, 128, 256, 300])
def test_probabilities_are_those_of_a_cpu(clusters, by):
    model = contract.random_model(70, 50, clusters, density=0.2)
    graph = random_graph(70, 50)
    there = graph.to('cuda')
    if by == 'tiles':  # as attention plans them
        for indptr, column, num_columns in ((*there.csr, 50), (*there.csc[:2], 70)):
            assert tiles.plan(indptr, column, num_columns, heads=1, edges=1) is not None
    found = [probabilities(on_gpu(model), there), probabilities(model, graph)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=5e-5)


def probabilities(model: FactorModel, graph) -> list[torch.Tensor]:
    factors = [x.detach().requires_grad_() for x in (model.query_factor, model.mixing,
                                                     model.key_factor)]
    prob = edge_probability(FactorModel(*factors), graph)
    grad_out = torch.linspace(-1, 1, graph.num_edges, device=graph.device)
    return [x.cpu() for x in (prob.detach(), *torch.autograd.grad(prob, factors, grad_out))]
