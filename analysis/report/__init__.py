"""All measurements of a graph on one self-contained HTML page.

::

    python -m analysis.report --pattern bigbird --n 512 --out page.html
    python -m analysis.report --graph people.csv
"""

from analysis.report.page import page
from analysis.report.sections import Section, Size, sections, size

__all__ = ['Section', 'Size', 'page', 'sections', 'size']
