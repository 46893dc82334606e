"""A report as a single HTML file."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.command import token_lines
from analysis.labels import name_tokens
from analysis.report.sections import Section
from analysis.result import table_rows

_PIXELS_PER_INCH = 80
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #ddd; --quiet: #666; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }}
h1, h2 {{ line-height: 1.2; overflow-wrap: anywhere; }}
nav a {{ margin-right: 1rem; }}
section {{ border-top: 1px solid var(--line); margin-top: 2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .15rem 1.2rem .15rem 0; }}
th, td {{ text-align: left; }}
th:first-child {{ background: Canvas; left: 0; position: sticky; }}
tbody th {{ color: var(--quiet); font-weight: normal; }}
img {{ display: block; margin: 1rem 0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --line: #444; --quiet: #aaa; }}
  img {{ filter: invert(.93) hue-rotate(180deg); }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
<nav>{links}</nav>
{sections}
</body>
</html>
"""


def page(title: str, sections: Sequence[Section], names: Sequence[str] | None = None) -> str:
    """Return the page of a report, with embedded figures.

    Args:
        title (str): The heading.
        sections: The sections of :func:`analysis.report.sections`.
        names: The names of the tokens, or ``None`` if tokens have no names.

    Returns:
        The text of a self-contained HTML file.
    """
    links = '\n'.join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>'
                      for section in sections)
    parts = '\n'.join(_section(section, names) for section in sections)
    return _PAGE.format(title=escape(title), links=links, sections=parts)


def _section(section: Section, names: Sequence[str] | None) -> str:
    parts = [f'<h2>{escape(section.title)}</h2>', f'<p>{escape(section.text)}</p>']
    if section.refusal:
        parts.append(f'<p><strong>Not asked:</strong> {escape(section.refusal)}</p>')
    if section.results:
        parts.append(_table(table_rows(section.results)))
        parts += [f'<p>{escape(line)}</p>' for line in token_lines(section.results, names)]
    if section.figure:
        name_tokens(section.figure, names)
        parts.append(f'<div class="wide">{_picture(section.figure, section.title)}</div>')
    return f'<section id="{_anchor(section)}">\n' + '\n'.join(parts) + '\n</section>'


def _anchor(section: Section) -> str:
    return section.title.lower().replace(' ', '-')


def _table(rows: list[list[str]]) -> str:
    header, *body = rows
    head = ''.join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = ''.join(f'<tr><th scope="row">{escape(first)}</th>'
                    + ''.join(f'<td>{escape(cell)}</td>' for cell in rest) + '</tr>\n'
                    for first, *rest in body)
    return (f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody>\n'
            f'</table></div>')


def _picture(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    with rc_context({'savefig.dpi': 2 * _PIXELS_PER_INCH}):  # for fine screens
        figure.savefig(buffer, format='png')
    content = base64.b64encode(buffer.getvalue()).decode()
    width = round(_PIXELS_PER_INCH * figure.get_figwidth())
    return (f'<img alt="{escape(title)}" width="{width}" '
            f'src="data:image/png;base64,{content}">')
