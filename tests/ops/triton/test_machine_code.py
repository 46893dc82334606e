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

# Other versions of Triton compile the same kernels to other machine code.
has_these_bounds = pytest.mark.skipif(not is_pinned('triton'),
                                      reason='bounds are those of the Triton in constraints.txt')

# One process compiles what all tests look at: Triton's own functions were imported here to be
# interpreted, and importing them anew takes seconds.
COMPILE = """
import json, sys, torch
for name in list(sys.modules):
    if name == 'tests.ops.triton.machine_code' or (
            name.split('.')[0] == 'triton' and not name.startswith('triton._C')):
        del sys.modules[name]
from tests.ops.triton.machine_code import compiled, distinct, launches, operators, sampling

def tell(question, launch, capability, **others):
    code = compiled(launch, capability, reads_loops=question != 'every kernel')
    print(json.dumps(dict(question=question, kernel=launch.kernel.__name__, loop=code.loop,
                          registers=code.registers, spilled=code.spilled, shared=code.shared,
                          spills_in_loops=code.spills_in_loops, **others)))

seen = set()
for dtype, degree, capability in {kernels}:
    for _, launch in distinct(getattr(torch, dtype), 64, 'bias, gate and dropout', degree=degree):
        source = launch.source().hash(), capability, *launch.options.values()
        if source not in seen:
            seen.add(source)
            tell('every kernel', launch, capability)
for case in {attention}:
    dtype, channels, terms, degree, capability = case
    told = set()
    for call in operators(getattr(torch, dtype), channels, terms, degree=degree).items():
        for launch in launches(*call):
            if launch.kernel.__name__ in {attending} and launch.kernel.__name__ not in told:
                told.add(launch.kernel.__name__)
                edges = launch.edges_of_a_warp
                tell('attention', launch, capability, case=case, edges=edges,
                     tile=launch.arguments['WIDTH'] * edges)
for channels, capability in {tiles}:
    for launch in sampling(torch.float32, channels):
        tell('tiles', launch, capability, case=[channels, capability])
"""
KERNELS = pairwise(['bfloat16', 'float32'], [4, 128], [80, 90])
ATTENTION = [['bfloat16', 64, 'plain', 64, 90], ['bfloat16', 64, 'bias and gate', 64, 90],
             ['float16', 80, 'plain', 64, 80],  # padded to 128
             ['bfloat16', 256, 'dropout', 64, 90], ['float32', 256, 'bias and gate', 64, 80],
             ['float32', 16, 'dropout', 64, 80]]
ATTENDING = 'attend_rows', 'grads_of_queries', 'grads_of_keys'
TILES = [[128, 90], [256, 80]]


@pytest.fixture(scope='module')
def codes() -> list[dict]:
    result = run_anew(COMPILE.format(kernels=KERNELS, attention=ATTENTION, attending=ATTENDING,
                                     tiles=TILES), TRITON_INTERPRET='0')
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


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


def test_every_kernel_takes_no_more_than_it_may(codes):
    taken = [code for code in codes if code['question'] == 'every kernel']
    written = {name for path in Path(graphattn.__file__).parent.rglob('*.py')
               for name in A_KERNEL.findall(path.read_text())}
    assert len(written) >= 12 and {code['kernel'] for code in taken} == written
    for code in taken if is_pinned('triton') else ():
        numbers = [code[name] for name in ('registers', 'spilled', 'spills_in_loops', 'shared')]
        bounds = BOUNDS_OF.get(code['kernel'], BOUNDS)
        assert all(map(operator.le, numbers, bounds)), (code['kernel'], numbers, bounds)


@has_these_bounds
@pytest.mark.parametrize('case', ATTENTION, ids=str)
def test_attention_reads_many_bytes_at_a_time_in_few_instructions(codes, case):
    found = [code for code in codes if code['question'] == 'attention' and code['case'] == case]
    assert {code['kernel'] for code in found} == {*ATTENDING}
    itemsize = 4 if case[0] == 'float32' else 2
    for code in found:
        assert code['spills_in_loops'] == 0, f'its loop spills: {code}'
        assert code['spilled'] <= 16 and code['registers'] <= 255, code
        # Vectors of two nodes for each edge, by each of 32 threads 16 bytes at a time.
        wide = sum(count for name, count in code['loop'].items()
                   if name.startswith('LDG') and name.endswith('.128'))
        assert wide * 512 == 2 * code['tile'] * itemsize, code
        instructions = sum(code['loop'].values()) / code['edges']
        assert instructions <= 0.65 * code['tile'] / code['edges'] + 16, code


@has_these_bounds
@pytest.mark.parametrize('case', TILES, ids=str)
def test_tiles_are_multiplied_by_tensor_cores(codes, case):
    found = [code for code in codes if code['question'] == 'tiles' and code['case'] == case]
    assert [code['kernel'] for code in found] == ['try_tiles', 'try_tiles']
    assert all(code['spilled'] <= 24 and code['registers'] <= 255 and code['shared'] <= 49152
               for code in found), found
    # Three products of 64 x 32 pairs by 32 channels, of which four warps do 8 channels together, or
    # each 8 of its 16 x 8 pairs. Both passes of the sampler multiply alike.
    together, alone = 'HGMMA.64x32x8.F32.TF32', 'HMMA.1688.F32.TF32'
    for code in found:
        loop = code['loop']
        pairs = 64 * 32 * loop.get(together, 0) + 4 * 16 * 8 * loop.get(alone, 0)
        assert 8 * pairs == 3 * 64 * 32 * 32 and 'FFMA' not in loop, code
