"""What the graphs of a model's heads can do: reach, mixing and direction, head by head and over all
layers."""

from analysis.certificate.question import Certificate, certificate

__all__ = ['Certificate', 'certificate']
