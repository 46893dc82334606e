"""Fuzzes for a while: round after round of new cases, until one fails or the time is over."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.budget import CASE, TIMES

FOLDER = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m tests.fuzz', description=__doc__)
    parser.add_argument('--minutes', type=float, default=10., help='begin no round after these')
    parser.add_argument('--seed', type=int, default=1, help='of the first round')
    parser.add_argument('--times', type=int, default=20,
                        help='cases of a round, in multiples of those of a test run')
    parser.add_argument('--only', default='', help='tests whose names match, as of pytest -k')
    parser.add_argument('--test', help='the one test that --case is for')
    parser.add_argument('--case', help='runs this case alone, which an earlier failure printed')
    options = parser.parse_args()
    if (options.test is None) != (options.case is None):
        parser.error('--test and --case go together')
    if options.case:
        sys.exit(run([options.test], {CASE: options.case}))
    fuzz(options.minutes, options.seed, options.times, options.only)


def fuzz(minutes: float, seed: int, times: int, only: str) -> None:
    start, first = time.monotonic(), seed
    while True:
        print(f'round {seed - first + 1}, seed {seed}, '
              f'{(time.monotonic() - start) / 60:.1f} of {minutes:g} minutes', flush=True)
        if run(['-n', '2', str(FOLDER), f'--hypothesis-seed={seed}', '-k', only],
               {TIMES: str(times)}):
            again = f'--seed {seed} --times {times}' + (f" --only '{only}'" if only else '')
            sys.exit(f'seed {seed} fails; its cases are above, the whole round again: '
                     f'python -m tests.fuzz --minutes 0 {again}')
        if time.monotonic() - start > 60 * minutes:
            return
        seed += 1


def run(arguments: list[str], variables: dict[str, str]) -> int:
    command = [sys.executable, '-m', 'pytest', '-q', '--tb=short', *arguments]
    return subprocess.run(command, env={**os.environ, **variables}).returncode


if __name__ == '__main__':
    main()
