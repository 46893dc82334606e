"""The three figures of studies: bars, points and curves, with deviations over seeds."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.papers.study import split, spread_of

Levels = dict[str, dict[str, float]]  # the names and values of straight lines, by panel
STYLES = ('-', '--', '-.', ':', (0, (5, 1, 1, 1, 1, 1)))


def bars(rows: list[dict], label: str, columns: Sequence[str], title: str, **options) -> Figure:
    """Draw a bar for each row with its note, in a panel for each column, or for each value of the
    column ``panel``, and in a colour for each value of ``series``."""
    return _by_name(_bar, rows, label, columns, title, **options)


def points(rows: list[dict], label: str, columns: Sequence[str], title: str, **options) -> Figure:
    """Draw as :func:`bars` does, with points, for differences that are small beside the values."""
    return _by_name(_point, rows, label, columns, title, **options)


def curves(rows: list[dict], x: str, columns: Sequence[str], title: str, *, panel: str,
           series: str | None = None, ylabel: str = 'score, %', levels: Levels | None = None,
           log: bool = False) -> Figure:
    """Draw columns over ``x``, a panel for each value of ``panel``, a curve for each ``series``."""
    parts = split(rows, panel)
    figure, panels = panels_of(list(parts), title)
    for axes, (name, own) in zip(panels, parts.items()):
        for part, some in (split(own, series) if series else {'': own}).items():
            for column in columns:
                _curve(axes, some, x, column, part or column)
        for number, (level, value) in enumerate((levels or {}).get(name, {}).items()):
            axes.axhline(value, color=f'C{number}', ls=':', label=level)
        axes.set_xlabel(x if x != 'value' else name)
        axes.margins(.1)
        if log:
            axes.set_xscale('log')
    panels[0].set_ylabel(ylabel)
    named = {label: handle for axes in panels
             for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(named.values(), named.keys(), loc='outside right center')
    return figure


def panels_of(names: Sequence[str], title: str, size: tuple[float, float] = (4., 4.),
              **options) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with a panel for each name, with room for a legend, and its axes."""
    width = max(8., size[0] * len(names) + 2.2)  # titles are wide
    figure = Figure(figsize=(width, size[1]), layout='constrained')
    panels = figure.subplots(1, len(names), squeeze=False, **options)[0]
    for axes, name in zip(panels, names):
        axes.set_title(name)
        axes.grid(alpha=.5)
        axes.set_axisbelow(True)
    figure.suptitle(title)
    return figure, panels


def _curve(axes: Axes, rows: list[dict], x: str, column: str, label: str) -> None:
    rows = [row for row in rows if None not in (row.get(column), row.get(x))]
    axes.errorbar([row[x] for row in rows], [row[column] for row in rows],
                  *([row.get(spread_of(name)) or 0. for row in rows] for name in (column, x)),
                  marker='o', capsize=3, label=label)


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
        axes.set(xlabel=column if panel else '', yticks=range(len(names)), yticklabels=names)
        axes.margins(x=0.25)
    panels[0].invert_yaxis()
    colours = [panels[0].scatter([], [], color=f'C{number}', label=kind)
               for number, kind in enumerate(kinds if series else ())]
    drawn = {line.get_label(): line for axes in panels for line in axes.get_lines()
             if not line.get_label().startswith('_')}
    if handles := [*colours, *drawn.values()]:
        figure.legend(handles=handles, loc='outside lower center', ncols=4)
    return figure


def _bar(axes: Axes, y: float, height: float, row: dict, column: str, colour: str) -> None:
    deviation = row.get(spread_of(column))
    axes.barh(y, row[column], height, xerr=deviation, alpha=.6, capsize=3,
              color=colour if spread_of(column) in row else '0.75')
    axes.text(row[column] + (deviation or 0.), y, f' {row[column]:.3g}{row.get("note", "")}',
              va='center', fontsize='small')


def _point(axes: Axes, y: float, height: float, row: dict, column: str, colour: str) -> None:
    axes.errorbar(row[column], y, xerr=row.get(spread_of(column)), fmt='o', color=colour, capsize=3)
