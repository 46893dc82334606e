"""Eigenvalues of an attention graph's Laplacian.

::

    python -m analysis.spectrum
    python -m analysis.spectrum --pattern bigbird diffuser 'SlidingWindow(64)' --n 2048
    python -m analysis.spectrum --pattern diffuser --n 65536 --extremes 2
"""

from analysis.spectrum.laplacian import Eigenpairs, Laplacian, LaplacianKind
from analysis.spectrum.question import Spectrum, spectrum

__all__ = ['Eigenpairs', 'Laplacian', 'LaplacianKind', 'Spectrum', 'spectrum']
