"""Contract of every layer and model: copies, compiled code, any order of calls."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch_geometric.explain import AttentionExplainer, Explainer

from graphattn import BipartiteGraph
from graphattn.layers import EdgeAttention, EncoderLayer, GraphAttention
from graphattn.models import Encoder, MaskedLanguageModel, TokenClassifier
from graphattn.patterns import RandomKeys, SlidingWindow
from graphattn.sources import (
    BlockModelSource,
    ContentClusterSource,
    GraphSource,
    LearnedMaskSource,
    PatternSource,
)
from tests.around_source import AroundSource
from tests.clusters import cluster_source
from tests.copies import COPIES

CHANNELS, HEADS = 8, 2
PTR = torch.tensor([0, 5, 5, 12])
SOURCES: dict[str, Callable[[], GraphSource]] = {
    'pattern': lambda: PatternSource(SlidingWindow(1)),
    'pattern of each head': lambda: PatternSource([SlidingWindow(1), RandomKeys(2)]),
    'drawn pattern': lambda: PatternSource(RandomKeys(2), seed=None),
    'block model': lambda: BlockModelSource(HEADS, CHANNELS // HEADS, 3),
    'clusters': lambda: cluster_source(HEADS, CHANNELS // HEADS),
    'learned mask': lambda: LearnedMaskSource(HEADS, 12),
    'soft mask': lambda: LearnedMaskSource(HEADS, 12, mode='soft'),
}
ENCODER = dict(num_tokens=9, max_length=12, channels=CHANNELS, heads=HEADS, num_layers=2)


def encoder(source: GraphSource, **options) -> Encoder:
    return Encoder(source, **ENCODER, **options)


MODULES: dict[str, Callable[[GraphSource], nn.Module]] = {
    'attention': lambda source: GraphAttention(CHANNELS, HEADS, source),
    'diffusion': lambda source: GraphAttention(CHANNELS, HEADS, source, hops=3, teleport=0.1,
                                               learn_teleport=True),
    'recomputed': lambda source: GraphAttention(CHANNELS, HEADS, source, recompute=True),
    'layer': lambda source: EncoderLayer(CHANNELS, HEADS, source),
    'encoder': encoder,
    'shared source': lambda source: encoder(source, share_source=True),
    'checkpointed': lambda source: encoder(source, checkpoint_layers=True),
    'tokens': lambda source: TokenClassifier(encoder(source), 3),
    'language': lambda source: MaskedLanguageModel(encoder(source), next_sentence=False),
}


@pytest.fixture(params=SOURCES)
def source(request) -> GraphSource:
    torch.manual_seed(0)
    return SOURCES[request.param]()


# The others hand their source to one of these: a fixed graph and a drawn one are enough for them.
WITH_ALL_SOURCES = {'attention', 'recomputed', 'checkpointed'}
PAIRS = [(kind, name) for kind in MODULES for name in SOURCES
         if kind in WITH_ALL_SOURCES or name in ('pattern', 'block model')]


@pytest.fixture(params=PAIRS, ids=', '.join)
def module(request) -> nn.Module:
    kind, name = request.param
    torch.manual_seed(0)
    return MODULES[kind](SOURCES[name]())


def tokens(module: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if isinstance(module, GraphAttention | EncoderLayer):
        x = torch.randn(12, CHANNELS, generator=generator)
        return x.to(next(module.parameters()).dtype)
    return torch.randint(9, (12,), generator=generator)


def run(module: nn.Module, x: Tensor | None = None, seed: int = 3) -> Tensor:
    """The output; whatever is drawn comes from one seed."""
    torch.manual_seed(seed)
    out = module(tokens(module) if x is None else x, PTR)
    return out[0] if isinstance(out, tuple) else out


def train(module: nn.Module, x: Tensor | None = None) -> list[Tensor | None]:
    """Output and gradients of one step in training mode."""
    module.train().zero_grad()
    out = run(module, x)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in module.parameters())]


def evaluate(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return run(module.eval())


def assert_same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


# Copies ##############################################################################


@pytest.mark.slow
def test_copies_return_the_same(module):
    fresh = {name: make(module) for name, make in COPIES.items()}
    trained, evaluated = train(module), evaluate(module)
    with torch.inference_mode():
        module.eval()(tokens(module), PTR)
    for name, make in COPIES.items():
        assert_same(train(fresh[name]), trained)
        assert_same(evaluate(make(module)), evaluated)


class Adapter(nn.Module):
    """A layer beside which another is learned (LoRA, Hu et al., 2022), without its attributes."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))

    def merged(self) -> Tensor:
        return self.layer.weight + self.up.weight @ self.down.weight


