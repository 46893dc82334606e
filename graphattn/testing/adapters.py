"""Kernels of other libraries, ready to be examined; each imports its library when it is called.

``python -m graphattn.testing.adapters NAME ...`` examines some, and without names all that run
here. Projections of modules are the identity.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from graphattn.graphs.graph import BipartiteGraph
from graphattn.patterns import GlobalTokens, SlidingWindow
from graphattn.testing.check import check_attention
from graphattn.testing.report import Report
from graphattn.testing.supports import DTYPES, Supports

__all__ = ['ADAPTERS', 'Adapter']


@dataclass(frozen=True)
class Adapter:
    """Another library's attention in the form that :func:`check_attention` calls."""

    function: Callable[..., Tensor]  # of query, key, value, edges, and terms by name
    package: str
    supports: Supports
    form: str = 'mask'
    layout: str = 'bhnc'
    graphs: Callable[[], Mapping[str, BipartiteGraph]] | None = None
    device: str = 'cpu'
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, **options: Any) -> Report:
        graphs = None if self.graphs is None else self.graphs()
        return check_attention(self.function, supports=self.supports, form=self.form,
                               layout=self.layout, graphs=graphs, device=self.device,
                               **{**self.options, **options})


# torch ###############################################################################


def torch_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
               edge_bias: Tensor | None = None, scale: float | None = None, dropout_p: float = 0.,
               kernels: tuple[SDPBackend, ...] = tuple(SDPBackend.__members__.values())) -> Tensor:
    if edge_bias is not None:
        mask = edge_bias.masked_fill(~mask, -torch.inf)
    with sdpa_kernel(list(kernels)):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout_p, scale=scale,
            enable_gqa=key.size(1) < query.size(1))


def torch_multihead(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                    edge_bias: Tensor | None = None, dropout_p: float = 0.,
                    needs_weights: bool = False) -> Tensor:
    """Return the result of the function of ``nn.MultiheadAttention``."""
    _, heads, num_queries, channels = query.shape
    identity = torch.eye(heads * channels, dtype=query.dtype, device=query.device)
    if edge_bias is not None:
        mask = edge_bias.squeeze(0).masked_fill(~mask, -torch.inf)
    else:
        mask = ~mask  # True keeps a query from a key here
    rows = [x.squeeze(0).transpose(0, 1).reshape(x.size(2), 1, heads * channels)
            for x in (query, key, value)]
    out, _ = F.multi_head_attention_forward(
        *rows, heads * channels, heads, None, None, None, None, False, dropout_p, identity, None,
        training=True, need_weights=needs_weights, attn_mask=mask, use_separate_proj_weight=True,
        q_proj_weight=identity, k_proj_weight=identity, v_proj_weight=identity)
    return out.view(num_queries, heads, channels).transpose(0, 1).unsqueeze(0)


def torch_flex(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, *,
               edge_bias: Tensor | None = None, edge_gate: Tensor | None = None,
               scale: float | None = None, softcap: float | None = None,
               sink: Tensor | None = None, attend: Callable = flex_attention) -> Tensor:
    """Return FlexAttention, without a backward pass on CPUs; a sink takes its share afterwards."""
    # By the log-sum-exp, as in flex_attention_forward of transformers. Compiled for CPUs it
    # returns none.
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor,
                  column: Tensor) -> Tensor:
        score = score if edge_gate is None else score * edge_gate[batch, head, row, column]
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if edge_bias is None else score + edge_bias[batch, head, row, column]

    has_terms = any(term is not None for term in (edge_bias, edge_gate, softcap))
    out, aux = attend(query, key, value, score_mod if has_terms else None, block_mask, scale=scale,
                      enable_gqa=key.size(1) < query.size(1),
                      return_aux=AuxRequest(lse=sink is not None))
    if sink is None:
        return out
    least = torch.finfo(sink.dtype).min  # avoids -inf - -inf
    rest = (aux.lse - sink.clamp(min=least).view(1, -1, 1)).sigmoid().unsqueeze(-1)
    return (out * rest).to(out.dtype)


