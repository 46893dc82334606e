"""Attention that distributes each sequence over several processes. Each process holds some tokens,
and the edges that end in these tokens.

The keys and values that a process needs for its edges, but other processes hold, are its *halo*.
Processes exchange the halo before attention, and exchange values again before each further hop.
Gradients return the same way.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Hashable, Iterator
from datetime import timedelta
from inspect import signature
from itertools import chain, count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from graphattn._checks import check_generator, check_kind, check_ptr
from graphattn._tensors import outside_transforms
from graphattn.decoding import DividedStep, Step, check_shared
from graphattn.functional.shard import Shard, check_edges
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.share import share
from graphattn.layers import GraphAttention
from graphattn.placement.exchange import Exchange, Halo, requested, sent_to_all
from graphattn.placement.messages import all_gather, gathered
from graphattn.placement.overlap import split_edges, subgraph
from graphattn.sources.base import fold_ptr

__all__ = ['SequenceParallel', 'sequence_parallel', 'share']

TIMEOUT = timedelta(minutes=5)
# If processes need at least this share of the keys of other processes, each process sends all its
# keys without being asked. The number of messages is the same. CPU time of a step, divided by the
# time of a step with requests, on two and four processes of one thread: 0.75 and 0.84 along a block
# model of 2,048 tokens with 26 % of the pairs; 0.96 to 1.03 if each of 4,096 tokens draws 4 to 32
# random keys in each step, so that processes need 86 to 100 % of the keys. Keys are sent by
# all-to-all, because gloo's all-gather is slower: 4.9 and 1.7 ms for 4,096 rows of 1 KiB.
ALL_ABOVE = .98


def sequence_parallel(module: nn.Module, group: dist.ProcessGroup | DeviceMesh | None = None, *,
                      timeout: timedelta = TIMEOUT) -> SequenceParallel:
    r"""Return a module that distributes each sequence over the processes of a group.

    Process r holds the tokens :math:`b_r \le i < b_{r+1}` of a batch, and the edges that end in
    these tokens. Before attention, the process receives its halo: the keys and values that its
    edges need, but other processes hold. These are the keys and values of the tokens

    .. math::
        \{ j \mid (j \to i) \in E, \; b_r \le i < b_{r+1} \} \setminus \{b_r, \dots, b_{r+1} - 1\}.

    With several hops, the process receives the values of these tokens again before each further
    hop. Outputs and gradients are the same as in one process.

    With a pattern, each process builds only the edges that end in its own tokens. With a block
    model, each process draws only these edges. For this purpose, it receives the memberships of all
    keys in clusters, ``heads * clusters`` values per token. Learned masks must be frozen.

    **Gradients.** The loss that is differentiated is the *sum* of the losses of all processes. The
    gradient of a parameter is the sum of ``parameter.grad`` over all processes. So if the loss is a
    sum over tokens, add the gradients up (``torch.distributed.all_reduce``).
    ``DistributedDataParallel`` and Lightning's ``'ddp'`` take the mean instead, so multiply the
    loss by the number of processes. If all processes compute the same loss, for example the loss of
    a class token after :meth:`SequenceParallel.gather`, the mean is correct.

    **Seeds.** All processes need the same parameters and seeds; the first step compares them.
    Without ``generator``, graphs are drawn from a generator that the returned module seeds from
    torch's default generator. So dropout may advance the default generator differently in each
    process.

    **Failures.** If a process dies, the other processes raise a RuntimeError that names this
    process, with gloo within seconds. If a process stops or falls behind, the other processes wait
    for ``timeout`` first. All of this is tested with gloo, and nothing with nccl.

    Args:
        module (Module): A :class:`~graphattn.layers.GraphAttention`, an
            :class:`~graphattn.models.Encoder`, a :class:`~graphattn.hugging_face.TokenModel`, or
            another module that is called with ``(x, ptr, placement=...)`` and passes both on to
            one of these.
        group (ProcessGroup or DeviceMesh, optional): The processes, or a mesh of one dimension,
            such as ``mesh['cp']`` of a mesh whose other dimension divides the batches. If omitted,
            a new group of all processes is created. Its messages do not interfere with the messages
            of ``DistributedDataParallel``.
        timeout (timedelta): How long the new group waits for a process; a given ``group`` has its
            own timeout.

    Returns:
        SequenceParallel, a module with the parameters of ``module``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``module`` has no GraphAttention, or has a GraphAttention with infinitely many
            hops, which would stop after another number of hops in each process.

    Source: DeepSpeed-Ulysses and ring attention distribute sequences for dense attention; DistDGL
    (Zheng et al., 2020) distributes graphs with halos.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from graphattn.distributed import sequence_parallel
        >>> from graphattn.models import Encoder
        >>> from graphattn.patterns import SlidingWindow
        >>> from graphattn.sources import PatternSource
        >>> # torchrun starts several processes, each of which runs init_process_group('gloo')
        >>> dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
        >>> encoder = sequence_parallel(Encoder(
        ...     PatternSource(SlidingWindow(2)), num_tokens=100, max_length=16, channels=32,
        ...     heads=4, num_layers=2))
        >>> tokens, ptr = torch.randint(100, (20,)), torch.tensor([0, 4, 20])  # the whole batch
        >>> encoder(tokens[encoder.share(ptr)], ptr).shape  # of own tokens
        torch.Size([20, 32])
        >>> dist.destroy_process_group()
    """
    check_kind('module', module, nn.Module)
    check_kind('timeout', timeout, timedelta)
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            named = group.mesh_dim_names or f'{group.ndim} dimensions'
            raise ValueError(f"'group' must be a mesh of one dimension (got {named}); pass one of "
                             f"them, such as mesh['cp']")
        group = group.get_group()
    elif group is not None:
        check_kind('group', group, dist.ProcessGroup)
    return SequenceParallel(module, group, timeout)


class SequenceParallel(nn.Module):
    """Module that computes another module on the tokens of this process, and exchanges keys and
    values with the other processes. Created by :func:`sequence_parallel`."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None, timeout: timedelta):
        super().__init__()
        hops = [*_hops_of(module)]
        if hasattr(module, 'graph_attachment'):
            raise ValueError(f"'module' must be called with (x, ptr) (got {type(module).__name__}, "
                             f"an attached model); pass graphattn.hugging_face.TokenModel(model)")
        if not hops:
            raise ValueError(f"'module' must hold a GraphAttention (got {type(module).__name__})")
        parameters = signature(module.forward).parameters
        if 'placement' not in parameters and not any(each.kind is each.VAR_KEYWORD
                                                     for each in parameters.values()):
            raise ValueError(f"'module' must take the argument 'placement' and pass it on to its "
                             f"GraphAttention (got {type(module).__name__}); pass the encoder of a "
                             f"model that pools tokens, and pool the output of "
                             f"SequenceParallel.gather")
        if math.inf in hops:
            raise ValueError("'module' must not have infinitely many hops, because each process "
                             "would stop at another hop; use a finite number of hops")
        self.module = module
        self._given_group, self._own_group, self._timeout = group, None, timeout
        self._generator: torch.Generator | None = None
        self._is_compared = False
        self._halos = _Halos()

    def forward(self, x: Tensor, ptr: Tensor, *, placement: Step | None = None,
                own: slice | None = None, generator: torch.Generator | None = None,
                **arguments: Any) -> Any:
        """Compute the module on the tokens of this process. Every process must call this method.

        Args:
            x (Tensor): Input of the module for own tokens, the tokens of this process, ``[num_own,
                ...]``.
            ptr (Tensor): Where each sequence of the *whole* batch begins, int64
                ``[num_sequences + 1]``, the same in all processes.
            placement (optional): To decode, create a
                :class:`~graphattn.decoding.KeyValueCache` in each process, and pass
                ``cache.step(ptr)``. Then ``x`` contains either own tokens, as for a prompt, or all
                new tokens, in every process.
            own (slice, optional): The range of own tokens in the batch; the result of :meth:`share`
                if omitted.
            generator (torch.Generator, optional): Random generator of sources that draw edges. Its
                state must be the same in all processes.
            **arguments: Further arguments of the module. Tensors with one row per token have the
                rows of own tokens. A ``graph`` has own tokens as queries, and all tokens of each
                sequence as keys.

        Returns:
            The output of the module for own tokens.

        Raises:
            TypeError, ValueError: An argument is of the wrong type; ranges overlap, or do not cover
                the batch in the order of processes; a process has no token; or processes differ in
                ``ptr``, parameters, settings or seeds. If one process raises such an error,
                every process does.
            RuntimeError: There is no process group, or a process has died or did not respond.
        """
        shard = self._shard(x, ptr, placement, own, generator)
        self._halos.begin_step()
        return self.module(x, shard.own_ptr, placement=shard, generator=self._drawing(generator),
                           **arguments)

    def share(self, ptr: Tensor, graph: BipartiteGraph | None = None) -> slice:
        """Return the range of the tokens of this process. The arguments are those of
        :func:`share`."""
        rank = dist.get_rank(self.group)
        bounds = share(ptr, graph, dist.get_world_size(self.group))
        return slice(bounds[rank], bounds[rank + 1])

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of all tokens in every process, for example for a classifier that reads
        whole sequences.

        Args:
            x (Tensor): Rows of the tokens of this process, ``[num_own, ...]``.

        Returns:
            Tensor ``[num_tokens, ...]``. The backward pass sums the gradients of all processes.

        Raises:
            TypeError: ``x`` is not a Tensor.
        """
        check_kind('x', x, Tensor)
        sizes = all_gather(torch.tensor(x.size(0), device=x.device), self.group).tolist()
        return gathered(x, sizes, self.group)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group. If none was given, all processes create one together at the first
        use."""
        if self._given_group is not None:
            return self._given_group
        if self._own_group is None:
            if not dist.is_initialized():
                raise RuntimeError("there is no process group: start the processes with torchrun "
                                   "and call torch.distributed.init_process_group first")
            self._own_group = dist.new_group(timeout=self._timeout)
        return self._own_group

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), '_own_group': None, '_generator': None, '_is_compared': False,
                '_halos': _Halos()}

    def _drawing(self, generator: torch.Generator | None) -> torch.Generator:
        # seeded at the first call
        if generator is None and self._generator is None:
            device = next(self.module.parameters()).device
            seed = int(torch.randint(2**63 - 1, ()))
            self._generator = torch.Generator(device).manual_seed(seed)
        return self._generator if generator is None else generator

    def _shard(self, x: Tensor, ptr: Tensor, step: Step | None, own: slice | None,
               generator: torch.Generator | None) -> Shard:
        # All processes exchange their facts before any of them raises an error.
        error, facts = None, _Facts()
        try:
            facts = self._facts(x, ptr, step, own, generator)
        except (TypeError, ValueError) as raised:
            error = raised
        mine = torch.tensor(facts, device=next(self.module.parameters()).device)
        facts = [_Facts(*row) for row in all_gather(mine, self.group).tolist()]
        if error is not None:
            raise error
        is_repeated = step is not None and all((fact.start, fact.stop) == (0, fact.num_tokens)
                                               for fact in facts)
        _check_facts(facts, is_repeated)
        self._is_compared = True
        bounds = [0, *(fact.stop for fact in facts)]
        if step is not None:
            return DividedStep(step, None if is_repeated else bounds, self.group)
        return _Shard(ptr, bounds, self.group, self._halos)

    def _facts(self, x: Tensor, ptr: Tensor, step: Step | None, own: slice | None,
               generator: torch.Generator | None) -> _Facts:
        check_kind('x', x, Tensor)
        spans = []
        if step is not None:
            check_kind('placement', step, Step)
            check_shared(step, dist.get_world_size(self.group))
            spans = [torch.tensor([step.cache.length, *chain(*step.all_spans)])]
        check_kind('ptr', ptr, Tensor)
        check_ptr('ptr', ptr, None, x.device)
        check_generator(generator)
        if own is not None:
            check_kind('own', own, slice)
        num_tokens = int(ptr[-1])
        if own is None:
            own = self.share(ptr)
            if spans and x.size(0) not in (own.stop - own.start, 0):
                own = slice(num_tokens)  # x has all new tokens
        start, stop, step = own.indices(num_tokens)
        if step != 1 or stop - start != x.size(0):
            raise ValueError(f"'own' must be the range of the {x.size(0)} tokens of 'x' (got "
                             f"{start} to {stop} in steps of {step})")
        return _Facts(
            is_right=1, start=start, stop=stop, num_tokens=num_tokens, ptr=_digest(ptr, *spans),
            generator=_digest(self._drawing(generator).get_state()),
            training=int(self.module.training),
            module=0 if self._is_compared else _digest_module(self.module))


