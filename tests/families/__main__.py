"""Attach every model of transformers, and write down what comes of it."""

import argparse
import csv
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.families import attaching, packing, weights
from tests.families.attaching import Result
from tests.families.models import names
from tests.families.summary import counts, summary


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m tests.families', description=__doc__)
    parser.add_argument('names', nargs='*', help='names of classes (default: all)')
    parser.add_argument('--out', type=Path, default='families.csv')
    parser.add_argument('--processes', type=int, default=2)
    parser.add_argument('--question', choices=['edges', 'packing', 'weights'], default='edges',
                        help='what to compare (default: outputs along all edges)')
    parser.add_argument('--eager', action='store_true', help="instead of SDPA, where there is one")
    args = parser.parse_args()
    chosen = args.names or names()
    examine = {'edges': partial(attaching.examine, is_eager=args.eager),
               'packing': packing.examine, 'weights': weights.examine}[args.question]
    import transformers
    transformers.logging.set_verbosity_error()
    start = time.monotonic()
    with get_context('fork').Pool(args.processes, maxtasksperchild=50) as pool, open(
            args.out, 'w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(Result._fields)
        results = []
        for count, result in enumerate(pool.imap_unordered(examine, chosen), 1):
            writer.writerow(result)
            file.flush()
            results.append(result)
            if args.names or result.result == 'wrong':
                print(*result, sep=': ')
            print(f'{count} of {len(chosen)}, {time.monotonic() - start:.0f} s', end='\r',
                  file=sys.stderr)
    print((summary if args.question == 'edges' else counts)(results))


if __name__ == '__main__':
    main()
