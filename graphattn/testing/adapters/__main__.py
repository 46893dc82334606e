"""Examine kernels of other libraries, and print what is found."""

from __future__ import annotations

import sys
import warnings

import torch

from graphattn.testing.adapters import Adapter, adapters


def main(names: list[str]) -> None:
    warnings.simplefilter('ignore')
    known = adapters()
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in names or known:
        print(f'\n## {name}\n\n{examined(known[name])}')


def examined(adapter: Adapter) -> str:
    """Check the kernel of an adapter, and return report and findings, or why it cannot run."""
    if not adapter.is_installed:
        return f'{adapter.package} is not installed'
    if adapter.device == 'cuda' and not torch.cuda.is_available():
        return 'there is no GPU'
    report = adapter.check(on_fail='report')
    return '\n\n'.join(map(str, [report, *report.findings, *report.limits]))


if __name__ == '__main__':
    main(sys.argv[1:])
