"""Hamiltonian paths of an attention graph: existence, with a witness.

::

    python -m analysis.hamiltonian
    python -m analysis.hamiltonian --pattern star 'RandomKeys(3)' --n 64 --directed false
"""

from analysis.hamiltonian.question import HamiltonianPath, hamiltonian_path

__all__ = ['HamiltonianPath', 'hamiltonian_path']
