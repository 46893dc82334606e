"""Draw the path of a forward pass through the folders of the library: ``python -m docs.walk``.

It writes ``walk.png`` and the table of the page on the architecture.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import graphattn
from graphattn.layers import GraphAttention
from graphattn.sources import BlockModelSource, LearnedMaskSource, PatternSource
from graphattn.style import COLOURS, in_style

HERE, LIBRARY = Path(__file__).parent, Path(graphattn.__file__).parent
FLOORS = ('layers', 'sources', 'placement', 'functional', 'samplers', 'patterns', 'ops', 'graphs',
          'other files')  # from the top of the house
TOKENS, CHANNELS, HEADS = 60, 32, 4
WINDOW = 'SlidingWindow(3) | GlobalTokens(1)'
LANDMARKS = re.compile(r'\w+(Attention|Source)\.forward|drive|sample_bernoulli|\w+attention_cpu')
WALKS = {
    'a pattern': lambda: GraphAttention(CHANNELS, HEADS, PatternSource(WINDOW)),
    'a block model, in training': lambda: GraphAttention(
        CHANNELS, HEADS, BlockModelSource(HEADS, CHANNELS // HEADS)),
    'a learned mask, in training': lambda: GraphAttention(
        CHANNELS, HEADS, LearnedMaskSource(HEADS, TOKENS)),
    'a pattern, five hops': lambda: GraphAttention(
        CHANNELS, HEADS, PatternSource(WINDOW), hops=5, teleport=.1),
}


class Call(NamedTuple):
    """A call of a function of the library."""

    file: str  # in the library
    name: str  # with its class
    is_check: bool  # or made by one

    @property
    def floor(self) -> str:
        folder = self.file.split('/')[0]
        return folder if folder in FLOORS else FLOORS[-1]


def walk(run: Callable[[], Any]) -> list[Call]:
    """Return the calls that ``run`` makes in this thread, in order.

    Comprehensions and generators are part of the function that contains them.
    """
    calls, stack = [], []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ('call', 'return') or not code.co_filename.startswith(f'{LIBRARY}/'):
            return
        if code.co_name.startswith('<'):
            return
        if event == 'return':
            stack.pop()
            return
        is_check = code.co_name.lstrip('_').startswith('check') or bool(stack and stack[-1])
        file = Path(code.co_filename).relative_to(LIBRARY).as_posix()
        calls.append(Call(file, code.co_qualname, is_check))
        stack.append(is_check)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def counts(calls: Sequence[Call]) -> dict[str, int]:
    """Return the columns of the table for a walk."""
    return {'calls': len(calls), 'files': len({call.file for call in calls}),
            'moves between files': sum(a.file != b.file for a, b in pairwise(calls)),
            'calls that check': sum(call.is_check for call in calls)}


def walks() -> dict[str, list[Call]]:
    """Return the calls of every forward pass, with filled caches."""
    torch.manual_seed(0)
    x, ptr, found = torch.randn(TOKENS, CHANNELS), torch.tensor([0, TOKENS]), {}
    for name, new_layer in WALKS.items():
        layer = new_layer()
        for _ in range(2):
            layer(x, ptr)
        found[name] = walk(partial(layer, x, ptr))
    return found


def table(found: dict[str, list[Call]]) -> str:
    """Return the rows in Markdown."""
    rows = {name: counts(calls) for name, calls in found.items()}
    head = ['edges from', *next(iter(rows.values()))]
    lines = [head, ['---'] * len(head), *([name, *map(str, row.values())]
                                          for name, row in rows.items())]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


@in_style()
def draw(found: dict[str, list[Call]]) -> Figure:
    """Return a panel for each walk: folders from top to bottom, calls from left to right."""
    floors = [floor for floor in FLOORS
              if any(call.floor == floor for calls in found.values() for call in calls)]
    figure = Figure(figsize=(9, 2.5 * len(found)), layout='constrained')
    for axes, (name, calls) in zip(figure.subplots(len(found)), found.items()):
        _draw_walk(axes, calls, floors)
        of_walk = counts(calls)
        axes.set_title(f'{name}: {of_walk["calls"]} calls in {of_walk["files"]} files, '
                       f'{of_walk["calls that check"]} of them checks', loc='left')
    axes.set_xlabel('calls, in their order')
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower right', ncols=2)
    return figure


def _draw_walk(axes: Axes, calls: Sequence[Call], floors: Sequence[str]) -> None:
    place = [floors.index(call.floor) for call in calls]
    axes.step(range(len(calls)), place, where='post', color='0.8', linewidth=.6, zorder=0)
    for is_check, colour, label in ((False, COLOURS[0], 'a call'), (True, COLOURS[1], 'a check')):
        own = [i for i, call in enumerate(calls) if call.is_check == is_check]
        axes.vlines(own, [place[i] - .3 for i in own], [place[i] + .3 for i in own], color=colour,
                    linewidth=380 / len(calls), label=label)
    for i, call in enumerate(calls):
        if LANDMARKS.fullmatch(call.name):
            axes.annotate(call.name, (i, place[i] - .32), fontsize='x-small', va='bottom',
                          ha='left' if i < .7 * len(calls) else 'right')
    axes.set_yticks(range(len(floors)), floors)
    axes.set_ylim(len(floors) - .5, -.9)
    axes.set_xlim(-1, len(calls))
    axes.spines[['top', 'right']].set_visible(False)


def main() -> None:
    found = walks()
    draw(found).savefig(HERE / 'walk.png')
    page = HERE / 'architecture.md'
    page.write_text(re.sub(r'(^\| edges from \| calls .*\n)(\|.*\n)+', lambda _: table(found),
                           page.read_text(), flags=re.M))
    print(table(found))


if __name__ == '__main__':
    main()