def _hops_of(module: nn.Module) -> Iterator[int | float]:
    for part in module.modules():
        if isinstance(part, GraphAttention):
            yield part.attention.hops
        elif hasattr(part, 'graph_attachment'):
            yield part.graph_attachment.hops


class _Facts(NamedTuple):
    is_right: int = 0  # whether the arguments are valid
    start: int = 0  # the range of its tokens
    stop: int = 0
    # Values or digests that must be equal in all processes.
    num_tokens: int = 0
    ptr: int = 0
    generator: int = 0
    training: int = 0
    module: int = 0


def _check_facts(facts: list[_Facts], is_repeated: bool) -> None:
    # All processes compare the same list, so every process raises the same error.
    for rank, fact in enumerate(facts):
        if not fact.is_right:
            raise ValueError(f"process {rank} got invalid arguments; see its own error")
    for name, what in (('num_tokens', "'ptr'"), ('ptr', "'ptr'"),
                       ('training', 'whether they train'),
                       ('module', 'parameters or settings'),
                       ('generator', "seeds, or states of 'generator'")):
        values = [getattr(fact, name) for fact in facts]
        if len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise ValueError(f"processes must not differ in {what}, but {other} differs from 0")
    # if every process computes all tokens, ranges may overlap
    if not is_repeated:
        _check_ranges([(fact.start, fact.stop) for fact in facts], facts[0].num_tokens)


