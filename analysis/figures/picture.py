"""Figures of this package: a drawing, and the printed values beside the computed ones."""

from __future__ import annotations

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
    """A number or statement of a paper beside ours."""

    quantity: str
    printed: Value
    """``None`` where the paper prints nothing."""
    computed: Value
    """Under the settings that the paper states."""
    fitted: Value = None
    """Under other settings, which come closer; a remark says which. ``None`` without them."""


@dataclass(frozen=True)
class Picture:
    """A figure of a paper, drawn again."""

    title: str
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    """What cannot be reproduced and why, and which settings were taken where none are stated."""
    figure: Figure

    def to_dict(self) -> dict[str, object]:
        """Return all but the drawing, in types that JSON knows."""
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
    """Draw a mask ``[query, key]`` with dark edges and no labels."""
    mask = graph.to_mask().numpy()
    axes.imshow(mask, vmin=0, vmax=1)
    if len(mask) <= 32:
        draw_grid(axes, len(mask))
    axes.set_title(title)
    axes.set(xticks=[], yticks=[])


def draw_grid(axes: Axes, n: int) -> None:
    """Thin lines between the cells of a mask of n tokens."""
    between = np.arange(n - 1) + 0.5
    axes.hlines(between, -0.5, n - 0.5, color='0.85', linewidth=0.5)
    axes.vlines(between, -0.5, n - 0.5, color='0.85', linewidth=0.5)


def _text(value: Value) -> str:
    return f'{value:.4g}' if isinstance(value, float) else cell(value)
