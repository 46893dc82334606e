"""Machine code of Triton's kernels, compiled without a GPU."""

import json
import re
from pathlib import Path

import pandas as pd
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
    if name.split('.')[0] == 'triton' and not name.startswith('triton._C'):
        del sys.modules[name]
"""
EVERY_KERNEL = ANEW + """
from pathlib import Path
from experiments.benchmarks import bounds
bounds.main(quick=True, capabilities=[{capability}], out=Path({folder!r}))
"""
A_KERNEL = re.compile(r'^@(?:kernel|triton\.jit\(.*\))\ndef (\w+)', re.MULTILINE)


@pytest.mark.parametrize('capability', [80, 90])
def test_every_kernel_takes_no_more_than_it_may(capability, tmp_path):
    result = run_anew(EVERY_KERNEL.format(capability=capability, folder=str(tmp_path)),
                      TRITON_INTERPRET='0')
    assert result.returncode == 0 or not is_pinned('triton'), result.stderr
    compiled = pd.read_csv(tmp_path / 'bounds_largest.csv')['kernel']
    written = [name for path in Path(graphattn.__file__).parent.rglob('*.py')
               for name in A_KERNEL.findall(path.read_text())]
    assert len(written) >= 12 and sorted(compiled) == sorted(written)


ATTENTION = ANEW + """
from experiments.benchmarks.machine_code import compiled, distinct, name_of, operators
for dtype, channels, terms, degree, capability in {cases}:
    work = operators(getattr(torch, dtype), channels, terms, degree=degree)
    work = {{operator: arguments for operator, arguments in work.items()
             if name_of(operator).startswith('edge_attention')}}
    codes = []
    for launch in distinct(work).values():
        if launch.kernel.__name__ in {attending}:
            code = compiled(launch, capability)
            wide = sum(count for name, count in code.loop.items() if name.startswith('LDG')
                       and name.endswith('.128'))
            codes.append(dict(kernel=launch.kernel.__name__, registers=code.registers,
                              spilled=code.spilled, local=code.spills_in_loop, edges=code.edges,
                              instructions=code.instructions_per_edge, wide=wide,
                              tile=launch.arguments['WIDTH'] * code.edges))
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
        assert [code['kernel'] for code in codes] == [*ATTENDING]
        for code in codes:
            assert code['local'] == 0, f'its loop spills: {case}, {code}'
            assert code['spilled'] <= 16 and code['registers'] <= 255, (case, code)
            # Vectors of two nodes for each edge, by each of 32 threads 16 bytes at a time.
            most = 0.65 * code['tile'] / code['edges'] + 16
            assert code['wide'] * 512 == 2 * code['tile'] * itemsize, (case, code)
            assert code['instructions'] <= most, (case, code)


TILES = ANEW + """
from experiments.benchmarks.machine_code import compiled, sampling
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
