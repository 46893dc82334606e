"""Data, one task per file."""

from experiments.tasks.digits import Digits
from experiments.tasks.duplicates import Duplicates

__all__ = ['Digits', 'Duplicates']