class Quantised(nn.Module):
    """A layer with weights of 8 bits."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.scale, self.bias = layer.weight.detach().abs().max() / 127, layer.bias
        self.weight = nn.Parameter((layer.weight / self.scale).round().to(torch.int8), False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.merged(), self.bias)

    def merged(self) -> Tensor:
        return self.weight * self.scale


@pytest.mark.slow
@pytest.mark.parametrize('other', [Adapter, Quantised])
def test_another_module_may_replace_a_projection(module, other):
    replaced = copy.deepcopy(module)
    for name, part in module.named_modules():
        if type(part) is nn.Linear:
            parent, _, own = name.rpartition('.')
            stand_in = other(replaced.get_submodule(name))
            setattr(replaced.get_submodule(parent), own, stand_in)
            part.weight.data = stand_in.merged().detach()
    assert_same(evaluate(replaced), evaluate(module))


class Wrapped(nn.Module):
    """A module around another, without its attributes."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


@pytest.mark.parametrize('kinds, around', [((nn.LayerNorm, nn.Embedding), Wrapped),
                                           (GraphSource, AroundSource)])
def test_another_module_may_stand_around_a_part(module, kinds, around):
    wrapped = copy.deepcopy(module)
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            parent, _, own = name.rpartition('.')
            setattr(wrapped.get_submodule(parent), own, around(wrapped.get_submodule(name)))
    assert_same(evaluate(wrapped), evaluate(module))


@pytest.mark.parametrize('positions', ['learned', 'sinusoidal', 'rotary', 'none'])
def test_a_module_built_on_meta_has_the_loaded_parameters(positions):
    def build() -> Encoder:
        return encoder(PatternSource([SlidingWindow(1), RandomKeys(2)]), positions=positions)

    original = build()
    state, expected = copy.deepcopy(original.state_dict()), evaluate(original)
    with torch.device('meta'):
        empty = build()
    # A table that was rounded is not the one there was either.
    for module in (empty.to_empty(device='cpu'), original.half().float()):
        module.load_state_dict(state)
        assert_same(evaluate(module), expected)


def test_a_state_dict_only_holds_parameters_and_clusters_and_running_adds_nothing(module):
    names, modules = set(module.state_dict()), [name for name, _ in module.named_modules()]
    of_clusters = {name for name, _ in module.named_buffers() if 'source.clusters.' in name}
    train(module), evaluate(module)
    assert set(module.state_dict()) == names
    assert [name for name, _ in module.named_modules()] == modules
    assert names == {name for name, _ in module.named_parameters()} | of_clusters
    assert all(isinstance(value, Tensor) for value in module.state_dict().values())


# Order ###############################################################################


def test_evaluation_in_inference_mode_and_then_training(module):
    expected = train(copy.deepcopy(module))
    with torch.inference_mode():
        run(module.eval())
    assert_same(train(module), expected)


