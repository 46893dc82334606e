"""Adapters of kernels that need a GPU pass arguments as the published signatures name them: stubs
with these signatures compute what the arguments say."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
from graphattn.testing.adapters import adapters
from graphattn.testing.call import Kernel
from graphattn.testing.case import draw
from graphattn.testing.definition import attend


def dense(query, key, value, mask, scale=None, softcap=None, sink=None, bias=None):
    """Attend with tensors ``[1, nodes, heads, channels]``."""
    graph = BipartiteGraph.from_mask(mask)
    if bias is not None:
        bias = bias.squeeze(0).movedim(0, -1)[graph.query, graph.key.long()]
    return edge_attention(query[0], key[0], value[0], graph, scale=scale, softcap=softcap or None,
                          sink=sink, edge_bias=bias, backend='reference').unsqueeze(0)


def distance(query, key):
    """Return how many tokens each key is before each query, aligned at the last of both."""
    rows, columns = query.size(1), key.size(1)
    return torch.arange(rows).unsqueeze(1) + columns - rows - torch.arange(columns)


def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False,
                    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1,
                    pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None,
                    mask_mod=None, aux_tensors=None):
    before, after = (1_000 if size is None else size for size in window_size)
    mask = (distance(q, k) <= before) & (distance(q, k) >= -after)
    if mask_mod is not None:
        mask = torch.tensor([[bool(mask_mod([0], [0], [row], [column], None, aux_tensors))
                              for column in range(k.size(1))] for row in range(q.size(1))])
    return dense(q, k, v, mask, softmax_scale, softcap, learnable_sink), None


def sdpa_torch(query, key, value, *, scale=None, is_causal=False, causal_bottom_right=False,
               window_left=-1, window_right=-1, sinks=None, return_lse=False):
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    before = distance(query, key)
    before = before if causal_bottom_right else before - before[0, 0]
    mask = torch.ones_like(before, dtype=torch.bool)
    mask &= (before < window_left) if window_left >= 0 else True
    mask &= (before >= -window_right) if window_right >= 0 else True
    assert return_lse  # for the backward pass
    return dense(query, key, value, mask, scale).transpose(1, 2), None


class Graph:
    """The part of ``cudnn.pygraph`` that attention needs."""

    def __init__(self, *, io_data_type, intermediate_data_type, compute_data_type):
        pass

    def tensor_like(self, x):
        return Descriptor()

    def sdpa(self, q, k, v, is_inference=None, attn_scale=None, bias=None, *, name='',
             generate_stats=None, sink_token=None):
        self.call = q, k, v, bias, sink_token, attn_scale
        self.out = Descriptor()
        return self.out, None

    def validate(self):
        pass

    build_operation_graph = check_support = build_plans = validate

    def create_execution_plans(self, modes):
        pass

    def get_workspace_size(self):
        return 1

    def execute(self, variant_pack, workspace, handle=None):
        *nodes, bias, sink, scale = self.call
        q, k, v = (variant_pack[each].transpose(1, 2) for each in nodes)
        bias, sink = variant_pack[bias], None if sink is None else variant_pack[sink].flatten()
        mask = torch.ones(q.size(1), k.size(1), dtype=torch.bool)
        variant_pack[self.out].copy_(dense(q, k, v, mask, scale, sink=sink,
                                           bias=bias).transpose(1, 2))


class Descriptor:
    def set_output(self, is_output):
        return self

    set_dim = set_stride = set_output


def edge_index_to_csc(edge_index, num_nodes=None, reverse=True, edges_are_dst_sorted=False):
    row, column = edge_index[:, edge_index[1].argsort(stable=True)]
    colptr = torch.bincount(column, minlength=num_nodes[1]).cumsum(0)
    return (row, colptr), None, (None, None, column)


def graph_transformer_attention_conv(query, key, value, edges, csc, reverse):
    assert not edges.any() and edges.shape == (len(csc[0]), *query.shape[1:])
    assert csc[1][-1] == len(csc[0])
    graph = BipartiteGraph(torch.stack([csc[0], reverse[2]]), len(query), len(key))
    return edge_attention(query, key, value, graph, backend='reference')


def flash_dense_attn_func(query, key, value, is_causal=False, softmax_scale=None, query_scale=None,
                          key_scale=None, value_scale=None, window_sizes=None, is_local=False):
    before, column = distance(query, key), torch.arange(key.size(1))
    mask = before >= 0 if is_causal else before > -1_000
    if window_sizes is not None:
        assert window_sizes.shape == (key.size(2), 4) and window_sizes.dtype == torch.int32
        first, left, right, near = window_sizes[0].tolist()
        far = (before >= near + right) & (before < near + right + left)
        mask &= (column < first) | (before < near) | far
    return dense(query, key, value, mask, softmax_scale)


def flash_sparse_attn_func(query, key, value, is_causal=False, softmax_scale=None, query_scale=None,
                           key_scale=None, value_scale=None, window_sizes=None,
                           softmax_threshold=None, is_local=False):
    assert softmax_threshold == 0
    return flash_dense_attn_func(query, key, value, is_causal, softmax_scale,
                                 window_sizes=window_sizes)


STUBS = {
    'flash_attn.cute': [flash_attn_func],
    'cutlass': [],
    'cudnn': [sdpa_torch],
    'anemoi.models.triton.gt': [graph_transformer_attention_conv],
    'anemoi.models.triton.utils': [edge_index_to_csc],
    'flash_sparse_attn': [flash_dense_attn_func, flash_sparse_attn_func],
}
PAGES = ('flash_attn_4', 'cudnn', 'anemoi', 'flash_sparse_attn')
NAMES = [name for name in adapters() if name.startswith(PAGES)]


@pytest.fixture
def stubs(monkeypatch):
    for path, functions in STUBS.items():
        for end in range(1, path.count('.') + 2):
            name = '.'.join(path.split('.')[:end])
            if name not in sys.modules or not isinstance(sys.modules[name], Stub):
                monkeypatch.setitem(sys.modules, name, Stub(name))
        for function in functions:
            setattr(sys.modules[path], function.__name__, function)
    sys.modules['flash_attn.cute'].utils = SimpleNamespace(scalar_to_ssa=lambda x, dtype: x)
    sys.modules['cutlass'].__dict__.update(Int32=int, cute=SimpleNamespace(jit=lambda f: f))
    kinds = SimpleNamespace(HALF=0, BFLOAT16=1, FLOAT=2)
    sys.modules['cudnn'].__dict__.update(
        pygraph=Graph, data_type=kinds, heur_mode=SimpleNamespace(A=0, FALLBACK=1),
        create_handle=lambda: None)


class Stub(ModuleType):
    """A package of one module."""

    __path__: list[str] = []


def kernel_of(adapter):
    return Kernel(adapter.function, adapter.supports, adapter.form, adapter.layout,
                  torch.device('cpu'))


def drawn(adapter, graph, term):
    """Return a case with a term that the kernel has, in half precision and with grouped queries."""
    options = {term: 1.5} if term in ('scale', 'softcap') else {'terms': [term] if term else []}
    kv_heads = 1 if adapter.supports.grouped_queries else 2
    return draw('', graph, torch.float16, heads=2, kv_heads=kv_heads, **options)


TERMS = {'bias': 'edge_bias', 'sink': 'sink', 'scale': 'scale', 'softcap': 'softcap'}
PAIRS = [(name, term) for name in NAMES for flag, term in {'': '', **TERMS}.items()
         if not flag or getattr(adapters()[name].supports, flag)]


@pytest.mark.parametrize('name, term', PAIRS)
def test_arguments_mean_the_declared_graph(name, term, stubs):
    adapter = adapters()[name]
    kernel = kernel_of(adapter)
    graphs = adapter.graphs() if adapter.graphs else {'': BipartiteGraph.from_mask(
        torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) < 0.6)}
    for graph in graphs.values():
        case = drawn(adapter, graph, term)
        out = kernel.outward('out', kernel.call(case, kernel.arguments(case)), case)
        right = attend(case, {key: x.double() for key, x in case.inputs.items()})[0]
        torch.testing.assert_close(out.detach().double(), right, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize('name', NAMES)
def test_a_kernel_takes_the_terms_that_it_declares(name):
    adapter, graph = adapters()[name], BipartiteGraph.from_mask(torch.ones(2, 2, dtype=torch.bool))
    for flag, term in TERMS.items():
        assert kernel_of(adapter).accepts(drawn(adapter, graph, term)) == getattr(
            adapter.supports, flag)
