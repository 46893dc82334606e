"""Measurements of graphs and trained models: one package per question.

Each package has a module ``question`` with a function that maps a graph to a small frozen result.
The module ``drawing`` draws the result, the module ``__main__`` is the command, and further modules
contain the algorithms. To import ``question`` needs neither matplotlib nor an argument parser::

    python -m analysis.spectrum --pattern 'SlidingWindow(3) | GlobalTokens(2)' --n 1024

``figures`` reproduces figures of the papers. The modules next to the packages are shared:
``graphs``, ``runs``, ``result``, ``checks``, ``command``, ``adjacency`` and ``walk``.
"""

import sys

from experiments.signals import end_early

if sys.argv[:1] == ['-m']:  # python -m has begun to look for its module
    end_early()