def _compiled(*arguments: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(flex_attention)(*arguments, **options)


# PyG #################################################################################


class _Given(torch.nn.Module):
    def __init__(self, result: Tensor):
        super().__init__()
        self.result = result

    # a copy, because Longformer scales the result in place
    def forward(self, x: Tensor) -> Tensor:
        is_transposed = x.dim() == 3 and x.size(0) == self.result.size(1)
        return (self.result.transpose(0, 1) if is_transposed else self.result).clone()


def pyg_transformer(query: Tensor, key: Tensor, value: Tensor, edge_index: Tensor, *,
                    dropout_p: float = 0.) -> Tensor:
    from torch_geometric.nn import TransformerConv
    _, heads, channels = query.shape
    conv = TransformerConv(heads * channels, channels, heads, dropout=dropout_p, root_weight=False,
                           bias=False)
    by_row = query, key, value = [x.flatten(1) for x in (query, key, value)]
    conv.lin_query, conv.lin_key, conv.lin_value = map(_Given, by_row)
    return conv((key, query), edge_index).view(-1, heads, channels)


# transformers ########################################################################


def transformers_eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                       edge_bias: Tensor | None = None, scale: float | None = None,
                       dropout_p: float = 0.) -> Tensor:
    return _attend(_eager_of('llama'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p)


def transformers_gemma2(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                        edge_bias: Tensor | None = None, scale: float | None = None,
                        softcap: float | None = None, dropout_p: float = 0.) -> Tensor:
    return _attend(_eager_of('gemma2'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p, softcap=softcap)


def transformers_gpt_oss(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                         edge_bias: Tensor | None = None, scale: float | None = None,
                         sink: Tensor | None = None, dropout_p: float = 0.) -> Tensor:
    none = query.new_full((query.size(1),), -torch.inf)
    return _attend(_eager_of('gpt_oss'), query, key, value, _added(mask, query, edge_bias), scale,
                   dropout_p, sinks=none if sink is None else sink)


def transformers_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *,
                      scale: float | None = None, dropout_p: float = 0.) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    return _attend(sdpa_attention_forward, query, key, value, mask[None, None], scale, dropout_p)


def _eager_of(family: str) -> Callable[..., tuple[Tensor, Tensor]]:
    return import_module(f'transformers.models.{family}.modeling_{family}').eager_attention_forward


def _added(mask: Tensor, query: Tensor, bias: Tensor | None) -> Tensor:
    # [1, heads, num_queries, num_keys]
    lowest = torch.finfo(query.dtype).min  # what masking_utils fills in
    additive = torch.zeros_like(mask, dtype=query.dtype) if bias is None else bias
    return additive.masked_fill(~mask, lowest).expand(1, query.size(1), *mask.shape)


def _attend(attend: Callable[..., tuple[Tensor, Tensor]], query: Tensor, key: Tensor,
            value: Tensor, mask: Tensor, scale: float | None, dropout_p: float,
            sinks: Tensor | None = None, **options: Any) -> Tensor:
    module = SimpleNamespace(num_key_value_groups=query.size(1) // key.size(1), training=True,
                             is_causal=False, sinks=sinks)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    out, _ = attend(module, query, key, value, mask, dropout=dropout_p, scaling=scale, **options)
    return out.transpose(1, 2)


WINDOW = 2  # tokens on each side


def longformer(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return Longformer's attention along a window and global tokens, which attend to all keys."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
    _, num_tokens, heads, channels = query.shape
    size = heads * channels
    config = SimpleNamespace(hidden_size=size, num_attention_heads=heads,
                             attention_probs_dropout_prob=0., attention_window=[2 * WINDOW])
    module = LongformerSelfAttention(config, 0)
    by_row = [x.reshape(1, num_tokens, size) for x in (query, key, value)]
    for name, x in zip(('query', 'key', 'value'), by_row):
        setattr(module, name, _Given(x))
        # Global queries are selected from the input, which is the query.
        setattr(module, f'{name}_global', torch.nn.Identity() if name == 'query' else _Given(x))
    is_global = mask.all(1).unsqueeze(0) if not mask.all() else torch.zeros(
        1, num_tokens, dtype=torch.bool)
    out, = module(by_row[0], attention_mask=10_000. * is_global,
                  is_index_masked=torch.zeros_like(is_global), is_index_global_attn=is_global,
                  is_global_attn=bool(is_global.any()))
    return out.view(1, num_tokens, heads, channels)


def _longformer_graphs() -> Mapping[str, BipartiteGraph]:
    window = SlidingWindow(WINDOW)
    return {'window of 8 tokens': window.build(8), 'window of 40 tokens': window.build(40),
            'one global token': (window | GlobalTokens(1)).build(12),
            'three global tokens': (window | GlobalTokens(3)).build(40)}


BLOCK, NUM_RANDOM, SEED = 2, 1, 5


def big_bird(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return BigBird's attention, without use of ``mask``."""
    # a call for each head, so that all have the random blocks of the first
    heads = zip(*(x.split(1, dim=1) for x in (query, key, value)), strict=True)
    return torch.cat([_big_bird_head(*nodes) for nodes in heads], dim=1)


def _big_bird_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel
    num_tokens, channels = query.shape[2:]
    module = _big_bird_module(num_tokens)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, num_tokens, dtype=query.dtype), BLOCK)
    out, _ = module.bigbird_block_sparse_attention(
        query, key, value, band, rows, columns, blocked, blocked, 1, NUM_RANDOM, channels, BLOCK,
        BLOCK, 1, num_tokens, num_tokens, SEED, None, None)
    return out.view(1, num_tokens, 1, channels).transpose(1, 2)


def _big_bird_module(num_tokens: int) -> Any:
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
    config = SimpleNamespace(max_position_embeddings=num_tokens, hidden_size=4,
                             num_attention_heads=1, num_random_blocks=NUM_RANDOM, block_size=BLOCK,
                             use_bias=False)
    return BigBirdBlockSparseAttention(config, SEED)


def _big_bird_graph(num_tokens: int) -> BipartiteGraph:
    """Return BigBird's published mask: global ends, neighbours, and the module's random blocks."""
    module, count = _big_bird_module(num_tokens), num_tokens // BLOCK
    blocks = torch.zeros(count, count, dtype=torch.bool)
    blocks[[0, -1]] = blocks[:, [0, -1]] = True
    for offset in (-1, 0, 1):
        blocks |= torch.ones(count, dtype=torch.bool).diag().roll(offset, 1)
    plan, state = module._get_rand_attn_plan(num_tokens, BLOCK, NUM_RANDOM), np.random.get_state()
    np.random.seed(SEED)
    drawn = module._bigbird_block_rand_mask_with_head(
        num_tokens, num_tokens, BLOCK, BLOCK, 1, *plan)[0]
    np.random.set_state(state)  # of the caller
    for row, columns in enumerate(drawn, 1):
        blocks[row, torch.as_tensor(columns).long()] = True
    return BipartiteGraph.from_mask(blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1))


