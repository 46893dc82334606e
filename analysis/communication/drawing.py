"""The figure of ``python -m analysis.communication``."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.communication.question import Communication
from analysis.labels import labels_as_text

TIMES = {'halo_ms': 'halo', 'all_keys_ms': 'all keys', 'ring_ms': 'ring, all pairs',
         'ulysses_ms': 'Ulysses, all pairs'}
STYLES = '-', '--', ':', '-.'


@labels_as_text
def draw(results: dict[str, list[Communication]]) -> Figure:
    """Draw the bytes that processes exchange in a training step, and the computed time of the step,
    against the number of processes. Solid lines show the exchange of halos."""
    figure = Figure(figsize=(10, 4.8), layout='constrained')
    left, right = figure.subplots(1, 2)
    for number, (label, samples) in enumerate(results.items()):
        for position, sample in enumerate(samples):
            colour, label = f'C{number % 10}', None if position else label
            left.plot(sample.processes, sample.halo_mib, color=colour, marker='.', label=label)
            for (name, _), style in zip(TIMES.items(), STYLES):
                right.plot(sample.processes, getattr(sample, name), style, color=colour, marker='.')
    left.plot(sample.processes, sample.all_keys_mib, '--', color='0.4', label='all keys')
    for name, style in zip(TIMES.values(), STYLES):
        right.plot([], [], style, color='0.4', label=name)
    left.set(title='Sent by a process', ylabel='MiB in a training step of one layer')
    right.set(title='Time, computed from the given rates', ylabel='ms')
    for axes in (left, right):
        axes.set(xscale='log', yscale='log', xlabel='processes')
        axes.set_xticks(sample.processes, [f'{count:,}' for count in sample.processes])
        axes.minorticks_off()
        axes.grid()
        axes.legend()
    return figure
