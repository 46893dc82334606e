"""Measurements of graphs and trained models: one module per question.

A module has a function of its own name that maps a graph to a small frozen result. It imports
neither matplotlib nor an argument parser. The drawings are in ``drawings``, the commands in
``commands``; ``figures`` reproduces figures of the papers.
"""

import sys

from experiments.signals import end_early

if sys.argv[:1] == ['-m']:  # python -m has begun to look for its module
    end_early()
