"""Everything that measures and explains a graph or a trained model: one question, one package.

In each, ``question`` holds a function from a graph to a small frozen result, ``drawing`` its
picture and ``__main__`` its command; the other modules are how it is answered. A question knows
neither its drawing nor its command, so that asking one takes neither matplotlib nor a parser::

    python -m analysis.spectrum --pattern 'SlidingWindow(3) | GlobalTokens(2)' --n 1024

``figures`` are those of the papers, drawn again. The modules beside the packages are what they
share: ``graphs`` to ask about, ``result``, ``checks``, ``command``, ``adjacency`` and ``walk``.
"""
