"""Measurements of graphs and trained models: one package per question.

In each package, ``question`` holds a function from a graph to a small frozen result, ``drawing``
its figure and ``__main__`` its command; other modules hold the algorithms. A question imports
neither its drawing nor its command, and so neither matplotlib nor a parser::

    python -m analysis.spectrum --pattern 'SlidingWindow(3) | GlobalTokens(2)' --n 1024

``figures`` reproduces figures of the papers. The modules next to the packages are shared:
``graphs``, ``runs``, ``result``, ``checks``, ``command``, ``adjacency`` and ``walk``.
"""
