"""Reach, mixing and direction of the graphs of a model's heads, reach over all layers, and
conditions of universal approximation.

::

    python -m analysis.certificate sparse
    python -m analysis.certificate sparse --n 1024
    python -m analysis.certificate clustered --n 256 --tokens ids.npy
"""

from analysis.certificate.models import graphs_of_heads
from analysis.certificate.question import Certificate, certificate

__all__ = ['Certificate', 'certificate', 'graphs_of_heads']
