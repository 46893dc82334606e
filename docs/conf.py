"""The site of the documentation: ``make docs``."""

import inspect

from graphattn import __version__

project, author = 'graphattn', 'the graphattn authors'
version = release = __version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.autosummary', 'sphinx.ext.mathjax',
              'sphinx.ext.napoleon', 'sphinx.ext.viewcode', 'sphinx-mathjax-offline',
              'sphinx_copybutton', 'sphinx_gallery.gen_gallery']
myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3
html_theme, html_title, html_show_copyright = 'furo', 'graphattn', False
templates_path = ['_templates']
autosummary_ignore_module_all, autosummary_imported_members = False, True
html_static_path, html_css_files = ['_static'], ['gallery.css']
exclude_patterns = ['_build', '_templates', 'gallery', 'sg_execution_times.rst']
autodoc_typehints, autodoc_member_order = 'none', 'bysource'
napoleon_custom_sections = ['Source']
sphinx_gallery_conf = {
    'examples_dirs': 'gallery', 'gallery_dirs': 'gallery_pages',
    'filename_pattern': r'\.py$',  # all are run
    'ignore_repr_types': r'matplotlib\.',  # which are drawn
    'abort_on_example_error': True,
    'download_all_examples': False, 'show_memory': False, 'write_computation_times': False,
}


def signature_of_init(app, what, name, value, options, signature, returns):
    """Show the arguments of a class whose ``__new__`` only explains wrong ones."""
    if what != 'class' or signature != '(*args, **kwargs)':
        return None
    _, *parameters = inspect.signature(value.__init__).parameters.values()
    plain = [each.replace(annotation=each.empty) for each in parameters]
    return str(inspect.Signature(plain)), returns


def setup(app):
    app.connect('autodoc-process-signature', signature_of_init)