# The table ###########################################################################


OF_WINDOWS = Supports(dtypes=DTYPES[:2], strides=True, deterministic=True)
PYG = Supports.everything(
    bias=False, gate=False, scale=False, softcap=False, sink=False, grouped_queries=False,
    value_channels=False, exact_logits=False, compiles=False, limits={
        'repeated edges': 'edges are a multiset in PyG',
        'half precision': 'logits are rounded to half precision',
        'nothing to attend to': 'the same, in bfloat16'})
FLEX = Supports(gradients=False, dtypes=DTYPES, bias=True, gate=True, scale=True, softcap=True,
                sink=True, grouped_queries=True, value_channels=True, rectangular=True,
                empty_rows=True, strides=True, deterministic=True,
                limits={'nothing to attend to': 'without keys at all it raises an IndexError'})
FLEX_CUDA = Supports.everything(dtypes=DTYPES[1:], dropout=False, second_derivatives=False,
                                exact_logits=False, isolates_nan=False, compiles=False)
# A kernel is compiled for each case, in seconds.
FEW = ['scale', 'softcap', 'one head, many heads', 'grouped queries', 'sizes of logits']
MULTIHEAD = Supports(
    dtypes=DTYPES, bias=True, rectangular=True, empty_rows=True, strides=True, dropout=True,
    deterministic=True, limits={'nothing to attend to': 'with need_weights queries without keys '
                                'are NaN, no keys at all with a bias are refused'})