def _check_ranges(ranges: list[tuple[int, int]], num_tokens: int) -> None:
    shown = ', '.join(f'{start} to {stop}' for start, stop in ranges)
    if num_tokens < len(ranges):
        raise ValueError(f"'ptr' must cover at least one token for each of the {len(ranges)} "
                         f"processes (got {num_tokens}); use fewer processes, or to decode pass "
                         f"all new tokens in every process")
    starts, stops = zip(*ranges)
    if (starts[0], stops[-1]) != (0, num_tokens) or starts[1:] != stops[:-1]:
        raise ValueError(f"'own' must assign each of the {num_tokens} tokens to one process, in "
                         f"the order of processes (got {shown})")
    if any(start == stop for start, stop in ranges):
        raise ValueError(f"'own' must assign at least one token to each process (got {shown})")


def _digest(*tensors: Tensor) -> int:
    digest = hashlib.sha256()
    for tensor in tensors:
        # A copy, because FSDP could not free the storage of a tensor that shares it with numpy.
        plain = tensor.detach().to('cpu', copy=True).contiguous().reshape(-1)
        digest.update(f'{tensor.dtype} {tuple(tensor.shape)}'.encode())
        digest.update(plain.view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:8], 'little') >> 1


def _digest_module(module: nn.Module) -> int:
    # repr names settings; DTensors are left out: each process holds another part of them
    settings = torch.tensor(list(repr(module).encode()), dtype=torch.uint8)
    whole = [tensor for tensor in (*module.parameters(), *module.buffers())
             if not isinstance(tensor, DTensor)]
    return _digest(settings, *whole)


