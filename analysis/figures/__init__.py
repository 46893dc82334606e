"""Reproduced figures and tables of the three papers, with printed and computed values."""

from collections.abc import Callable

from analysis.figures.diffuser import (
    diffuser_s2,
    diffuser_s7,
    diffuser_s8,
    diffuser_s9,
    diffuser_tables,
)
from analysis.figures.picture import Picture
from analysis.figures.sbm import sbm_3, sbm_6
from analysis.figures.sparsebert import sparsebert_1

FIGURES: dict[str, Callable[[int], Picture]] = {  # called with a seed
    'sparsebert-1': sparsebert_1,
    'sbm-3': sbm_3,
    'sbm-6': sbm_6,
    'diffuser-s2': diffuser_s2,
    'diffuser-s7': diffuser_s7,
    'diffuser-s8': diffuser_s8,
    'diffuser-s9': diffuser_s9,
    'diffuser-tables': diffuser_tables,
}
