"""Machine code of Triton's kernels, compiled without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from graphattn import BipartiteGraph, ops
from graphattn.ops.sample.triton import compare
from graphattn.ops.sample.triton.draws import Draws
from graphattn.ops.triton import rows
from graphattn.ops.triton.plans import Arriving
from graphattn.patterns import RandomKeys
from graphattn.samplers import FactorModel

TERMS = ('plain', 'bias and gate', 'dropout', 'bias, gate and dropout')
_TYPES = {torch.float64: 'fp64', torch.float32: 'fp32', torch.float16: 'fp16',
          torch.bfloat16: 'bf16', torch.bool: 'i1', torch.int64: 'i64', torch.int32: 'i32',
          torch.uint16: 'u16'}


class Launch(NamedTuple):
    """A launch of a Triton kernel: the kernel, and the arguments that determine how it is
    compiled."""

    kernel: JITFunction
    arguments: dict[str, object]
    options: dict[str, int]  # warps, and registers if they are bounded

    @property
    def edges_of_a_program(self) -> int:
        """Return the number of edges, pairs of tokens or draws that one program of the kernel
        processes at once, at least 1."""
        columns = next((self.arguments[name] for name in ('EDGES', 'COLUMNS', 'KEYS', 'DRAWS')
                        if name in self.arguments), 1)
        return self.arguments.get('ROWS', self.arguments.get('TASKS', 1)) * columns

    def source(self) -> ASTSource:
        """Return the kernel's source for Triton's compiler. Pointers are marked as aligned."""
        signature, constants, attributes = {}, {}, {}
        for number, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            if isinstance(value, Tensor):
                signature[parameter.name] = f'*{_TYPES[value.dtype]}'
                attributes[number,] = [['tt.divisibility', 16]]
            elif parameter.is_constexpr or value is None:
                signature[parameter.name], constants[number,] = 'constexpr', value
            else:
                signature[parameter.name] = parameter.annotation_type or 'i32'
        return ASTSource(self.kernel, signature, constants, attributes)


@dataclass(frozen=True)
class MachineCode:
    """The machine code of a compiled kernel: its registers, memory and instructions."""

    registers: int  # per thread
    spilled: int  # bytes per thread
    shared: int  # bytes per program
    edges: int  # edges, pairs or draws that a warp processes per iteration of the loop
    binary: bytes

    @property
    def loop(self) -> dict[str, int]:
        """Return how often each instruction occurs in the longest innermost loop, as a dict by
        name."""
        return max(self.loops, key=lambda loop: sum(loop.values()), default={})

    @cached_property
    def loops(self) -> list[dict[str, int]]:
        """Return how often each instruction occurs in each innermost loop, as dicts by name in the
        order of addresses."""
        return [self._between(*loop) for loop in self._innermost]

    @cached_property
    def around(self) -> dict[str, int]:
        """Return how often each instruction occurs in the longest loop that contains other loops,
        without these inner loops, as a dict by name."""
        first, last = max(self._jumps, key=lambda loop: loop[1] - loop[0], default=(0, -1))
        found = self._between(first, last)
        for loop in self._innermost:
            if first <= loop[0] and loop[1] <= last:
                found -= self._between(*loop)
        return found

    @property
    def _innermost(self) -> list[tuple[int, int]]:
        return [loop for loop in self._jumps if not any(
            loop != other and loop[0] <= other[0] and other[1] <= loop[1] for other in self._jumps)]

    @cached_property
    def _jumps(self) -> list[tuple[int, int]]:
        """Return the addresses of the first instruction and of the backward jump of each loop, in
        ascending order."""
        jumps = [(int(target.group(1), 16), int(at, 16)) for at, _, name, operands in self._lines
                 if name.startswith('BRA') and (target := re.search(r'0x([0-9a-f]+)', operands))]
        return sorted(loop for loop in jumps if loop[0] < loop[1])

    def _between(self, first: int, last: int) -> Counter[str]:
        return Counter(name for at, _, name, _ in self._lines if first <= int(at, 16) <= last)

    @property
    def instructions_per_edge(self) -> float:
        """Return how many instructions a warp executes for each edge, in one head."""
        return sum(self.loop.values()) / self.edges

    @property
    def spills_in_loop(self) -> int:
        """Return the number of instructions in the loop that move spilled values."""
        if not self.spilled:
            return 0
        return sum(count for loop in (self.loop, self.around) for name, count in loop.items()
                   if name.startswith(('LDL', 'STL')))

    @cached_property
    def _lines(self) -> list[tuple[str, str, str, str]]:
        """Return the address, condition, name and operands of each instruction. Disassembling takes
        half a second."""
        return re.findall(r'/\*([0-9a-f]{4,})\*/\s+(@!?U?P\d+\s+)?([A-Z][\w.]*)\s*(.*?);',
                          _dumped(self.binary, '--dump-sass'))


def launches(operator: OpOverload, arguments: tuple) -> list[Launch]:
    """Return the launches of Triton kernels that an operator makes on CUDA if it is called with
    ``arguments``."""
    return launches_of(partial(operator._op_dk, DispatchKey.CUDA, *arguments))


def launches_of(work: Callable[[], object]) -> list[Launch]:
    """Return the kernel launches of a function on CUDA. The function is called with CPU tensors.

    Numbers that the GPU computes count as not yet copied to the CPU, so kernels whose launch
    depends on such numbers are included.
    """
    recorded = []

    def record(kernel: JITFunction, *arguments, grid, warmup, **named) -> None:
        names = [parameter.name for parameter in kernel.params]
        constants = {name: named.pop(name) for name in names if name in named}
        recorded.append(Launch(kernel, {**dict(zip(names, arguments)), **constants}, named))

    never = patch.object(Arriving, 'now', lambda self: None)
    cut = patch.object(rows, 'UNCUT_PARTS', 0)  # as along longer rows
    with patch.object(JITFunction, 'run', record), never, cut, torch.no_grad():
        work()
    return recorded


def compiled(launch: Launch, capability: int) -> MachineCode:
    """Compile a launch for GPUs of a compute capability (90 is 9.0). Triton caches the result on
    disk."""
    target = GPUTarget('cuda', capability, 32)
    kernel = triton.compile(launch.source(), target=target, options=launch.options)
    binary = kernel.asm['cubin']
    sizes = {name: int(size) for name, size in re.findall(
        r'(REG|STACK|SHARED|LOCAL):(\d+)', _dumped(binary, '--dump-resource-usage'))}
    return MachineCode(sizes['REG'], sizes['STACK'] + sizes['LOCAL'], kernel.metadata.shared,
                       launch.edges_of_a_program // launch.options['num_warps'], binary)


def _dumped(binary: bytes, option: str) -> str:
    """Return the text that the disassembler prints for a compiled kernel.

    Args:
        binary: The compiled kernel.
        option: The option of the disassembler that selects what to print.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.cubin'
        path.write_bytes(binary)
        tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
        return subprocess.run([tool, option, path], capture_output=True, text=True,
                              check=True).stdout


