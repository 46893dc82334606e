"""Cases that every process of a group runs beside one process, and cases that it must refuse."""

import copy
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from graphattn import BipartiteGraph, distributed, patterns
from graphattn.distributed import SequenceParallel, sequence_parallel
from graphattn.layers import GraphAttention
from graphattn.models import Encoder, SequenceClassifier
from graphattn.ops.sample.cpu import thinning
from graphattn.patterns import GlobalTokens, RandomKeys, SlidingWindow
from graphattn.placement import messages
from graphattn.sources import BlockModelSource, GraphSource, LearnedMaskSource, PatternSource
from tests.clusters import cluster_source
from tests.distributed import decoding, overlapping
from tests.shards import same_rows

PTR = torch.tensor([0, 21, 21, 29, 83])  # one sequence without tokens
NUM_TOKENS, CHANNELS, HEADS = 83, 16, 2
TIMEOUT = timedelta(seconds=400)
WINDOW_GLOBAL_RANDOM = SlidingWindow(3) | GlobalTokens(2) | RandomKeys(2)
DIFFUSER = patterns.get('diffuser', window=8, num_global=4, num_random=4)


def encoder(source: GraphSource, **options) -> Encoder:
    torch.manual_seed(0)
    return Encoder(source, num_tokens=50, max_length=64, channels=CHANNELS, heads=HEADS,
                   num_layers=2, **options).double()


