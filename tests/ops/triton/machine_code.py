"""Registers and memory of the GPU kernels, compiled without a GPU."""

import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
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

from graphattn import ops
from graphattn.ops.sample.triton import compare
from graphattn.ops.sample.triton.draws import Draws
from graphattn.ops.triton import rows
from graphattn.ops.triton.plans import Arriving
from graphattn.patterns import RandomKeys
from graphattn.samplers import FactorModel

_TYPES = {torch.float64: 'fp64', torch.float32: 'fp32', torch.float16: 'fp16',
          torch.bfloat16: 'bf16', torch.bool: 'i1', torch.int64: 'i64', torch.int32: 'i32',
          torch.uint16: 'u16'}


class Launch(NamedTuple):
    """A launch of a Triton kernel, with what determines how the kernel is compiled."""

    kernel: JITFunction
    arguments: dict[str, object]
    options: dict[str, int]  # warps, and registers if they are bounded

    def source(self) -> ASTSource:
        signature, constants, attributes = {}, {}, {}
        for number, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            if isinstance(value, Tensor):
                signature[parameter.name] = f'*{_TYPES[value.dtype]}'
                attributes[number,] = [['tt.divisibility', 16]]  # as torch aligns tensors
            elif parameter.is_constexpr or value is None:
                signature[parameter.name], constants[number,] = 'constexpr', value
            else:
                signature[parameter.name] = parameter.annotation_type or 'i32'
        return ASTSource(self.kernel, signature, constants, attributes)


class MachineCode(NamedTuple):
    registers: int  # per thread
    spilled: int  # bytes per thread
    shared: int  # bytes per program


def compiled(launch: Launch, capability: int) -> MachineCode:
    """Compile a launch for a compute capability (90 is 9.0). Triton caches the result on disk."""
    kernel = triton.compile(launch.source(), target=GPUTarget('cuda', capability, 32),
                            options=launch.options)
    with TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.cubin'
        path.write_bytes(kernel.asm['cubin'])
        tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
        usage = subprocess.run([tool, '--dump-resource-usage', path], capture_output=True,
                               text=True, check=True).stdout
    sizes = {name: int(size) for name, size in re.findall(r'(REG|STACK|LOCAL):(\d+)', usage)}
    return MachineCode(sizes['REG'], sizes['STACK'] + sizes['LOCAL'], kernel.metadata.shared)


# Launches ############################################################################


def launches_of(work: Callable[[], object]) -> list[Launch]:
    """Return the launches of a function on CUDA, which is called with CPU tensors."""
    recorded = []

    def record(kernel: JITFunction, *arguments, grid, warmup, **named) -> None:
        names = [parameter.name for parameter in kernel.params]
        constants = {name: named.pop(name) for name in names if name in named}
        recorded.append(Launch(kernel, {**dict(zip(names, arguments)), **constants}, named))

    # Numbers that the GPU computes are not there yet, and rows are cut as if they were longer.
    with (patch.object(JITFunction, 'run', record), patch.object(rows, 'UNCUT_PARTS', 0),
          patch.object(Arriving, 'now', lambda self: None), torch.no_grad()):
        work()
    return recorded


def operators(dtype: torch.dtype, channels: int, terms: str = 'plain', *, degree: int = 64,
              heads: int = 16, num_features: int = 0) -> dict[OpOverload, tuple]:
    """Return the arguments of each operator for these sizes and terms of the logits."""
    ops.load('triton')
    graph = RandomKeys(degree).build(2 * degree, seed=0)
    query = torch.zeros(graph.num_queries, heads, channels, dtype=dtype)
    weight = torch.zeros(heads, graph.num_edges)
    bias = weight.t() if 'bias' in terms else None
    gate = weight.t() if 'gate' in terms else None
    seed = torch.zeros(1, dtype=torch.long) if 'dropout' in terms else None
    edges, ptrs = (*graph.csr, *graph.csc), graph.segments.ptrs
    dropout_p, softcap = 0. if seed is None else 0.1, 50. if 'softcap' in terms else 0.
    teleport, logits = torch.zeros(2, len(query), heads), (query, query, bias, gate, None)
    features = weight.new_zeros(len(query), heads, num_features)
    has_features = num_features > 0
    at_edges = (features.to(dtype), torch.zeros(graph.num_edges, num_features, dtype=dtype)) if (
        has_features) else (None, None)
    attended = (*(query,) * 3, *at_edges, bias, gate, None, *edges, *ptrs, seed, 0.1, softcap,
                dropout_p)
    diffused = (*(query,) * 3, bias, gate, None, teleport, *edges, seed, 0.1, softcap, dropout_p)
    out, statistics = query.to(weight.dtype), weight.new_empty(len(query), heads, 2)
    messages = weight.new_empty(2, heads, len(query), channels)
    needs_logits = bias is not None, gate is not None, False  # and no sink
    own = torch.ops.graphattn
    return {getattr(own, name).default: arguments for name, arguments in {
        'edge_attention': attended,
        'edge_attention_backward': (out, features, out, features, statistics, *attended,
                                    True, True, True, has_features, has_features, *needs_logits),
        'edge_dot': (query, query, *edges, *ptrs),
        # of probabilities, which are float32, along the tiles of attention
        'edge_dot_backward': (weight.t(), query.float(), query.float(), *edges, *ptrs, True, True),
        'attention_weights': (*logits, *edges, 0.1, softcap),
        'attention_weights_backward': (weight, weight, statistics.transpose(0, 1), *logits,
                                       *edges, 0.1, softcap, True, True, *needs_logits),
        'weighted_sum': (weight.t(), query, *edges, *ptrs),
        'diffused_attention': (*diffused, True),
        'diffused_attention_backward': (query, statistics.transpose(0, 1), messages, *diffused,
                                        True, True, True, *needs_logits, True, True)}.items()}


def launches(operator: OpOverload, arguments: tuple) -> list[Launch]:
    return launches_of(partial(operator._op_dk, DispatchKey.CUDA, *arguments))


def sampling(dtype: torch.dtype, clusters: int) -> list[Launch]:
    """Return the launches that compare the probability of every pair with a random number."""
    factor, mixing = torch.ones(128, clusters, dtype=dtype), torch.zeros(clusters, clusters)
    return launches_of(lambda: compare(FactorModel(factor, mixing.to(dtype), factor), None))


def drawing(dtype: torch.dtype, clusters: int) -> list[Launch]:
    """Return the launches that sample few edges, by Algorithm 1 and by thinning."""
    factor = torch.ones(256, clusters, dtype=dtype)
    model = FactorModel(factor, torch.zeros(clusters, clusters, dtype=dtype), factor)

    def draw() -> None:
        for thins in (False, True):
            draws = Draws(model, None, thins=thins)
            draws.most, draws.max_expected, draws.total = 128, 0., 0  # not counted here
            draws.to_graph(by_name=True)

    return launches_of(draw)


def distinct(dtype: torch.dtype, channels: int, terms: str, *,
             degree: int = 64) -> Iterator[tuple[str, Launch]]:
    """Yield the launches of all operators and samplers that compile to other code, by name."""
    found = {f'{operator.name()}, {size} features': launches(operator, arguments)
             for size in (0, channels) for operator, arguments in operators(
                 dtype, channels, terms, degree=degree, num_features=size).items()}
    if dtype in (torch.float32, torch.float64):
        found |= {'sampling': sampling(dtype, channels), 'drawing': drawing(dtype, channels)}
    seen = set()
    for name, made in found.items():
        for launch in made:
            source = launch.source().hash(), *launch.options.values()
            if source not in seen:
                seen.add(source)
                yield name, launch