class AutocastOfCuda(TorchFunctionMode):
    """Operations that CUDA's autocast casts, on a CPU: to half, or to float32."""

    TO_HALF = {'matmul', '__matmul__', 'linear', 'bmm', 'mm', 'addmm', 'baddbmm', 'einsum',
               'scaled_dot_product_attention'}
    TO_FLOAT = {'softmax', 'log_softmax', 'exp', 'log', 'pow', 'sum', 'cumsum', 'layer_norm',
                'norm', 'prod'}

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        name, dtype = getattr(function, '__name__', ''), None
        if torch.is_autocast_enabled('cpu'):  # where the library has not switched it off
            dtype = (torch.half if name in self.TO_HALF else
                     torch.float if name in self.TO_FLOAT else None)
        if dtype is not None:
            def cast(x):
                return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
            args, kwargs = tree_map(cast, args), tree_map(cast, kwargs or {})
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize('hops', [1, 2])
def test_rules_of_cudas_autocast(source, hops):
    module = GraphAttention(CHANNELS, HEADS, source, hops=hops, teleport=0.1 * (hops - 1))
    x = tokens(module).requires_grad_()
    # On a CPU autocast itself is to cast nothing: bfloat16 is what it casts to, half what we do.
    with AutocastOfCuda(), torch.autocast('cpu', dtype=torch.half):
        torch.manual_seed(3)
        out = module(x, PTR)
        assert out.dtype == torch.half
        out.float().square().sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    if not isinstance(source, BlockModelSource):  # whose graph is another one where numbers round
        torch.manual_seed(3)
        torch.testing.assert_close(out.float(), module(x, PTR), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_threads_may_call_one_module_at_once(source):
    module = GraphAttention(CHANNELS, HEADS, source).eval()
    ptrs = [torch.tensor([0, cut, 12]) for cut in range(13)]
    x = tokens(module)

    def ask(ptr: Tensor) -> Tensor:
        with torch.no_grad():
            return module(x, ptr, generator=torch.Generator().manual_seed(0))

    expected = [ask(ptr) for ptr in ptrs]
    with ThreadPoolExecutor(8) as pool:
        for out, right in zip(pool.map(ask, ptrs * 8), expected * 8):
            assert_same(out, right)


# Computed twice ######################################################################


class Reentrant(nn.Module):
    """Runs a module without gradients, and again in the backward pass."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, ptr: Tensor) -> Tensor:
        return checkpoint(self.module, x.requires_grad_(), ptr, use_reentrant=True)


@pytest.mark.parametrize('name', [*SOURCES, 'wide window'])
def test_a_checkpoint_that_begins_without_gradients_drops_the_same_weights(name):
    # Most pairs of short sequences are its edges, for which other kernels may be faster.
    source = SOURCES[name]() if name in SOURCES else PatternSource(SlidingWindow(3))
    module = GraphAttention(CHANNELS, HEADS, source, dropout=0.4)
    expected = [out_or_grad.clone() for out_or_grad in train(module, tokens(module))]
    assert_same(train(Reentrant(module), tokens(module)), expected)


def test_changing_a_module_after_the_forward_pass_does_not_change_gradients(module):
    """The backward pass recomputes from the inputs of the forward pass."""
    expected = train(copy.deepcopy(module))
    parameters = {name: value.detach().clone().requires_grad_()
                  for name, value in module.named_parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.1)
    torch.manual_seed(3)
    out = functional_call(module.train(), parameters, (tokens(module), PTR))
    out = out[0] if isinstance(out, tuple) else out
    module.eval()
    grads = torch.autograd.grad(out.square().sum(), parameters.values(), allow_unused=True)
    assert_same([out.detach(), *grads], expected)
    assert not module.training
    assert all(bool((parameter == 0.1).all()) for parameter in module.parameters())


# torch.compile #######################################################################


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name, steps', [('block model', [train, evaluate]),
                                         ('soft mask', [train])])
def test_compiled_modules_return_the_eager_values(name, steps, clean_dynamo):
    """Every backward pass along graphs is also traced, below and in tests of the kernels."""
    torch.manual_seed(0)
    module = MODULES['attention'](SOURCES[name]()).double()  # kernels differ where graphs are dense
    expected = [step(module) for step in steps]
    module.compile(backend='eager')
    for _ in range(2):
        assert_same([step(module) for step in steps], expected)


@pytest.mark.slow
@pytest.mark.parametrize('kind, name', [
    ('recomputed', 'pattern of each head'), ('checkpointed', 'pattern')])
def test_patterns_compile_without_graph_breaks(kind, name, clean_dynamo):
    torch.manual_seed(0)
    module = MODULES[kind](SOURCES[name]())
    expected = train(module)
    run_compiled = torch.compile(module, fullgraph=True, backend='aot_eager')
    module.zero_grad()
    out = run_compiled(tokens(module), PTR)
    out.square().sum().backward()
    assert_same([out.detach(), *(parameter.grad for parameter in module.parameters())], expected)


GRAPH = BipartiteGraph.batch([SlidingWindow(1).build(length) for length in (5, 0, 7)])


@pytest.mark.slow
@pytest.mark.parametrize('layer', [EdgeAttention(), EdgeAttention(hops=2, teleport=0.2),
                                   GraphAttention(CHANNELS, HEADS)], ids=['edges', 'hops', 'all'])
def test_a_layer_with_a_given_graph_is_exported(layer):
    if isinstance(layer, GraphAttention):
        arguments = (tokens(layer), PTR), {'graph': GRAPH}
    else:
        arguments = (*torch.randn(3, 12, HEADS, 4), GRAPH), {}
    exported = torch.export.export(layer.eval(), *arguments).module()
    assert_same(exported(*arguments[0], **arguments[1]), layer(*arguments[0], **arguments[1]))


@pytest.mark.slow
@pytest.mark.parametrize('strict', [False, True])
def test_an_exported_layer_accepts_graphs_with_other_edges_in_any_order(strict):
    layer, edges = GraphAttention(CHANNELS, HEADS).eval(), [None, {0: torch.export.Dim.DYNAMIC}]
    exported = torch.export.export(
        layer, (tokens(layer), PTR), {'graph': GRAPH}, strict=strict,
        dynamic_shapes={'x': None, 'ptr': None, 'graph': [*edges, None, None]}).module()
    for graph in (GRAPH, GRAPH.causal(), GRAPH.without_self_loops()):
        reordered = BipartiteGraph.from_edge_index(graph.edge_index.as_tensor().flip(1), 12,
                                                   query_ptr=PTR)
        for given in (graph, reordered):
            assert_same(exported(tokens(layer), PTR, graph=given),
                        layer(tokens(layer), PTR, graph=given))


@pytest.mark.slow
@pytest.mark.parametrize('kind, strict', [('attention', True), ('encoder', False)])
def test_a_module_is_exported_for_any_number_of_tokens_and_sequences(kind, strict):
    module = MODULES[kind](SOURCES['pattern of each head']()).eval()
    shapes = {0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(module, (tokens(module), PTR), dynamic_shapes=shapes,
                                   strict=strict).module()
    x, ptr = torch.cat([tokens(module)] * 2), torch.tensor([0, 3, 12, 12, 24])
    assert_same(exported(x, ptr), module(x, ptr))


# torch.func ##########################################################################


def test_gradients_by_torch_func(source):
    module = GraphAttention(CHANNELS, HEADS, source)
    x, expected = tokens(module), train(module)[1:]

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return functional_call(module, parameters, (x, PTR)).square().sum()

    parameters = {name: value.detach() for name, value in module.named_parameters()}
    grads = torch.func.grad(loss)(parameters, x)
    assert_same(list(grads.values()), [torch.zeros_like(grad) if right is None else right
                                       for grad, right in zip(grads.values(), expected)])
    samples = torch.stack([x, 2 * x])
    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness='same')
    if isinstance(source, BlockModelSource | ContentClusterSource):
        with pytest.raises(NotImplementedError, match='batched by torch.vmap'):
            of_each(parameters, samples)
    else:
        second = torch.func.grad(loss)(parameters, samples[1])
        for name, grad in of_each(parameters, samples).items():
            assert_same(grad, torch.stack([grads[name], second[name]]))


# Explainers and hooks #################################################################


class OneQuery(nn.Module):
    """Six tokens of which query 0 attends to all, key 5 alone having a value."""

    def __init__(self, with_graph: bool):
        super().__init__()
        self.attention, self.with_graph = EdgeAttention(), with_graph

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edges = (BipartiteGraph.from_edge_index(edge_index, 6) if self.with_graph else edge_index)
        query, key = torch.ones(6, 1, 1), 9 * (torch.arange(6) == 5).float().view(6, 1, 1)
        return self.attention(query, key, x.unsqueeze(1), edges).squeeze(1)


def explain(edge_index: Tensor, with_graph: bool) -> Tensor:
    explainer = Explainer(OneQuery(with_graph), AttentionExplainer(), explanation_type='model',
                          edge_mask_type='object',
                          model_config=dict(mode='regression', task_level='node'))
    return explainer(torch.ones(6, 1), edge_index).edge_mask


def test_an_explainer_masks_edges_in_the_users_order_or_is_refused():
    shuffled = torch.tensor([[5, 0, 1, 2, 3, 4], [0] * 6])
    ascending = torch.tensor([[0, 1, 2, 3, 4, 5], [0] * 6])
    assert explain(shuffled, with_graph=False).argmax() == 0
    assert explain(ascending, with_graph=False).argmax() == 5
    assert explain(ascending, with_graph=True).argmax() == 5
    with pytest.raises(ValueError, match="'graph' must have its edges in the order"):
        explain(shuffled, with_graph=True)


def test_hooks_that_exclude_each_other_are_refused():
    layer = EdgeAttention()
    layer.register_message_forward_hook(lambda *args: None)
    layer.register_message_and_aggregate_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match="hooks on 'message_and_aggregate' never fire"):
        layer(*torch.randn(3, 12, HEADS, 4), GRAPH)


@pytest.mark.parametrize('option', [{'aggr': 'max'}, {'aggr': 'mean'}, {'aggr': None},
                                    {'aggr': ['add', 'max']}, {'flow': 'target_to_source'},
                                    {'decomposed_layers': 2}])
def test_arguments_that_one_way_does_not_support_are_refused(option):
    with pytest.raises(ValueError, match=f"'{next(iter(option))}' must be"):
        EdgeAttention(**option)
    assert EdgeAttention(aggr='sum', flow='source_to_target').aggr == 'sum'


# A graph of other sequences ###########################################################


def test_a_graph_of_other_sequences_is_refused():
    attention = GraphAttention(CHANNELS, HEADS)
    x, other = torch.randn(7, CHANNELS), torch.tensor([0, 3, 7])
    with pytest.raises(ValueError, match="'graph' must have 7 queries and keys, or 14"):
        attention(x, other, graph=SlidingWindow(1).build(6))
    graph = PatternSource(SlidingWindow(1))(x.unsqueeze(1), x.unsqueeze(1),
                                            torch.tensor([0, 4, 7]))
    one_segment = SlidingWindow(1).build(7)
    for each in (graph, BipartiteGraph.batch([graph] * HEADS), one_segment):
        with pytest.raises(ValueError,
                           match="'graph' must have the sequences of 'ptr' as segments"):
            attention(x, other, graph=each)
    assert attention(x, torch.tensor([0, 4, 7]), graph=graph).shape == x.shape
    assert attention(x, torch.tensor([0, 7]), graph=one_segment).shape == x.shape
    layer = EncoderLayer(CHANNELS, HEADS)
    with pytest.raises(ValueError, match="'graph' must have the sequences of 'ptr'"):
        layer(x, other, graph=graph)
