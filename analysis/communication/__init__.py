"""Messages between several processes that share one sequence, computed from the sequence's graph.

::

    python -m analysis.communication
    python -m analysis.communication --pattern 'SlidingWindow(64)' bigbird --n 65536
    python -m analysis.communication --processes '[8,64,512]' --heads 32 --latency 5e-6
"""

from analysis.communication.question import Communication, communication

__all__ = ['Communication', 'communication']
