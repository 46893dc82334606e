"""Figures of studies: bars, points and curves, with deviations over seeds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.papers.runs import spread_of

Levels = dict[str, dict[str, float]]  # the names and values of horizontal lines, by panel
STYLES = ('-', '--', '-.', ':', (0, (5, 1, 1, 1, 1, 1)))


def bars(rows: list[dict], label: str, columns: Sequence[str], title: str, **options) -> Figure:
    """Draw a bar chart of columns of a table, with a bar for each row.

    A note of the row is written at its bar. Rows without a deviation are baselines, in grey.

    Args:
        rows (list): Rows of the table. A missing value has no bar.
        label (str): The column of the names of bars.
        columns (sequence of str): The columns to draw. Each column has a panel.
        title (str): The title, which states the claim and the data.
        **options: As in :func:`points`.
    """
    return _by_name(_bar, rows, label, columns, title, **options)


def points(rows: list[dict], label: str, columns: Sequence[str], title: str, **options) -> Figure:
    """Draw a point for each row. Points suit differences that are small relative to the values.

    Args:
        rows, label, columns, title: As in :func:`bars`.
        panel (str, optional): A column whose values have a panel each. It requires a single column
            to draw.
        series (str, optional): A column whose values have a colour each.
        levels (dict, optional): Names and values of horizontal lines, by panel.
    """
    return _by_name(_point, rows, label, columns, title, **options)


def curves(rows: list[dict], x: str, columns: Sequence[str], title: str, *, panel: str,
           series: str | None = None, ylabel: str = 'score, %',
           levels: dict[str, float] | None = None,
           styles: dict[str, dict] | None = None) -> Figure:
    """Draw curves of columns over another column.

    Args:
        rows (list): Rows of the table.
        x (str): The column of the x axis.
        columns (sequence of str): The columns to draw. Each column has a curve.
        title (str): The title, which states the claim and the data.
        panel (str): A column whose values have a panel each.
        series (str, optional): A column whose values have a curve each.
        ylabel (str): Label of the y axis.
        levels (dict, optional): Names and values of horizontal lines, in the colours of the curves.
        styles (dict, optional): Line styles by series.
    """
    figure, panels = panels_of(split(rows, panel), title)
    for (name, own), axes in zip(split(rows, panel).items(), panels):
        for part, some in (split(own, series) if series else {'': own}).items():
            for column in columns:
                plot(axes, some, x, column, label=part or column, **(styles or {}).get(part, {}))
        for number, (level, value) in enumerate((levels or {}).items()):
            axes.axhline(value, color=f'C{number}', ls=':', label=level)
        axes.set_xlabel(x if x != 'value' else name)
    panels[0].set_ylabel(ylabel)
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside right center')
    return figure


def panels_of(names: Sequence[str], title: str, size: tuple[float, float] = (4., 4.),
              **options) -> tuple[Figure, Sequence[Axes]]:
    """Return a new figure with a panel for each name, and the axes of the panels. There is room for
    a legend.

    Args:
        names: Titles of the panels.
        title: Title of the figure.
        size: Width and height of a panel, in inches.
    """
    width = max(8., size[0] * len(names) + 2.2)  # titles are wide
    figure = Figure(figsize=(width, size[1]), layout='constrained')
    panels = figure.subplots(1, len(names), squeeze=False, **options)[0]
    for axes, name in zip(panels, names):
        axes.set_title(name)
        axes.grid(alpha=.5)
    figure.suptitle(title)
    return figure, panels


def plot(axes: Axes, rows: list[dict], x: str, column: str, **style) -> None:
    """Draw a curve of the values of ``column`` over the column ``x``, with error bars where
    deviations are known."""
    rows = [row for row in rows if row.get(column) is not None]
    axes.errorbar([row[x] for row in rows], [row[column] for row in rows],
                  *([row.get(spread_of(name)) or 0. for row in rows] for name in (column, x)),
                  **{'marker': 'o', 'capsize': 3, **style})


def history(run: Path, column: str) -> tuple[list[int], list[float]]:
    """Return the steps and the values of a column in the metrics of a run, as two lists. Both lists
    are empty if the run has no such column."""
    with (run / 'metrics.csv').open(newline='', encoding='utf-8') as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return [int(row['step']) for row in rows], [float(row[column]) for row in rows]


def plot_histories(axes: Axes, runs: Sequence[Path], column: str, factor: float = 1.,
                   label: str | None = None, **style) -> None:
    """Draw a curve over training steps for each run, with the values of ``column`` of its metrics,
    multiplied by ``factor``. Only the first curve has the label."""
    for number, run in enumerate(runs):
        steps, values = history(run, column)
        axes.plot(steps, [factor * value for value in values],
                  label=None if number else label, **style)


def split(rows: list[dict], column: str) -> dict[str, list[dict]]:
    """Group rows by the value of a column. Values are in the order of their first occurrence."""
    return {value: [row for row in rows if row.get(column) == value]
            for value in dict.fromkeys(row.get(column) for row in rows)}


def _by_name(draw: Callable, rows: list[dict], label: str, columns: Sequence[str], title: str, *,
             panel: str | None = None, series: str | None = None,
             levels: Levels | None = None) -> Figure:
    names = list(dict.fromkeys(row[label] for row in rows))
    kinds = list(split(rows, series)) if series else ['']
    lines = list(dict.fromkeys(name for some in (levels or {}).values() for name in some))
    parts = split(rows, panel) if panel else dict.fromkeys(columns, rows)
    height = max(0.3, 0.22 * len(kinds)) * len(names) + 1.8
    figure, panels = panels_of(list(parts), title, (3.4, height), sharey=True)
    for axes, (name, own) in zip(panels, parts.items()):
        column = columns[0] if panel else name
        for row in own:
            kind = kinds.index(row[series]) if series else 0
            y = names.index(row[label]) + 0.8 * ((kind + 0.5) / len(kinds) - 0.5)
            if row.get(column) is not None:
                draw(axes, y, 0.8 / len(kinds), row, column, f'C{kind}')
        for level, value in (levels or {}).get(name, {}).items():
            style = STYLES[lines.index(level) % len(STYLES)]
            axes.axvline(value, color='black', lw=1, ls=style, label=level)
        axes.set(xlabel=column, yticks=range(len(names)), yticklabels=names)
        axes.margins(x=0.25)
    panels[0].invert_yaxis()
    _legend(figure, panels, kinds if series else [])
    return figure


def _bar(axes: Axes, y: float, height: float, row: dict, column: str, colour: str) -> None:
    deviation = row.get(spread_of(column))
    axes.barh(y, row[column], height, xerr=deviation, alpha=.6, capsize=3,
              color=colour if spread_of(column) in row else '0.75')
    axes.text(row[column] + (deviation or 0.), y, f' {row[column]:.3g}{row.get("note", "")}',
              va='center', fontsize='small')


def _point(axes: Axes, y: float, height: float, row: dict, column: str, colour: str) -> None:
    axes.errorbar(row[column], y, xerr=row.get(spread_of(column)), fmt='o', color=colour, capsize=3)


def _legend(figure: Figure, panels: Sequence[Axes], kinds: list[str]) -> None:
    colours = [panels[0].scatter([], [], color=f'C{number}', label=kind)
               for number, kind in enumerate(kinds)]
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()
             if not line.get_label().startswith('_')}
    handles = [*colours, *lines.values()]
    if handles:
        figure.legend(handles=handles, loc='outside lower center', ncols=4)
