"""Fuzzes for a while: round after round of new cases, until one fails or the time is over."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.budget import TIMES


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m tests.fuzz', description=__doc__)
    parser.add_argument('--minutes', type=float, default=10., help='begin no round after these')
    parser.add_argument('--seed', type=int, default=1, help='of the first round')
    parser.add_argument('--times', type=int, default=20,
                        help='cases of a round, in multiples of those of a test run')
    parser.add_argument('--only', default='', help='tests whose names match, as of pytest -k')
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    seed = options.seed
    while True:
        command = [sys.executable, '-m', 'pytest', '-q', '-n', '2', str(Path(__file__).parent),
                   f'--hypothesis-seed={seed}', '-k', options.only]
        print(f'round of seed {seed}', flush=True)
        if subprocess.run(command, env={**os.environ, TIMES: str(options.times)}).returncode:
            sys.exit(f'seed {seed} fails; again: python -m tests.fuzz --minutes 0 --seed {seed} '
                     f'--times {options.times}')
        if time.monotonic() > end:
            return
        seed += 1


if __name__ == '__main__':
    main()