def operators(dtype: torch.dtype, channels: int, terms: str = 'plain', *, degree: int = 64,
              heads: int = 16, num_features: int = 0) -> dict[OpOverload, tuple]:
    """Return a dict from each operator with Triton kernels to its arguments for these sizes.

    Args:
        dtype (torch.dtype): The dtype of queries, keys and values.
        channels (int): Channels of a head.
        terms (str): One of ``TERMS``.
        degree (int): Number of keys per query.
        heads (int): Number of heads.
        num_features (int): Number of features of an edge in attention.
    """
    ops.load('triton')
    graph = RandomKeys(degree).build(2 * degree, seed=0)
    query, bias, gate, seed, weight, teleport = _arguments(graph, dtype, channels, heads, terms)
    edges, ptrs = (*graph.csr, *graph.csc), graph.segments.ptrs
    nodes, logits = (query,) * 3, (query, query, bias, gate, None)
    dropout_p, softcap = 0. if seed is None else 0.1, 50. if 'softcap' in terms else 0.
    needs = bias is not None, gate is not None
    features = weight.new_zeros(len(query), heads, num_features)
    grad_features, at_edges, needs_attr = None, (None, None), num_features > 0
    if needs_attr:
        grad_features = features
        at_edges = features.to(dtype), torch.zeros(graph.num_edges, num_features, dtype=dtype)
    attended = (*nodes, *at_edges, bias, gate, None, *edges, *ptrs, seed, 0.1, softcap, dropout_p)
    diffused = (*nodes, bias, gate, None, teleport, *edges, seed, 0.1, softcap, dropout_p)
    out, statistics = query.to(weight.dtype), weight.new_empty(len(query), heads, 2)
    messages = weight.new_empty(len(teleport), heads, len(query), channels)
    own = torch.ops.graphattn
    return {operator.default: arguments for operator, arguments in {
        own.edge_attention: attended,
        own.edge_attention_backward: (out, grad_features, out, features, statistics, *attended,
                                      needs_attr, *needs),
        own.edge_dot: (*nodes[:2], *edges, *ptrs),
        own.edge_dot_backward: (weight.t().to(dtype), *nodes[:2], *edges, *ptrs),
        own.attention_weights: (*logits, *edges, 0.1, softcap),
        own.attention_weights_backward: (weight, weight, statistics.transpose(0, 1), *logits,
                                         *edges, 0.1, softcap, *needs, False),
        own.weighted_sum: (weight, query, *edges, *ptrs),
        own.diffused_attention: (*diffused, True),
        own.diffused_attention_backward: (
            query, statistics.transpose(0, 1), messages, *diffused, True, *needs, False, True),
    }.items()}


