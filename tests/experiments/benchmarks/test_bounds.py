"""Kernels that take more of a processor than they may end the command that compiles them."""

from types import SimpleNamespace

import pytest

bounds = pytest.importorskip('experiments.benchmarks.bounds', exc_type=ImportError)


@pytest.mark.parametrize('name', bounds.MAX)
def test_what_takes_more_than_it_may_ends_the_command(name, tmp_path, monkeypatch):
    launch = SimpleNamespace(source=lambda: SimpleNamespace(hash=lambda: 'one'),
                             options=dict(num_warps=1))
    own = {'kernel': 'sum_of_rows', **bounds.MAX}
    monkeypatch.setattr(bounds, 'environment_compiles', lambda: True)
    monkeypatch.setattr(bounds, 'started', lambda *setting: [launch])
    monkeypatch.setattr(bounds, 'taken', lambda launch, capability: own)
    bounds.main(capabilities=[90], out=tmp_path)
    own[name] += 1
    with pytest.raises(SystemExit, match='1 of 1 kernels exceed their bounds'):
        bounds.main(capabilities=[90], out=tmp_path)
