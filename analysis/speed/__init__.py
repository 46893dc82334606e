"""Time of attention along a graph on this machine, compared with the time of full attention.

::

    python -m analysis.speed
    python -m analysis.speed --pattern bigbird diffuser 'SlidingWindow(64)' --n 4096
    python -m analysis.speed --pattern diffuser --n 4096 --backward true
"""

from analysis.speed.question import Speed, speed

__all__ = ['Speed', 'speed']
