"""Pictures of scores with their spread over seeds."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.studies.document_runs import METRICS


def bars(rows: list[dict], label: str, title: str) -> Figure:
    """Draw a bar for each row and metric, and the standard deviation.

    Args:
        rows (list): With ``METRIC, %`` and ``METRIC, spread`` of :data:`METRICS`.
        label (str): The column that says what a row is.
        title (str): What to look for, and what the numbers are of.
    """
    figure = Figure(figsize=(11, 0.45 * len(rows) + 1.7), layout='constrained')
    panels = figure.subplots(1, len(METRICS), sharey=True)
    for axes, metric in zip(panels, METRICS):
        scores = [row[f'{metric}, %'] for row in rows]
        spreads = [row[f'{metric}, spread'] for row in rows]
        axes.barh(range(len(rows)), scores, color='C0', alpha=0.5, capsize=3,
                  xerr=None if None in spreads else spreads)
        for y, score in enumerate(scores):
            axes.text(1, y, f' {score:.1f}', va='center', fontsize='small')
        axes.set(xlabel=f'{metric}, %', xlim=(0, 100), yticks=range(len(rows)),
                 yticklabels=[row[label] for row in rows])
        axes.grid(axis='x')
    panels[0].invert_yaxis()
    figure.suptitle(title)
    return figure


def curves(rows: list[dict], title: str, level: tuple[str, dict] | None = None) -> Figure:
    """Draw a panel for each thing that is varied.

    Args:
        rows (list): With ``varied``, ``value`` and the scores as for :func:`bars`.
        title (str): What to look for, and what the numbers are of.
        level (tuple, optional): A name and a row of scores, drawn as a line across.
    """
    varied = list(dict.fromkeys(row['varied'] for row in rows))
    figure = Figure(figsize=(4 * len(varied) + 2, 4), layout='constrained')
    panels = figure.subplots(1, len(varied), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, varied):
        chosen = [row for row in rows if row['varied'] == name]
        for number, metric in enumerate(METRICS):
            axes.errorbar([row['value'] for row in chosen],
                          [row[f'{metric}, %'] for row in chosen],
                          [row[f'{metric}, spread'] or 0. for row in chosen], label=metric,
                          color=f'C{number}', marker='o', capsize=3)
            if level is not None:
                axes.axhline(level[1][f'{metric}, %'], color=f'C{number}', ls=':',
                             label=f'{metric}, {level[0]}')
        axes.set(xlabel=name)
        axes.grid()
    panels[0].set(ylabel='score, %')
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside right center')
    figure.suptitle(title)
    return figure
