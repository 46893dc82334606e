"""Densities of the graphs of attention heads."""

from torch import Tensor

from graphattn import BipartiteGraph
from graphattn.graphs import PairMask

Graphs = list[BipartiteGraph | PairMask]  # of the layers of a model


def densities(graphs: Graphs, num_sequences: int) -> dict[str, Tensor]:
    """Return the mean density of each head of each layer by names such as ``layer0/head1``; graphs
    that layers or heads share are named once."""
    is_shared = len(graphs) > 1 and all(graph is graphs[0] for graph in graphs)
    layers = {'all_layers': graphs[0]} if is_shared else {
        f'layer{layer}': graph for layer, graph in enumerate(graphs)}
    return {f'{layer}/{head}': value for layer, graph in layers.items()
            for head, value in _density_of_heads(graph, num_sequences).items()}


def _density_of_heads(graph: BipartiteGraph | PairMask, num_sequences: int) -> dict[str, Tensor]:
    if isinstance(graph, PairMask):
        per_head = graph.dense(graph.layout.size).detach().mean(dim=(1, 2))
    else:
        per_head = graph.density(per_segment=True).view(-1, num_sequences).mean(dim=1).float()
    names = ['all_heads'] if len(per_head) == 1 else [f'head{h}' for h in range(len(per_head))]
    return dict(zip(names, per_head))
