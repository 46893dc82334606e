"""Strategies of hypothesis: the structure of a case, and a seed from which its values are drawn."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.ops import Backend

# Vector registers, tiles of a row, and what is left of them.
WIDTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255,
                          256, 257]) | st.integers(1, 257)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float32, torch.float64,
                          torch.bfloat16, torch.float16])
SEEDS = st.integers(0, 2**32 - 1)
Arguments = dict[str, Tensor | float | tuple[float, ...]]
LAYOUTS = ('contiguous', 'transposed', 'strided', 'offset', 'same for all heads')
MAX_PRODUCTS = 2**21  # of one case, which keeps it at a few milliseconds


# Graphs ##############################################################################


@dataclass(frozen=True)
class GraphCase:
    """Segments of some sizes, of whose pairs some are edges."""

    sizes: tuple[tuple[int, int], ...]  # queries and keys of each segment
    density: float
    idle: float  # share of the queries, and of the keys, that have no edge
    seed: int

    @property
    def num_queries(self) -> int:
        return sum(n for n, _ in self.sizes)

    @property
    def num_keys(self) -> int:
        return sum(m for _, m in self.sizes)

    @property
    def num_pairs(self) -> int:
        return sum(n * m for n, m in self.sizes)

    def ptrs(self) -> tuple[Tensor, Tensor]:
        return tuple(torch.tensor([0, *lengths]).cumsum(0) for lengths in
                     ([n for n, _ in self.sizes], [m for _, m in self.sizes]))

    def mask(self) -> Tensor:
        """Return which query attends to which key, ``[num_queries, num_keys]``."""
        generator = torch.Generator().manual_seed(self.seed)
        mask = torch.zeros(self.num_queries, self.num_keys, dtype=torch.bool)
        row = column = 0
        for n, m in self.sizes:
            mask[row:row + n, column:column + m] = (
                torch.rand(n, m, generator=generator) < self.density)
            row, column = row + n, column + m
        mask[torch.rand(self.num_queries, generator=generator) < self.idle] = False
        mask[:, torch.rand(self.num_keys, generator=generator) < self.idle] = False
        return mask

    def shuffled(self) -> Tensor:
        """The edges in no order, some of them twice, int64 ``[2, num_edges or more]``."""
        query, key = self.mask().nonzero().t()
        generator = torch.Generator().manual_seed(self.seed)
        edges = torch.stack([key, query])
        edges = torch.cat([edges, edges[:, torch.rand(key.numel(), generator=generator) < 0.3]], 1)
        return edges[:, torch.randperm(edges.size(1), generator=generator)]

    def build(self) -> BipartiteGraph:
        query_ptr, key_ptr = self.ptrs()
        return BipartiteGraph.from_edge_index(self.shuffled(), self.num_queries, self.num_keys,
                                              query_ptr=query_ptr, key_ptr=key_ptr)


_SHORT, _LONG = st.integers(1, 9), st.integers(10, 300)
_RECTANGLES = (st.tuples(_SHORT, _SHORT) | st.tuples(st.integers(1, 3), _LONG)
               | st.tuples(_LONG, st.integers(1, 3)) | st.tuples(_SHORT, _SHORT)
               | st.sampled_from([(1, 1), (0, 3), (4, 0), (0, 0)]))
_TOKENS = _SHORT | st.integers(10, 70) | st.integers(0, 9)


def graph_cases(*, square: bool = False, small: bool = False,
                densities: tuple[float, ...] = (1., 0.7, 0.4, 0.1)
                ) -> st.SearchStrategy[GraphCase]:
    sizes = (st.integers(0, 9) if small else _TOKENS).map(lambda n: (n, n))
    sizes = sizes if square or small else _RECTANGLES
    return st.builds(
        GraphCase, sizes=st.lists(sizes, min_size=1, max_size=4).map(tuple),
        density=st.sampled_from(densities), idle=st.sampled_from([0., 0.2]), seed=SEEDS)


# Attention ###########################################################################


@dataclass(frozen=True)
class Teleport:
    """Teleport of each hop."""

    shape: str  # 'number', 'each hop', or a Tensor '[]', '[heads]', '[tokens, heads]', '[hops, ...'
    ends: str  # what most of them are: 'none' of 0 or 1, 'low', exactly 'zeros', 'ones', or 'both'

    def draw(self, hops: int | float, num_tokens: int, heads: int, dtype: torch.dtype,
             generator: torch.Generator) -> float | tuple[float, ...] | Tensor:
        hops = 1 if hops == math.inf else hops
        shape = {'number': (), 'each hop': (hops,), '[]': (), '[heads]': (heads,),
                 '[tokens, heads]': (num_tokens, heads),
                 '[hops, tokens, heads]': (hops, num_tokens, heads)}[self.shape]
        inside = 0.05 + 0.9 * torch.rand(shape, generator=generator)
        end = torch.randint(2, shape, generator=generator).float()
        end = {'low': 0 * end + 0.02, 'zeros': 0 * end, 'ones': 0 * end + 1}.get(self.ends, end)
        share = {'none': 0.}.get(self.ends, 0.6)
        teleport = torch.where(torch.rand(shape, generator=generator) < share, end, inside)
        teleport = teleport.to(dtype)
        return {'number': teleport.tolist, 'each hop': lambda: tuple(teleport.tolist())}.get(
            self.shape, lambda: teleport)()


@dataclass(frozen=True)
class AttentionCase:
    """The arguments of ``edge_attention``.

    ``exact`` dot products are those of small integers and powers of two: they, and the logits, are
    the same in whatever order they are summed, so that even a bias of 1e9 leaves nothing to
    rounding.
    """

    graph: GraphCase
    heads: int = 1
    channels: int = 1
    value_channels: int = 1
    dtype: torch.dtype = torch.float32
    exact: bool = False
    magnitude: float = 1.  # of queries
    bias: str | None = None  # 'moderate', 'high', 'mixed', 'some -inf' or 'all -inf'
    gate: bool = False
    heads_differ: bool = False  # in their bias and gate
    terms_learn: bool = True  # bias and gate, that is
    hops: int | float = 1
    teleport: Teleport | None = None
    layout: str = 'contiguous'
    wants_weights: bool = False
    seed: int = 0

    @property
    def scale(self) -> float | None:
        return 0.25 if self.exact else None

    def within(self, backend: Backend) -> 'AttentionCase':
        """Without what a backend says that it does not take."""
        case = self if backend.takes_gate else replace(self, gate=False)
        return case if backend.returns_weights else replace(case, wants_weights=False)

    def draw(self) -> Arguments:
        """The numbers, some of them Tensors, in the layout."""
        graph, generator = self.graph.build(), torch.Generator().manual_seed(self.seed)
        shapes = {'query': (graph.num_queries, self.heads, self.channels),
                  'key': (graph.num_keys, self.heads, self.channels),
                  'value': (graph.num_keys, self.heads, self.value_channels)}
        drawn = {name: self._numbers(shape, generator) for name, shape in shapes.items()}
        drawn['query'] = drawn['query'] * self.magnitude
        drawn['value'] = torch.randn(shapes['value'], generator=generator)
        on_edges = (graph.num_edges, self.heads)[:2 if self.heads_differ else 1]
        if self.bias is not None:
            drawn['edge_bias'] = self._bias(graph.query, on_edges, generator)
        if self.gate:
            powers = torch.tensor([1., 0.5, 2., -1., 0.])
            drawn['edge_gate'] = (
                powers[torch.randint(5, on_edges, generator=generator)] if self.exact else
                torch.randn(on_edges, generator=generator))
        drawn = {name: laid_out(tensor.to(self.dtype), self.layout)
                 for name, tensor in drawn.items()}
        if self.teleport is not None:
            drawn['teleport'] = self.teleport.draw(self.hops, graph.num_queries, self.heads,
                                                   self.dtype, generator)
        return drawn

    def cotangent(self, like: Tensor) -> Tensor:
        """Return the tensor that a result is multiplied by before its gradient is taken."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return laid_out(torch.randn(like.shape, generator=generator).to(like.dtype), self.layout)

    def _numbers(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if self.exact:
            return torch.randint(-3, 4, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    def _bias(self, query: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        moderate = torch.randn(shape, generator=generator).double()
        largest = torch.finfo(self.dtype).max
        high = torch.tensor([1e4, -1e4, min(1e9, largest), max(-1e9, -largest), largest, -largest],
                            dtype=torch.float64)
        of_query = high[torch.randint(6, (self.graph.num_queries, *shape[1:]),
                                      generator=generator)][query]
        of_edge = high[torch.randint(6, shape, generator=generator)]
        is_rare = torch.rand(shape, generator=generator) < 0.3
        return {'moderate': moderate, 'high': of_query,
                'mixed': torch.where(is_rare, of_edge, moderate),
                'some -inf': moderate.masked_fill(is_rare, -torch.inf),
                'all -inf': torch.where(query % 3 > 0, moderate.t(), -torch.inf).t(),
                }[self.bias]


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers elsewhere in memory; for ``'same for all heads'`` those of head 0."""
    if layout == 'transposed':
        back = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(back).contiguous().permute(back)
    if layout == 'strided':
        room = tensor.new_full([2 * size for size in tensor.shape], torch.nan)
        view = room[tuple(slice(1, None, 2) for _ in tensor.shape)]
        return view.copy_(tensor)
    if layout == 'offset':
        room = tensor.new_full((tensor.numel() + 1,), torch.nan)
        return room[1:].view(tensor.shape).copy_(tensor)
    if layout == 'same for all heads' and tensor.dim() > 1:
        return tensor[:, :1].expand(tensor.shape)
    return tensor.contiguous()


@st.composite
def attention_cases(draw: st.DrawFn, graphs: st.SearchStrategy[GraphCase] | None = None, *,
                    widths: st.SearchStrategy[int] = WIDTHS, max_heads: int = 9,
                    dtypes: st.SearchStrategy[torch.dtype] = DTYPES,
                    **fields: st.SearchStrategy) -> AttentionCase:
    """Draw a case with moderate values, one hop, contiguous and plain, unless ``fields`` say
    otherwise."""
    graph = draw(graph_cases() if graphs is None else graphs)
    channels, value_channels = draw(widths), draw(widths)
    work = graph.num_queries * graph.num_keys * (channels + value_channels)
    return AttentionCase(
        graph, heads=draw(st.integers(1, max(1, min(max_heads, MAX_PRODUCTS // max(work, 1))))),
        channels=channels, value_channels=value_channels, dtype=draw(dtypes),
        **{name: draw(field) for name, field in fields.items()}, seed=draw(SEEDS))


def teleports(*, ends: tuple[str, ...], shapes: tuple[str, ...] = (
        'number', 'each hop', '[]', '[heads]', '[tokens, heads]', '[hops, tokens, heads]')
        ) -> st.SearchStrategy[Teleport]:
    return st.builds(Teleport, shape=st.sampled_from(shapes), ends=st.sampled_from(ends))
