"""A referee for attention functions: outputs and gradients against the definition in float64."""

from graphattn.testing.check import check_attention
from graphattn.testing.report import Finding, Outcome, Report, Status, WrongAttention
from graphattn.testing.supports import Supports

__all__ = ['Finding', 'Outcome', 'Report', 'Status', 'Supports', 'WrongAttention',
           'check_attention']
