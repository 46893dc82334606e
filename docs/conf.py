"""The site of the documentation: ``make docs``."""

from graphattn import __version__

project, author = 'graphattn', 'the graphattn authors'
version = release = __version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.mathjax',
              'sphinx.ext.napoleon', 'sphinx.ext.viewcode', 'sphinx-mathjax-offline']
myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3
html_theme, html_title = 'furo', 'graphattn'
exclude_patterns = ['_build']
autodoc_typehints, autodoc_member_order = 'none', 'bysource'
napoleon_custom_sections = ['Source']
