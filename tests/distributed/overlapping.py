"""Attention that computes while keys are on their way, beside attention that waits for them, and
beside one process that has all keys."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphattn import BipartiteGraph, ops, patterns
from graphattn.distributed import sequence_parallel
from graphattn.functional.drive import drive
from graphattn.functional.folding import fold
from graphattn.layers import GraphAttention
from graphattn.ops import LogitTerms
from graphattn.ops.attention.schema import dropout_seed
from graphattn.ops.edge_math import drop_out
from graphattn.patterns import Causal, GlobalTokens, RandomKeys, SlidingWindow
from graphattn.placement import Exchange, Placement, overlap
from graphattn.placement.messages import Message

NUM_TOKENS, HEADS, CHANNELS, PTR = 37, 4, 3, torch.tensor([0, 15, 15, 37])
ROUNDING = {torch.double: 0., torch.bfloat16: .1}


def always() -> None:
    """Compute while keys are on their way where it does not pay, too: graphs are small here."""
    overlap.EDGES_OF_A_FAR_QUERY = 0


def of_sequences(pattern: patterns.Pattern) -> BipartiteGraph:
    return BipartiteGraph.batch([pattern.build(length, seed=3, crop=True)
                                 for length in PTR.diff().tolist()])


def between(processes: Callable[[Tensor, Tensor], Tensor]) -> BipartiteGraph:
    """All pairs of tokens whose processes stand in a relation."""
    owner = torch.arange(NUM_TOKENS) * dist.get_world_size() // NUM_TOKENS
    return BipartiteGraph.from_mask(processes(owner.unsqueeze(1), owner))


def some_rows() -> BipartiteGraph:
    mask = RandomKeys(9).build(NUM_TOKENS, seed=0).to_mask()
    mask[::3] = False
    return BipartiteGraph.from_mask(mask)


GRAPHS = {
    'windows of sequences': lambda: of_sequences(SlidingWindow(2)),
    'global and random': lambda: of_sequences(
        SlidingWindow(1) | GlobalTokens(1) | RandomKeys(2)),
    'causal': lambda: Causal().build(NUM_TOKENS),
    'every head': lambda: BipartiteGraph.batch(
        [of_sequences(SlidingWindow(width)) for width in range(1, HEADS)]
        + [of_sequences(RandomKeys(3))]),
    'queries without keys': some_rows,
    'keys of other processes only': lambda: between(torch.ne),
    'keys of the last process only': lambda: between(
        lambda query, key: (query >= 0) & (key == dist.get_world_size() - 1)),
    'own keys only': lambda: between(torch.eq),
}


def of_edges(graph: BipartiteGraph) -> Tensor:
    """A value for each edge and head; an edge of folded heads has one head."""
    return torch.randn(graph.num_edges, 1 if graph.num_queries > NUM_TOKENS else HEADS)


EDGES = dict(bias=of_edges, gate=lambda graph: torch.randn(graph.num_edges))
TERMS = {
    'plain': {}, 'grouped queries': dict(num_kv_heads=2), 'softcap': dict(softcap=.7),
    'scale': dict(scale=.3), 'bias': dict(bias=EDGES['bias']), 'gate': dict(gate=EDGES['gate']),
    'sink': dict(sink=lambda graph: torch.randn(HEADS)), 'dropout': dict(dropout_p=.4),
    'large logits': dict(scale=4e3),
    'edges that weigh nothing': dict(bias=lambda graph: torch.where(
        torch.rand(graph.num_edges) < .5, -torch.inf, 0.)),
    'all': dict(num_kv_heads=1, softcap=2., sink=lambda graph: torch.randn(HEADS), dropout_p=.2,
                **EDGES),
    'half precision': dict(dtype=torch.bfloat16, **EDGES),
}


class Rows(nn.Module):
    """Attention without projections, for ``sequence_parallel``."""

    def __init__(self):
        super().__init__()
        self.layer = GraphAttention(HEADS, HEADS)

    def forward(self, x: Tensor, ptr: Tensor, *, placement, generator,
                attend: Callable) -> list[Tensor]:
        return attend(placement)


def compare(graph: BipartiteGraph, *, num_kv_heads: int = HEADS, dtype=torch.double, scale=None,
            softcap=None, dropout_p=0., **tensors: Callable) -> dict[str, float]:
    """The largest differences of outputs and gradients."""
    torch.manual_seed(1)
    nodes = [torch.randn(NUM_TOKENS, heads, CHANNELS).to(dtype).double()
             for heads in (HEADS, num_kv_heads, num_kv_heads, HEADS)]
    made = {name: make(graph).to(dtype).double() for name, make in tensors.items()}
    owners = HEADS if graph.num_queries > NUM_TOKENS else None
    if owners:
        nodes[1:3] = [x.repeat_interleave(HEADS // num_kv_heads, dim=1) for x in nodes[1:3]]
    parallel = sequence_parallel(Rows(), dist.group.WORLD)
    own, terms = parallel.share(PTR), LogitTerms(scale=scale, softcap=softcap, dropout_p=dropout_p)
    token = torch.arange(graph.num_queries) % NUM_TOKENS
    is_own = (token >= own.start) & (token < own.stop)
    rows, keep = rows_of(graph, is_own), is_own[graph.query]
    made = {name: x if name == 'sink' else x[keep] for name, x in made.items()}

    def grads(out: Tensor, leaves: list[Tensor], *, is_whole: bool) -> list[Tensor]:
        found = torch.autograd.grad((out.double() * nodes[3][own]).sum(), leaves)
        if is_whole:
            found = [*(added(grad)[own] for grad in found[:3]), *found[3:]]
        return [out, *found]

    def leaves_of(dtype: torch.dtype, rows: slice) -> list[Tensor]:
        return [x.to(dtype).requires_grad_() for x in (*(x[rows] for x in nodes[:3]),
                                                       *made.values())]

    def attend(shard, is_plain: bool) -> tuple[list[Tensor], Exchange]:
        leaves = leaves_of(dtype, own)
        shard.halos.given[rows] = True
        placement = shard.place(parallel.module.layer.attention, leaves[1], rows, owners,
                                hops=1, teleport=0., dropout_p=dropout_p)
        if is_plain:
            placement._halo = placement._halo._replace(split=None)
        torch.manual_seed(5)
        out, _ = drive(*leaves[:3], rows, terms._replace(**dict(zip(made, leaves[3:]))), 1, 0.,
                       placement, backend='numba')
        return grads(out, leaves, is_whole=False), placement

    def run(is_plain: bool) -> tuple[list[Tensor], Exchange]:
        return parallel(nodes[0][own], PTR, own=own, attend=partial(attend, is_plain=is_plain))

    found, placement = run(False)
    leaves = leaves_of(torch.double, slice(None))
    expected = grads(whole(leaves, rows, own, terms._replace(**dict(zip(made, leaves[3:]))),
                           owners, placement), leaves, is_whole=True)
    differences = {'one process': apart(found, expected, dtype)}
    if dropout_p == 0:  # which drops other weights
        differences['waiting'] = apart(found, run(True)[0], dtype)
    return differences


def rows_of(graph: BipartiteGraph, is_own: Tensor) -> BipartiteGraph:
    """Rows of own queries, with the segments of a shard."""
    kept = is_own[graph.query]
    number = torch.cat([torch.zeros(1, dtype=torch.long), is_own.cumsum(0)])
    return BipartiteGraph(torch.stack([graph.key[kept], number[graph.query[kept]]]),
                          int(number[-1]), graph.num_keys,
                          query_ptr=number[graph.segments.query_ptr],
                          key_ptr=graph.segments.key_ptr)


def whole(leaves: list[Tensor], rows: BipartiteGraph, own: slice, terms: LogitTerms,
          owners: int | None, placement: Exchange) -> Tensor:
    """Attention of own queries to all keys, with the dropout of both parts."""
    query, key, value = leaves[0][own], *leaves[1:3]
    dropout_p, plain = terms.dropout_p, terms._replace(dropout_p=0.)
    if dropout_p == 0 or not placement.in_parts:
        torch.manual_seed(5)
        return drive(query, key, value, rows, terms, 1, 0., Placement(owners), backend='gather')[0]
    out, weight = drive(query, key, value, rows, plain, 1, 0., Placement(owners),
                        backend='gather', needs_weights=True)
    torch.manual_seed(5)
    kept, is_far = torch.ones_like(weight), placement._halo.split.is_far
    for part in (~is_far, is_far):
        kept[part] = drop_out(kept[part], dropout_seed(dropout_p, weight.device), dropout_p)
    values = value if owners is None else fold(value, owners)
    values = values.repeat_interleave(weight.size(1) // values.size(1), dim=1)
    sums = ops.load('gather').weighted_sum(weight * kept, values, rows)
    return Placement(owners).put(sums)


def added(grad: Tensor) -> Tensor:
    """The sum over processes."""
    grad = grad.clone()
    dist.all_reduce(grad)
    return grad


def apart(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> float:
    return max(float(((x.detach().double() - y.detach().double()).abs()
                      - ROUNDING[dtype] * (1 + y.detach().double().abs())).max().clamp(min=0))
               if x.numel() else 0. for x, y in zip(found, expected))


def along(name: str) -> dict[str, float]:
    """Differences along a graph: with each term along two graphs, else with none and with all."""
    graph, found = GRAPHS[name](), {}
    for terms in TERMS if name in WITH_EACH_TERM else ('plain', 'all'):
        found |= {f'{terms}, {beside}': difference
                  for beside, difference in compare(graph, **TERMS[terms]).items()}
    return found


WITH_EACH_TERM = 'global and random', 'every head'


CASES = {f'overlapped along {name}': partial(along, name) for name in GRAPHS}


# Order ###############################################################################


def wait_for_one_another(world: int) -> None:
    """Send only after the last process has computed its near edges, forward and backward. If it
    waited for the messages first, all would wait for ever."""
    dist.init_process_group('gloo', timeout=timedelta(seconds=60))
    store, is_last = dist.distributed_c10d._get_default_store(), dist.get_rank() == world - 1
    kernel, events, send = ops.load('numba'), [], Message.__init__

    def told(event: str, run: Callable) -> Callable:
        def telling(*given):
            result = run(*given)
            events.append(event)
            if is_last:
                store.set(f'{event} {events.count(event)}', '')
            return result
        return telling

    def late(message: Message, *given) -> None:
        number = events.count('send') + 1
        if not is_last:
            # The last process computes far gradients, which it sends, before near ones.
            store.wait([['attend 1', 'grads 2'][number - 1]], timedelta(seconds=30))
        send(message, *given)
        events.append('send')

    always()
    Message.__init__, Message.wait = late, told('wait', Message.wait)
    kernel = replace(kernel, attention_part=told('attend', kernel.attention_part),
                     attention_part_grads=told('grads', kernel.attention_part_grads))
    graph = SlidingWindow(9).build(NUM_TOKENS)
    parallel = sequence_parallel(Rows(), dist.group.WORLD)
    whole = torch.tensor([0, NUM_TOKENS])
    own = parallel.share(whole)
    is_own = torch.zeros(NUM_TOKENS, dtype=torch.bool)
    is_own[own] = True
    nodes = [torch.randn(own.stop - own.start, HEADS, CHANNELS, requires_grad=True)
             for _ in range(3)]

    def attend(shard) -> None:
        rows = rows_of(graph, is_own)
        shard.halos.given[rows] = True
        out, _ = drive(*nodes, rows, LogitTerms(scale=None), 1, 0., shard.place(
            parallel.module.layer.attention, nodes[1], rows, None, hops=1, teleport=0.,
            dropout_p=0.), backend=kernel)
        out.sum().backward()

    parallel(nodes[0].detach(), whole, own=own, attend=attend, generator=torch.Generator())
    print(*events, sep=', ')
    os._exit(0)
