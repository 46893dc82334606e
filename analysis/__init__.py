"""Everything that measures and explains a graph or a trained model: one question, one module.

Each module holds a function from a graph to a small frozen result, and a command of its own::

    python -m analysis.spectrum --pattern 'SlidingWindow(3) | GlobalTokens(2)' --n 1024
"""
