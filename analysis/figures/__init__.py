"""Reproduced figures and tables of the three papers, with printed and computed values.

::

    python -m analysis.figures sparsebert-1
    python -m analysis.figures all --out runs/figures --seed 1

Each figure is a function ``name(seed=0)`` that returns a
:class:`~analysis.figures.picture.Picture`.
"""

from analysis.figures.densities import diffuser_s2, diffuser_tables
from analysis.figures.masks import sparsebert_1
from analysis.figures.picture import Picture, Row
from analysis.figures.responses import diffuser_s7
from analysis.figures.sbm import sbm_3, sbm_6
from analysis.figures.spectra import diffuser_s8, diffuser_s9

FIGURES = {
    'sparsebert-1': sparsebert_1,
    'sbm-3': sbm_3,
    'sbm-6': sbm_6,
    'diffuser-s2': diffuser_s2,
    'diffuser-s7': diffuser_s7,
    'diffuser-s8': diffuser_s8,
    'diffuser-s9': diffuser_s9,
    'diffuser-tables': diffuser_tables,
}

__all__ = ['FIGURES', 'Picture', 'Row', *(function.__name__ for function in FIGURES.values())]
