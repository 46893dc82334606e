"""Machine code of Triton's kernels, compiled without a GPU."""

import json
import operator
import re
from pathlib import Path

import pytest

import graphattn
from tests.forked import run_anew
from tests.pinned import is_pinned

pytestmark = pytest.mark.slow
pytest.importorskip('triton', reason="backend 'triton' needs triton")

# Other versions of Triton compile the same kernels to other machine code.
has_these_bounds = pytest.mark.skipif(not is_pinned('triton'),
                                      reason='bounds are those of the Triton in constraints.txt')

# Triton's own functions were imported to be interpreted.
ANEW = """
import json, sys, torch
for name in list(sys.modules):
    if name == 'tests.ops.triton.machine_code' or (
            name.split('.')[0] == 'triton' and not name.startswith('triton._C')):
        del sys.modules[name]
"""
EVERY_KERNEL = ANEW + """
from tests.ops.triton.machine_code import compiled, distinct
seen = set()
for dtype in (torch.bfloat16, torch.float32):
    for degree in (4, 128):
        for _, launch in distinct(dtype, 64, 'bias, gate and dropout', degree=degree):
            source = launch.source().hash(), *launch.options.values()
            if source not in seen:
                seen.add(source)
                code = compiled(launch, {capability})
                print(json.dumps([launch.kernel.__name__, code.registers, code.spilled,
                                  code.spills_in_loops, code.shared]))
"""
A_KERNEL = re.compile(r'^@(?:kernel|triton\.jit\(.*\))\ndef (\w+)', re.MULTILINE)
# Registers per thread, so that twelve warps fit a processor; bytes spilled outside the loop;
# instructions in loops for spills; shared bytes per program, so that two programs fit.
BOUNDS = 168, 48, 8, 2**16
# Kernels that compute gradients of attention, or tiles, may use all registers of a thread, and
# attention tiles spill in their loops on GPUs of compute capability 8.0.
BOUNDS_OF = {
    **dict.fromkeys(('grads_of_queries', 'grads_of_keys', 'try_tiles', 'draw_keys'),
                    (255, *BOUNDS[1:])),
    **dict.fromkeys(('attend_tiles', 'grads_of_tiled_queries', 'grads_of_tiled_keys'),
                    (255, 560, 360, 2**17))}


@pytest.mark.parametrize('capability', [80, 90])
def test_every_kernel_takes_no_more_than_it_may(capability):
    result = run_anew(EVERY_KERNEL.format(capability=capability), TRITON_INTERPRET='0')
    assert result.returncode == 0, result.stderr
    taken = [json.loads(line) for line in result.stdout.splitlines()]
    written = {name for path in Path(graphattn.__file__).parent.rglob('*.py')
               for name in A_KERNEL.findall(path.read_text())}
    assert len(written) >= 12 and {kernel for kernel, *_ in taken} == written
    if is_pinned('triton'):
        for kernel, *numbers in taken:
            bounds = BOUNDS_OF.get(kernel, BOUNDS)
            assert all(map(operator.le, numbers, bounds)), (kernel, numbers, bounds)


ATTENTION = ANEW + """
from tests.ops.triton.machine_code import compiled, launches, operators
for dtype, channels, terms, degree, capability in {cases}:
    codes = {{}}
    for call in operators(getattr(torch, dtype), channels, terms, degree=degree).items():
        for launch in launches(*call):
            if launch.kernel.__name__ in {attending} and launch.kernel.__name__ not in codes:
                code, edges = compiled(launch, capability), launch.edges_of_a_warp
                wide = sum(count for name, count in code.loop.items() if name.startswith('LDG')
                           and name.endswith('.128'))
                codes[launch.kernel.__name__] = dict(
                    registers=code.registers, spilled=code.spilled, local=code.spills_in_loops,
                    edges=edges, instructions=code.loop.total() / edges, wide=wide,
                    tile=launch.arguments['WIDTH'] * edges)
    print(json.dumps(codes))
"""
ATTENDING = 'attend_rows', 'grads_of_queries', 'grads_of_keys'


@has_these_bounds
@pytest.mark.parametrize('cases', [
    [('bfloat16', 64, 'plain', 64, 90)],
    [('bfloat16', 64, 'bias and gate', 64, 90),
     ('float16', 80, 'plain', 64, 80),  # padded to 128
     ('bfloat16', 256, 'dropout', 64, 90),
     ('float32', 256, 'bias and gate', 64, 80),
     ('float32', 16, 'dropout', 64, 80)]],
    ids=['plain', 'others'])
def test_attention_reads_many_bytes_at_a_time_in_few_instructions(cases):
    result = run_anew(ATTENTION.format(cases=cases, attending=ATTENDING), TRITON_INTERPRET='0')
    assert result.returncode == 0, result.stderr
    found = result.stdout.splitlines()
    assert len(found) == len(cases)
    for case, line in zip(cases, found):
        codes, itemsize = json.loads(line), 4 if case[0] == 'float32' else 2
        assert {*codes} == {*ATTENDING}
        for kernel, code in codes.items():
            assert code['local'] == 0, f'its loop spills: {case}, {kernel}, {code}'
            assert code['spilled'] <= 16 and code['registers'] <= 255, (case, kernel, code)
            # Vectors of two nodes for each edge, by each of 32 threads 16 bytes at a time.
            most = 0.65 * code['tile'] / code['edges'] + 16
            assert code['wide'] * 512 == 2 * code['tile'] * itemsize, (case, kernel, code)
            assert code['instructions'] <= most, (case, kernel, code)


TILES = ANEW + """
from tests.ops.triton.machine_code import compiled, sampling
for launch in sampling(torch.float32, {channels}):
    code = compiled(launch, {capability})
    print(json.dumps(dict(kernel=launch.kernel.__name__, registers=code.registers,
                          spilled=code.spilled, shared=code.shared, loop=code.loop)))
"""


@has_these_bounds
@pytest.mark.parametrize('channels, capability', [(128, 90), (256, 80)])
def test_tiles_are_multiplied_by_tensor_cores(channels, capability):
    result = run_anew(TILES.format(channels=channels, capability=capability), TRITON_INTERPRET='0')
    assert result.returncode == 0, result.stderr
    codes = [json.loads(line) for line in result.stdout.splitlines()]
    assert [code['kernel'] for code in codes] == ['try_tiles', 'try_tiles']
    assert all(code['spilled'] <= 24 and code['registers'] <= 255 and code['shared'] <= 49152
               for code in codes), codes
    # Three products of 64 x 32 pairs by 32 channels, of which four warps do 8 channels together, or
    # each 8 of its 16 x 8 pairs. Both passes of the sampler multiply alike.
    together, alone = 'HGMMA.64x32x8.F32.TF32', 'HMMA.1688.F32.TF32'
    for code in codes:
        loop = code['loop']
        pairs = 64 * 32 * loop.get(together, 0) + 4 * 16 * 8 * loop.get(alone, 0)
        assert 8 * pairs == 3 * 64 * 32 * 32 and 'FFMA' not in loop, code
