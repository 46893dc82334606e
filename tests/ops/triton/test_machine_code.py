"""Machine code of Triton's kernels, compiled without a GPU."""

import json
import operator
import re
from pathlib import Path

import pytest

import graphattn
from tests.forked import run_anew
from tests.pairwise import pairwise
from tests.pinned import is_pinned

pytestmark = pytest.mark.slow
pytest.importorskip('triton', reason="backend 'triton' needs triton")

# One process compiles what all tests look at: Triton's own functions were imported here to be
# interpreted, and importing them anew takes seconds.
COMPILE = """
import json, sys, torch
for name in list(sys.modules):
    if name == 'tests.ops.triton.machine_code' or (
            name.split('.')[0] == 'triton' and not name.startswith('triton._C')):
        del sys.modules[name]
from tests.ops.triton.machine_code import compiled, distinct

seen = set()
for dtype, degree, capability in {kernels}:
    for _, launch in distinct(getattr(torch, dtype), 64, 'bias, gate and dropout', degree=degree):
        source = launch.source().hash(), capability, *launch.options.values()
        if source not in seen:
            seen.add(source)
            print(json.dumps(dict(kernel=launch.kernel.__name__,
                                  **compiled(launch, capability)._asdict())))
"""
KERNELS = pairwise(['bfloat16', 'float32'], [4, 128], [80, 90])


@pytest.fixture(scope='module')
def codes() -> list[dict]:
    result = run_anew(COMPILE.format(kernels=KERNELS), TRITON_INTERPRET='0')
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


A_KERNEL = re.compile(r'^@(?:kernel|triton\.jit\(.*\))\ndef (\w+)', re.MULTILINE)
# Registers per thread, so that twelve warps fit a processor; bytes spilled; shared bytes per
# program, so that two programs fit.
BOUNDS = 168, 48, 2**16
# Kernels that compute gradients of attention, or tiles, may use all registers of a thread, and
# attention tiles spill on GPUs of compute capability 8.0.
BOUNDS_OF = {
    **dict.fromkeys(('grads_of_queries', 'grads_of_keys', 'try_tiles', 'draw_keys'),
                    (255, *BOUNDS[1:])),
    **dict.fromkeys(('attend_tiles', 'grads_of_tiled_queries', 'grads_of_tiled_keys',
                     'sums_of_tiles'), (255, 560, 2**17))}


def test_every_kernel_takes_no_more_than_it_may(codes):
    written = {name for path in Path(graphattn.__file__).parent.rglob('*.py')
               for name in A_KERNEL.findall(path.read_text())}
    assert len(written) >= 12 and {code['kernel'] for code in codes} == written
    # Other versions of Triton compile the same kernels to other machine code.
    for code in codes if is_pinned('triton') else ():
        numbers = [code[name] for name in ('registers', 'spilled', 'shared')]
        bounds = BOUNDS_OF.get(code['kernel'], BOUNDS)
        assert all(map(operator.le, numbers, bounds)), (code['kernel'], numbers, bounds)
