"""All measurements of a graph on one self-contained HTML page.

::

    python -m analysis.report --pattern bigbird --n 512 --out page.html
    python -m analysis.report --graph people.csv
    python -m analysis.report --profile profile.npz
"""

from analysis.report.page import page
from analysis.report.profiles import HeadProfile, profile_sections
from analysis.report.sections import Section, Size, sections, size

__all__ = ['HeadProfile', 'Section', 'Size', 'page', 'profile_sections', 'sections', 'size']