SDPA = Supports.everything(gate=False, softcap=False, sink=False, second_derivatives=False,
                           exact_logits=False, isolates_nan=False, compiles=False)
LIMITS = {'double precision': 'the softmax is computed in float32',
          'nothing to attend to': 'a query without keys attends to all of them'}
EAGER = Supports(dtypes=DTYPES, scale=True, grouped_queries=True, value_channels=True,
                 rectangular=True, strides=True, dropout=True, deterministic=True, limits=LIMITS)
ADAPTERS = {
    'big_bird': Adapter(big_bird, 'transformers', OF_WINDOWS, graphs=lambda: {
        f'{size} tokens': _big_bird_graph(size) for size in (16, 40)}),
    'longformer': Adapter(
        longformer, 'transformers',
        replace(OF_WINDOWS, limits={'double precision': LIMITS['double precision']}),
        layout='bnhc', graphs=_longformer_graphs),
    'pyg_transformer': Adapter(pyg_transformer, 'torch_geometric', PYG, 'edge_index', 'nhc'),
    'torch_flex': Adapter(torch_flex, 'torch', FLEX, 'block_mask'),
    'torch_flex_compiled': Adapter(
        partial(torch_flex, attend=_compiled), 'torch', replace(FLEX, sink=False), 'block_mask',
        options={'checks': FEW, 'time_limit': 120.}),
    'torch_flex_cuda': Adapter(partial(torch_flex, attend=_compiled), 'torch', FLEX_CUDA,
                               'block_mask', device='cuda', options={'time_limit': 120.}),
    'torch_multihead': Adapter(torch_multihead, 'torch', MULTIHEAD),
    'torch_multihead_weights': Adapter(partial(torch_multihead, needs_weights=True), 'torch',
                                       MULTIHEAD),
    'torch_sdpa': Adapter(torch_sdpa, 'torch', SDPA),
    'torch_sdpa_math': Adapter(partial(torch_sdpa, kernels=(SDPBackend.MATH,)), 'torch', SDPA),
    'torch_sdpa_flash': Adapter(
        partial(torch_sdpa, kernels=(SDPBackend.FLASH_ATTENTION,)), 'torch',
        replace(SDPA, bias=False, value_channels=False, strides=False, dropout=False)),
    'transformers_eager': Adapter(transformers_eager, 'transformers', EAGER),
    'transformers_gemma2': Adapter(transformers_gemma2, 'transformers',
                                   replace(EAGER, softcap=True)),
    'transformers_gpt_oss': Adapter(transformers_gpt_oss, 'transformers', replace(
        EAGER, sink=True, limits={'nothing to attend to': LIMITS['nothing to attend to']})),
    'transformers_sdpa': Adapter(transformers_sdpa, 'transformers', replace(
        EAGER, limits={'nothing to attend to': 'no queries are refused by torch'})),
}


def main(names: list[str]) -> None:
    warnings.simplefilter('ignore')
    if unknown := set(names) - ADAPTERS.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ADAPTERS)}")
    for name in names or ADAPTERS:
        print(f'\n## {name}\n\n{examined(ADAPTERS[name])}')


def examined(adapter: Adapter) -> str:
    """Check the kernel of an adapter, and return report and findings, or why it cannot run."""
    if find_spec(adapter.package) is None:
        return f'{adapter.package} is not installed'
    if adapter.device == 'cuda' and not torch.cuda.is_available():
        return 'there is no GPU'
    report = adapter.check(on_fail='report')
    return '\n\n'.join(map(str, [report, *report.findings, *report.limits]))


if __name__ == '__main__':  # under its own name, by which scripts import its functions
    import_module('graphattn.testing.adapters').main(sys.argv[1:])