class _Halos:
    """A cache of the halos (keys and values that processes exchange) of recent steps."""

    # A halo depends on the token ranges and the graphs of all processes, so all processes must find
    # or miss an entry together, and use the same key: the cause, such as a pattern, that every
    # process builds its graph from; otherwise one number for each process, which identifies its
    # graph. No number is used twice. An entry is dropped after max_age steps without use (all
    # processes count the same steps), and one whose key contains numbers when its graph no longer
    # exists.
    def __init__(self, max_age: int = 4):
        self._max_age, self._step, self._next_number = max_age, 0, count()
        self._numbers, self.causes, self.given = (WeakIdKeyDictionary() for _ in range(3))
        self._kept: dict[tuple, tuple[weakref.ref[BipartiteGraph] | None, int, Halo]] = {}

    def begin_step(self) -> None:
        self._step += 1
        self._kept = {key: entry for key, entry in self._kept.items()
                      if self._step - entry[1] <= self._max_age
                      and (entry[0] is None or entry[0]() is not None)}

    def number(self, graph: BipartiteGraph) -> int:
        if graph not in self._numbers:
            self._numbers[graph] = next(self._next_number)
        return self._numbers[graph]

    def get(self, key: tuple, graph: BipartiteGraph, plan: Callable[[], Halo]) -> Halo:
        halo = self._kept[key][2] if key in self._kept else plan()
        # the key is the same in all processes; without a cause, the halo does not outlive the graph
        owner = None if graph in self.causes else weakref.ref(graph)
        self._kept[key] = owner, self._step, halo
        return halo


