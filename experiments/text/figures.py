"""Pictures of learned masks."""

from __future__ import annotations

from matplotlib.figure import Figure
from torch import Tensor

PER_ROW = 4


def mask_probabilities(probability: Tensor) -> Figure:
    """How probable it is, in each head, that a query attends to a key (SparseBERT, Fig. 2, 5, 6).

    Args:
        probability (Tensor): P, ``[heads, n, n]``, query over key.
    """
    heads = probability.detach().float().cpu().numpy()
    num_rows = -(-len(heads) // PER_ROW)
    figure = Figure(figsize=(2.6 * PER_ROW, 2.8 * num_rows + 0.4), layout='constrained')
    panels = figure.subplots(num_rows, PER_ROW, squeeze=False).flatten()
    for head, (axes, values) in enumerate(zip(panels, heads)):
        picture = axes.imshow(values, cmap='viridis', vmin=0, vmax=1)
        axes.set_title(f'head {head}\n{values.mean():.1%}', fontsize=9)
        axes.set(xticks=[], yticks=[])
    for axes in panels[len(heads):]:
        axes.remove()
    figure.supxlabel('key', fontsize=9)
    figure.supylabel('query', fontsize=9)
    figure.colorbar(picture, ax=panels[:len(heads)].tolist(), shrink=0.7, label='P')
    return figure