def sampling(dtype: torch.dtype, clusters: int) -> list[Launch]:
    """Return the launches that sample a graph of ``clusters`` clusters: a kernel that counts edges,
    and a kernel that writes them."""
    factor, mixing = torch.ones(128, clusters, dtype=dtype), torch.zeros(clusters, clusters)
    model = FactorModel(factor, mixing.to(dtype), factor)
    return launches_of(lambda: compare(model, None))


def drawing(dtype: torch.dtype, clusters: int) -> list[Launch]:
    """Return the launches that sample few edges of a graph of ``clusters`` clusters, by Algorithm 1
    and by thinning."""
    factor = torch.ones(256, clusters, dtype=dtype)
    model = FactorModel(factor, torch.zeros(clusters, clusters, dtype=dtype), factor)

    def draw() -> None:
        for thins in (False, True):
            draws = Draws(model, None, thins=thins)
            draws.most, draws.max_expected, draws.total = 128, 0., 0  # not counted here
            draws.to_graph(by_name=True)

    return launches_of(draw)


def name_of(operator: OpOverload) -> str:
    """Return the name of an operator without the prefix ``graphattn::``."""
    return operator._schema.name.removeprefix('graphattn::')


def _arguments(graph: BipartiteGraph, dtype: torch.dtype, channels: int, heads: int,
               terms: str) -> tuple[Tensor | None, ...]:
    query = torch.zeros(graph.num_queries, heads, channels, dtype=dtype)
    weight = torch.zeros(heads, graph.num_edges)
    bias = gate = weight.t() if 'bias' in terms else None
    seed = torch.zeros(1, dtype=torch.long) if 'dropout' in terms else None
    return query, bias, gate, seed, weight, torch.zeros(2, graph.num_queries, heads)


def distinct(work: dict[OpOverload, tuple]) -> dict[tuple[str, str], Launch]:
    """Return the kernel launches of some operators, by the names of the operator and the kernel.

    A kernel that is compiled twice, for other widths or dtypes, is in the dict twice.

    Args:
        work: The arguments of each operator, as :func:`operators` returns them.
    """
    found = {}
    for operator, arguments in work.items():
        for launch in launches(operator, arguments):
            name = launch.kernel.__name__
            number = sum((of, kernel.split(' ')[0]) == (name_of(operator), name)
                         for of, kernel in found)
            key = (name_of(operator), name if number == 0 else f'{name} {number + 1}')
            is_new = all(launch.source().hash() != other.source().hash() for other in
                         found.values())
            if is_new:
                found[key] = launch
    return found


def environment_compiles() -> bool:
    """Return whether the environment variables let Triton compile kernels instead of interpreting
    them."""
    return os.environ.get('TRITON_INTERPRET', '0') != '1'