def inputs(module) -> tuple[Tensor, Tensor]:
    """Tokens, or their features, and what the output is multiplied with."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, NUM_TOKENS, CHANNELS, dtype=torch.double, generator=generator)
    tokens = torch.randint(50, (NUM_TOKENS,), generator=generator)
    return (tokens if isinstance(module, Encoder) else x[0]), x[1]


def of_whole(module, arguments: Callable[[slice], dict]) -> tuple:
    """Output, graphs and gradients of one process."""
    x, target = inputs(module)
    x = x.requires_grad_() if x.is_floating_point() else x
    out, graphs = module(x, PTR, **arguments(slice(0, NUM_TOKENS)))
    (out * target).sum().backward()
    return out, graphs, x.grad


def compare(module, own: Callable[[SequenceParallel], slice] | None = None,
            arguments: Callable[[slice], dict] = lambda own: {}) -> dict:
    """The largest differences between one process and this one, over two steps of training after
    an evaluation."""
    returned = 'return_graphs' if isinstance(module, Encoder) else 'return_graph'
    one, parallel = copy.deepcopy(module), sequence_parallel(module, dist.group.WORLD)
    x, target = inputs(module)
    mine = parallel.share(PTR) if own is None else own(parallel)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    evaluate(parallel, x[mine], own=mine, **arguments(mine))
    for _ in range(2):
        one.zero_grad()
        module.zero_grad()
        out, graphs, grad = of_whole(one, lambda rows: {
            returned: True, 'generator': generators[0], **arguments(rows)})
        part = x[mine].clone()
        part = part.requires_grad_() if part.is_floating_point() else part
        own_out, own_graphs = parallel(part, PTR, own=mine, generator=generators[1],
                                       **{returned: True, **arguments(mine)})
        (own_out * target[mine]).sum().backward()
    differences = {'output': [largest(out[mine] - own_out)],
                   'graph': [int(not same_rows(whole, rows, NUM_TOKENS, mine))
                             for whole, rows in zip(as_list(graphs), as_list(own_graphs))],
                   'parameters': [largest(p - q) for p, q in zip(
                       summed(one, [1, *[0] * 9][dist.get_rank()]), summed(module))]}
    if grad is not None:
        differences['input'] = [largest(grad[mine] - part.grad)]
    return {name: max(values) for name, values in differences.items()}


def evaluate(parallel: SequenceParallel, x: Tensor, **arguments) -> None:
    """Evaluate in inference mode, as Lightning validates."""
    is_training = parallel.module.training
    with torch.inference_mode():
        parallel.eval()(x, PTR, generator=torch.Generator().manual_seed(9), **arguments)
    parallel.train(is_training)


def as_list(graphs) -> list[BipartiteGraph]:
    return graphs if isinstance(graphs, list) else [graphs]


def largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


def summed(module, times: int = 1) -> list[Tensor]:
    """The gradients of all processes, added; ``times`` is 0 for those that do not count."""
    grads = []
    for parameter in module.parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * times
        dist.all_reduce(grad)
        grads.append(grad)
    return grads


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def given_graph() -> dict:
    pattern = WINDOW_GLOBAL_RANDOM

    def along(own: slice) -> dict:
        parts = []
        for first, last in zip(PTR.tolist(), PTR[1:].tolist()):
            start, stop = (min(max(edge, first), last) - first for edge in (own.start, own.stop))
            parts.append(pattern.build(stop - start, last - first, offset=start, seed=3,
                                       crop=True))
        return {'graph': BipartiteGraph.batch(parts)}

    torch.manual_seed(0)
    return compare(GraphAttention(CHANNELS, HEADS, hops=2, teleport=.2).double(), arguments=along)


def uneven(parallel: SequenceParallel) -> slice:
    """The first process has 50 tokens, the last but one 3, and so on."""
    size, rank = dist.get_world_size(), dist.get_rank()
    bounds = [0, *[50, 70, 73][:size - 1], NUM_TOKENS]
    return slice(bounds[rank], bounds[rank + 1])


def thinned() -> dict:
    before, thinning._FASTER_BELOW = thinning._FASTER_BELOW, 1e9
    try:
        return compare(encoder(BlockModelSource(HEADS, 8, 4)))
    finally:
        thinning._FASTER_BELOW = before


def frozen() -> dict:
    source = LearnedMaskSource(HEADS, 64, mode='dam_structured', init_std=1.)
    return compare(encoder(source).eval())


def by_mean() -> dict:
    """Under DistributedDataParallel: the loss times the number of processes."""
    one = encoder(PatternSource(DIFFUSER), hops=2, teleport=.1)
    _, _, _ = of_whole(one, lambda own: {'return_graphs': True})
    whole = encoder(PatternSource(DIFFUSER), hops=2, teleport=.1)
    parallel = sequence_parallel(whole, timeout=TIMEOUT)
    own, (tokens, target) = parallel.share(PTR), inputs(whole)
    model = DistributedDataParallel(parallel)
    (dist.get_world_size() * (model(tokens[own], PTR) * target[own]).sum()).backward()
    return {'parameters': max(largest(p.grad - q.grad)
                              for p, q in zip(one.parameters(), whole.parameters()))}


def all_or_some(source: GraphSource, **options) -> dict:
    """All keys, sent to every process, give the same to the bit as those that are needed."""
    module, before, found = encoder(source, **options), distributed.ALL_ABOVE, []
    tokens, target = inputs(module)
    for share in (2., 0.):
        distributed.ALL_ABOVE = share
        module.zero_grad()
        parallel = sequence_parallel(module, dist.group.WORLD)
        own = parallel.share(PTR)
        out = parallel(tokens[own], PTR, generator=seeded())
        (out * target[own]).sum().backward()
        found.append([out, *(p.grad for p in module.parameters() if p.grad is not None)])
    distributed.ALL_ABOVE = before
    return {'numbers': max(largest(x - y) > 0 for x, y in zip(*found))}


def class_token() -> dict:
    """A head reads token 0 of the longest sequence, in all processes alike: their mean is right."""
    one = encoder(PatternSource(WINDOW_GLOBAL_RANDOM))
    tokens, target = inputs(one)
    (one(tokens, PTR)[29] * target[29]).sum().backward()
    module = encoder(PatternSource(WINDOW_GLOBAL_RANDOM))
    parallel = sequence_parallel(module, dist.group.WORLD)
    hidden = parallel.gather(parallel(tokens[parallel.share(PTR)], PTR))
    (hidden[29] * target[29]).sum().backward()
    mean = [grad / dist.get_world_size() for grad in summed(module)]
    return {'parameters': max(largest(p.grad - q) for p, q in zip(one.parameters(), mean)
                              if p.grad is not None)}


def own_generator() -> dict:
    """Without a generator, with dropout on ranges that differ: three steps, one graph for all."""
    torch.manual_seed(7)
    parallel = sequence_parallel(encoder(BlockModelSource(HEADS, 8, 4), dropout=.1),
                                 dist.group.WORLD)
    own, (tokens, _) = uneven(parallel), inputs(parallel.module)
    for _ in range(3):
        out, graphs = parallel(tokens[own], PTR, own=own, return_graphs=True)
        out.sum().backward()
    return {'output': float(not bool(out.isfinite().all()))}


def outputs_along(steps: list[tuple[list[int], int]]) -> dict:
    """Steps of one pass each, with the bounds of the processes and the window of the last one."""
    one = encoder(PatternSource(SlidingWindow(1)))
    parallel = sequence_parallel(copy.deepcopy(one), dist.group.WORLD)
    tokens, _ = inputs(one)
    layer = GraphAttention(CHANNELS, HEADS, hops=2, teleport=.2).double()
    along = sequence_parallel(layer, dist.group.WORLD)
    x, rank = torch.randn(NUM_TOKENS, CHANNELS, dtype=torch.double,
                          generator=torch.Generator().manual_seed(1)), dist.get_rank()
    kept, differences = {}, []
    for bounds, window in steps:
        start, stop = bounds[rank:rank + 2]
        ends = [slice(first, last) for first, last in zip(bounds, bounds[1:])]
        out = parallel(tokens[start:stop], PTR, own=slice(start, stop))
        differences.append(largest(out - one(tokens, PTR)[start:stop]))
        windows = [window if own is ends[-1] else 1 for own in ends]
        rows = [kept.setdefault((own.start, own.stop, width), SlidingWindow(width).build(
            own.stop - own.start, NUM_TOKENS, offset=own.start))
            for own, width in zip(ends, windows)]
        whole = torch.tensor([0, NUM_TOKENS])
        out = along(x[start:stop], whole, own=slice(start, stop), graph=rows[rank])
        joined = BipartiteGraph(torch.cat([torch.stack([graph.key, graph.query + own.start])
                                           for own, graph in zip(ends, rows)], dim=1), NUM_TOKENS)
        differences.append(largest(out - layer(x, whole, graph=joined)[start:stop]))
    return {'output': max(differences)}


def ranges_that_alternate() -> dict:
    """Keep the range of the first process, and so its graphs, and move those of the others."""
    size = dist.get_world_size()
    even = [NUM_TOKENS * rank // size for rank in range(size + 1)]
    moved = [*even[:2], *(bound - 3 for bound in even[2:-1]), NUM_TOKENS]
    return outputs_along([(bounds, 1) for bounds in (even, moved, even, moved)])


def graphs_that_alternate() -> dict:
    """Change the graph of the last process, while the others keep theirs."""
    size = dist.get_world_size()
    even = [NUM_TOKENS * rank // size for rank in range(size + 1)]
    return outputs_along([(even, window) for window in (1, 5, 1, 5)])


def sharded_on_a_mesh(source: GraphSource, **options) -> dict:
    """Two batches by two ranges of tokens, with parameters sharded over all four processes."""
    mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('data', 'tokens'))
    one, whole = (encoder(copy.deepcopy(source), **options) for _ in range(2))
    tokens, target = inputs(one)
    batches = [(tokens, target), (tokens.flip(0), -target)]
    sum((one(tokens, PTR, generator=seeded()) * target).sum()
        for tokens, target in batches).backward()
    parallel = sequence_parallel(whole, mesh['tokens'])
    for layer in whole.layers:
        fully_shard(layer, mesh=mesh['data', 'tokens']._flatten('all'))
    model = fully_shard(parallel, mesh=mesh['all'])
    own, (tokens, target) = parallel.share(PTR), batches[mesh.get_local_rank('data')]
    for _ in range(2):
        model.zero_grad()
        out = model(tokens[own], PTR, generator=seeded())
        (dist.get_world_size() * (out * target[own]).sum()).backward()
    return {'parameters': max(largest(p.grad - q.grad.full_tensor())
                              for p, q in zip(one.parameters(), whole.parameters()))}


def compiled() -> dict:
    """A layer compiled in place; copies of it, such as that of one process, are not."""
    module = encoder(PatternSource(WINDOW_GLOBAL_RANDOM))
    module.layers[1].compile(backend='eager')
    return compare(module)


def accumulated() -> dict:
    """Two batches under DistributedDataParallel, whose gradients are added up after the second."""
    one, whole = (encoder(PatternSource(WINDOW_GLOBAL_RANDOM)) for _ in range(2))
    tokens, target = inputs(one)
    batches = [(tokens, target), (tokens.flip(0), -target)]
    sum((one(tokens, PTR) * target).sum() for tokens, target in batches).backward()
    parallel = sequence_parallel(whole, timeout=TIMEOUT)
    own, model = parallel.share(PTR), DistributedDataParallel(parallel)
    for (tokens, target), context in zip(batches, (model.no_sync(), nullcontext())):
        with context:
            loss = (model(tokens[own], PTR) * target[own]).sum()
            (dist.get_world_size() * loss).backward()
    return {'parameters': max(largest(p.grad - q.grad)
                              for p, q in zip(one.parameters(), whole.parameters()))}


def projections_on_a_mesh() -> dict:
    """Two ranges of tokens by two halves of the channels of feed-forward networks."""
    mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('tokens', 'channels'))
    one, whole = (encoder(PatternSource(DIFFUSER), hops=2, teleport=.1) for _ in range(2))
    tokens, target = inputs(one)
    (one(tokens, PTR) * target).sum().backward()
    for layer in whole.layers:
        parallelize_module(layer, mesh['channels'], {'feed_forward.0': ColwiseParallel(),
                                                     'feed_forward.3': RowwiseParallel()})
    parallel = sequence_parallel(whole, mesh['tokens'])
    own = parallel.share(PTR)
    (parallel(tokens[own], PTR) * target[own]).sum().backward()
    grads = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
             for p in whole.parameters()]
    for grad in grads:
        dist.all_reduce(grad, group=mesh['tokens'].get_group())
    return {'parameters': max(largest(p.grad - grad) for p, grad in zip(one.parameters(), grads))}


def attached_model(kind: str, **options) -> dict:
    """A model whose positions are those in its sequences, beside one process with padding."""
    transformers = pytest.importorskip('transformers')
    from graphattn.hugging_face import TokenModel, attach
    torch.manual_seed(0)
    if kind == 'bert':
        model = transformers.BertModel(transformers.BertConfig(
            vocab_size=50, hidden_size=CHANNELS, num_hidden_layers=2, num_attention_heads=HEADS,
            intermediate_size=32, max_position_embeddings=64), add_pooling_layer=False)
    else:
        model = transformers.GPT2Model(transformers.GPT2Config(
            vocab_size=50, n_embd=CHANNELS, n_layer=2, n_head=HEADS, n_positions=64))
    whole = attach(model.double().eval(), WINDOW_GLOBAL_RANDOM, **options)
    one = copy.deepcopy(whole)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(50, (NUM_TOKENS,), generator=generator)
    target = torch.randn(NUM_TOKENS, CHANNELS, dtype=torch.double, generator=generator)
    lengths = [length for length in PTR.diff().tolist() if length]
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    padded = tokens.new_zeros(is_token.shape).masked_scatter(is_token, tokens)
    hidden = one(padded, attention_mask=is_token.long(), use_cache=False)[0][is_token]
    (hidden * target).sum().backward()
    parallel = sequence_parallel(TokenModel(whole), dist.group.WORLD)
    own = parallel.share(PTR)
    out = parallel(tokens[own], PTR)
    (out * target[own]).sum().backward()
    return {'output': largest(out - hidden[own]),
            'parameters': max(largest(p.grad - q) for p, q in zip(one.parameters(), summed(whole))
                              if p.grad is not None)}


CASES = {
    'ranges that alternate': ranges_that_alternate,
    'graphs that alternate': graphs_that_alternate,
    'window, global and random': lambda: compare(encoder(PatternSource(WINDOW_GLOBAL_RANDOM))),
    'Diffuser, five hops': lambda: compare(encoder(PatternSource(DIFFUSER), hops=5, teleport=.1)),
    'block model': lambda: compare(encoder(BlockModelSource(HEADS, 8, 8))),
    'block model, thinned': thinned,
    'Algorithm 1, fixed edges, hops': lambda: compare(encoder(
        BlockModelSource(HEADS, 8, 8, distribution='poisson', fixed='SlidingWindow(1)'), hops=3,
        teleport=.1, learn_teleport=True, norm_first=False)),
    'drawn anew for each head': lambda: compare(encoder(
        PatternSource([SlidingWindow(2), RandomKeys(3)], seed=None))),
    'one source for all layers': lambda: compare(encoder(
        PatternSource(RandomKeys(3), seed=None), share_source=True)),
    'layers that run twice': lambda: compare(encoder(
        BlockModelSource(HEADS, 8, 8, preset='repo'), checkpoint_layers=True, hops=2,
        teleport=.1)),
    'frozen masks': frozen,
    'clusters by content': lambda: compare(encoder(cluster_source(HEADS, 8))),
    'a layer along a given graph': given_graph,
    'ranges of other sizes': lambda: compare(encoder(BlockModelSource(HEADS, 8, 8)), own=uneven),
    'DistributedDataParallel': by_mean,
    'parameters sharded on a mesh': lambda: sharded_on_a_mesh(
        PatternSource(DIFFUSER), hops=2, teleport=.1, checkpoint_layers=True),
    'parameters sharded on a mesh, block model': lambda: sharded_on_a_mesh(
        BlockModelSource(HEADS, 8, 8)),
    'compiled layers': compiled,
    'two batches before a step': accumulated,
    'projections divided on a mesh': projections_on_a_mesh,
    'attached BERT': lambda: attached_model('bert'),
    'attached BERT, two hops': lambda: attached_model('bert', hops=2, teleport=.2),
    'attached GPT-2': lambda: attached_model('gpt2'),
    'class token': class_token,
    'generator of its own': own_generator,
    'all keys or some': lambda: all_or_some(PatternSource(WINDOW_GLOBAL_RANDOM)),
    'all keys or some, five hops': lambda: all_or_some(PatternSource(DIFFUSER), hops=5,
                                                       teleport=.1),
    'all keys or some, block model': lambda: all_or_some(BlockModelSource(HEADS, 8, 8)),
    **decoding.CASES,
    **overlapping.CASES,
}


# What must be refused ################################################################


def refused(module=None, own: Callable[[int, slice], slice] = lambda rank, own: own, ptr=PTR,
            **arguments) -> None:
    module = encoder(PatternSource(SlidingWindow(1))) if module is None else module
    parallel = sequence_parallel(module, dist.group.WORLD)
    x, _ = inputs(module)
    mine = own(dist.get_rank(), parallel.share(ptr))
    parallel(x[mine], ptr, own=mine, **arguments)


def other_parameters() -> None:
    module = encoder(PatternSource(SlidingWindow(1)))
    with torch.no_grad():
        module.norm.bias[3] += 1e-9 * dist.get_rank()
    refused(module)


def graph_of_other_processes() -> None:
    """Give the first layer the graph of one process more."""
    torch.manual_seed(0)
    size, rank = dist.get_world_size() + 1, dist.get_rank()
    start, stop = NUM_TOKENS * rank // size, NUM_TOKENS * (rank + 1) // size
    whole = torch.tensor([0, NUM_TOKENS])
    graph = SlidingWindow(1).build(stop - start, NUM_TOKENS, offset=start)
    refused(GraphAttention(CHANNELS, HEADS).double(), ptr=whole, graph=graph)


def default_seeds() -> None:
    module = encoder(BlockModelSource(HEADS, 8, 4))
    torch.manual_seed(dist.get_rank())
    refused(module)


REFUSED = {
    'soft masks': lambda: refused(encoder(LearnedMaskSource(HEADS, 64, mode='soft'))),
    'ranges that overlap': lambda: refused(
        own=lambda rank, own: slice(max(own.start - 1, 0), own.stop)),
    'ranges that do not cover': lambda: refused(
        own=lambda rank, own: slice(own.start + (rank > 0), own.stop)),
    'a process without tokens': lambda: refused(
        own=lambda rank, own: slice(0, 0) if rank == 0 else slice(
            0 if rank == 1 else own.start, own.stop)),
    'fewer tokens than processes': lambda: refused(ptr=torch.tensor([0, 1])),
    'other parameters': other_parameters,
    'other settings': lambda: refused(encoder(
        PatternSource(RandomKeys(1), seed=dist.get_rank()))),
    'other seeds': lambda: refused(generator=torch.Generator().manual_seed(dist.get_rank())),
    'other default seeds': default_seeds,
    'other sequences': lambda: refused(ptr=torch.tensor([0, 10 + dist.get_rank(), NUM_TOKENS])),
    'one trains': lambda: refused(
        encoder(PatternSource(SlidingWindow(1))).train(dist.get_rank() == 0)),
    'a graph for another number of processes': graph_of_other_processes,
    'a call that one process gets wrong': lambda: refused(
        generator=3 if dist.get_rank() == 1 else None),
    'a source without rows': lambda: refused(encoder(WithoutRows())),
    'a head that pools': lambda: refused(SequenceClassifier(
        encoder(PatternSource(SlidingWindow(1))), 3)),
    **{name: case for name, (case, _) in decoding.REFUSED.items()},
}


class WithoutRows(GraphSource):
    def forward(self, query, key, ptr, *, generator=None):
        return SlidingWindow(1).build(query.size(0))


def left_alone(leave: Callable[[], None], timeout: timedelta) -> dict:
    """The last process leaves after a step; what the others see, and after how long."""
    parallel = sequence_parallel(encoder(PatternSource(WINDOW_GLOBAL_RANDOM)), timeout=timeout)
    own, (tokens, _) = parallel.share(PTR), inputs(parallel.module)
    parallel(tokens[own], PTR)
    start = time.perf_counter()
    if dist.get_rank() == dist.get_world_size() - 1:
        leave()
    try:
        for _ in range(2):
            parallel(tokens[own], PTR).sum().backward()
    except RuntimeError as error:
        return {'error': str(error), 'seconds': time.perf_counter() - start}
    return {'error': None}


def failures() -> dict[str, dict]:
    messages.GRACE, found = .5, {}
    if dist.get_world_size() == 2:
        found['hangs'] = left_alone(lambda: time.sleep(2), timedelta(seconds=1))
    found['killed'] = left_alone(lambda: os.kill(os.getpid(), signal.SIGKILL), TIMEOUT)
    return found


# What each of four processes does that neither of two does: to exchange with those that are not its
# neighbours, with several of them, and to tell all of them.
OF_FOUR = {'ranges that alternate', 'graphs that alternate', 'Diffuser, five hops',
           'block model, thinned', 'ranges of other sizes', 'class token', 'ranges that overlap',
           'a process without tokens', 'fewer tokens than processes', 'other parameters',
           'all keys or some', 'later keys for one process', *decoding.OF_FOUR,
           'overlapped along global and random', 'overlapped along every head',
           'overlapped along keys of other processes only'}
OF_FOUR_ALONE = {'parameters sharded on a mesh', 'parameters sharded on a mesh, block model',
                 'projections divided on a mesh'}


def in_a_world_of(world: int, cases: dict[str, Callable]) -> dict[str, Callable]:
    """Return the cases that so many processes run; one refuses nothing of the others."""
    left_out = OF_FOUR_ALONE | (REFUSED.keys() if world == 1 else set())
    return {name: case for name, case in cases.items()
            if (name in OF_FOUR | OF_FOUR_ALONE if world == 4 else name not in left_out)}


def run(case: Callable[[], dict | None]) -> dict:
    try:
        return {'differences': case()}
    except Exception as error:
        return {'error': f'{type(error).__name__}: {error}'}


def run_all() -> dict[str, dict]:
    torch.set_num_threads(1)
    return {name: run(case)
            for name, case in in_a_world_of(dist.get_world_size(), CASES | REFUSED).items()}


def main(folder: Path) -> None:
    """Writes ``folder/WORLD.RANK.json``: for each case the largest differences, or the error."""
    overlapping.always()
    rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    dist.init_process_group('gloo', init_method=f'file://{folder}/{world}.store', timeout=TIMEOUT,
                            rank=rank, world_size=world)
    (folder / f'{world}.{rank}.json').write_text(json.dumps(run_all()))
    (folder / f'{world}.{rank}.failures.json').write_text(json.dumps(failures()))
    os._exit(0)  # for the group cannot be left in good order
