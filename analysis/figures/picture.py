"""Figures of this package: a drawing, and a table of printed and computed values."""

from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.result import Result, aligned, cell
from graphattn import BipartiteGraph

Value = float | int | bool | str | None


@dataclass(frozen=True)
class Row(Result):
    """A value or a statement in a paper, next to the value that this package computes."""

    quantity: str
    printed: Value  #: The paper's value; ``None`` if the paper prints none.
    computed: Value  #: Our value with the paper's stated settings.
    #: Our value with other settings that come closer to the paper; a remark names the settings.
    #: ``None`` if there are none.
    fitted: Value = None


@dataclass(frozen=True)
class Picture:
    """A reproduced figure of a paper, with the rows of its table."""

    title: str
    rows: tuple[Row, ...]
    #: Deviations from the paper with the reasons, and settings that the paper does not state.
    remarks: tuple[str, ...]
    figure: Figure

    def to_dict(self) -> dict[str, object]:
        """Return all fields except the drawing as a dict of JSON types."""
        return {'title': self.title, 'rows': [row.to_dict() for row in self.rows],
                'remarks': list(self.remarks)}

    def __str__(self) -> str:
        names = ['quantity', 'printed', 'computed']
        if any(row.fitted is not None for row in self.rows):
            names.append('fitted')
        cells = [[_text(getattr(row, name)) for name in names] for row in self.rows]
        header = ['', *names[1:]]
        remarks = [fill(remark, 98, initial_indent='* ', subsequent_indent='  ')
                   for remark in self.remarks]
        return '\n'.join([self.title, aligned([header, *cells]), *remarks])


def draw_mask(axes: Axes, graph: BipartiteGraph, title: str) -> None:
    """Draw the mask of a graph, ``[query, key]``, with dark edges and without labels at the
    axes."""
    mask = graph.to_mask().numpy()
    axes.imshow(mask, vmin=0, vmax=1)
    if len(mask) <= 32:
        draw_grid(axes, len(mask))
    axes.set_title(title)
    axes.set(xticks=[], yticks=[])


def draw_grid(axes: Axes, n: int) -> None:
    between = np.arange(n - 1) + 0.5
    axes.hlines(between, -0.5, n - 0.5, color='0.85', linewidth=0.5)
    axes.vlines(between, -0.5, n - 0.5, color='0.85', linewidth=0.5)


def _text(value: Value) -> str:
    return f'{value:.4g}' if isinstance(value, float) else cell(value)