class _Shard(Shard):
    """The tokens of a batch that this process computes, and the group that computes the others."""

    def __init__(self, ptr: Tensor, bounds: list[int], group: dist.ProcessGroup,
                 halos: _Halos):
        rank = dist.get_rank(group)
        super().__init__(ptr, bounds[rank], bounds[rank + 1])
        self.bounds, self.group, self.halos = bounds, group, halos

    def gather(self, x: Tensor) -> Tensor:
        sizes = [stop - start for start, stop in zip(self.bounds, self.bounds[1:])]
        return gathered(x, sizes, self.group)

    def check_graph(self, graph: BipartiteGraph, heads: int) -> None:
        check_edges(graph)
        self.halos.given[graph] = True
        fits = any(torch.equal(graph.segments.query_ptr,
                               fold_ptr(self.own_ptr, times, self.num_own))
                   and torch.equal(graph.segments.key_ptr,
                                   fold_ptr(self.ptr, times, self.num_tokens))
                   for times in (1, heads))
        fits = self._all_say(int(fits))
        if not all(fits):
            raise ValueError(f"'graph' must have the queries of its process and all keys of each "
                             f"sequence as segments, but the graph of process {fits.index(0)} of "
                             f"{len(fits)} does not; build it for these processes. Here query_ptr "
                             f"must be {self.own_ptr.tolist()} and key_ptr {self.ptr.tolist()} "
                             f"(got {graph.query_ptr.tolist()} and {graph.key_ptr.tolist()})")

    @torch.compiler.disable(reason='processes agree on the halo, which is planned only once')
    def place(self, layer: nn.Module, key: Tensor, graph: BipartiteGraph, heads: int | None,
              **options: Any) -> Exchange:
        return Exchange(heads, self._halo(graph), self.group)

    def _all_say(self, answer: int) -> list[int]:
        # every process must call this
        return all_gather(torch.tensor([answer], device=self.ptr.device),
                          self.group).flatten().tolist()

    def built_from(self, graph: BipartiteGraph, cause: Hashable) -> None:
        self.halos.causes[graph] = cause

    def _halo(self, graph: BipartiteGraph) -> Halo:
        cause = self.halos.causes.get(graph)
        key = tuple(self._all_say(self.halos.number(graph))) if cause is None else cause
        with outside_transforms():  # a halo from evaluation may be used in training
            return self.halos.get((key, *self.bounds), graph, lambda: self._plan(graph))

    def _plan(self, graph: BipartiteGraph) -> Halo:
        bounds, rank = torch.tensor(self.bounds, device=graph.device), dist.get_rank(self.group)
        node = torch.arange(graph.num_keys, device=graph.device)
        # If heads are folded into nodes, the owner of a token owns its nodes head * num_tokens +
        # token.
        head, token = node // self.num_tokens, node % self.num_tokens
        owner = torch.bucketize(token, bounds[1:-1], right=True)
        number = head * bounds.diff()[owner] + token - bounds[owner]  # among those of its owner
        is_needed = torch.zeros(graph.num_keys, dtype=torch.bool, device=graph.device)
        is_needed[graph.key] = True
        sizes = all_gather(owner[is_needed].bincount(minlength=len(bounds) - 1), self.group)
        owned = owner.bincount(minlength=len(bounds) - 1)
        # Without requests, the indices of keys in edges do not change: this saves time in each
        # step that draws a graph.
        of_others = sizes.sum() - sizes.trace()
        if sends_all := bool(of_others >= ALL_ABOVE * (len(owned) - 1) * owned.sum()):
            is_needed[:] = True
            way = sent_to_all(owner, number, self.group)
        else:
            way = requested(owner[is_needed], number[is_needed], sizes, self.group)
        split = None
        # edges that were drawn in this step will not be used again
        if graph in self.halos.given or graph in self.halos.causes:
            split = split_edges(graph, owner, is_needed, rank, *way[:3])
        # None or a new graph, because a cached halo must not keep ``graph`` alive.
        return Halo(None if sends_all else subgraph(graph, is_needed), *way, split)
