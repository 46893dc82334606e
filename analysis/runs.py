"""Graphs and attention matrices of trained models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import scipy.sparse as sp
import torch
from torch import Tensor, nn

from experiments.runs.load_run import read_config, tested_checkpoint
from experiments.runs.pretrained import rebuilt
from graphattn import BipartiteGraph, GraphAttention
from graphattn.graphs import PairMask
from graphattn.models import GraphTransformer
from graphattn.patterns import Full
from graphattn.utils.building import check_finite
from graphattn.utils.reading import load_tensors

if TYPE_CHECKING:
    from lightning import LightningDataModule


def sampled_graphs(
    checkpoint: str | Path, example: int = 0, samples: int = 8, seed: int = 0,
    trust: Iterable[str] = (),
) -> dict[str, list[BipartiteGraph]]:
    """Return the graphs along which a trained model attends, for one example of its test set."""
    model, data = _load_run(Path(checkpoint), trust)
    tokens, = _examples(data, example, 1)
    sequences = torch.arange(samples + 1) * tokens.numel()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        _, layers = model(tokens.repeat(samples), sequences, generator=generator,
                          return_graphs=True)
    if not layers or any(isinstance(graph, PairMask) for graph in layers):
        raise ValueError(f"'checkpoint' must contain a model that attends along edges, from a "
                         f"'source' without soft masks (got {checkpoint}); for soft masks, pass "
                         f"--weights")
    graphs = {}
    for layer, graph in enumerate(layers):
        segments = graph.unbatch()
        heads = range(len(segments) // samples)
        for head in heads:
            drawn = segments[head * samples:(head + 1) * samples]
            label = f'layer {layer}, head {head}' if len(heads) > 1 else f'layer {layer}'
            graphs[label] = drawn[:1] if all(one == drawn[0] for one in drawn) else drawn
    return graphs


def attention_matrices(
    checkpoint: str | Path, example: int = 0, samples: int = 8, seed: int = 0,
    trust: Iterable[str] = (),
) -> dict[str, list[sp.csr_array]]:
    """Return the attention weights of each head of a trained model, in evaluation mode."""
    model, data = _load_run(Path(checkpoint), trust)
    examples = _examples(data, example, samples)
    ptr = torch.tensor([0, *map(len, examples)]).cumsum(0)
    found = attention_of(model, torch.cat(examples), ptr, torch.Generator().manual_seed(seed))
    if not found:
        raise ValueError("'checkpoint' must contain a model with graph attention (got "
                         f"{checkpoint}); train a model whose encoder has a 'source'")
    return found


@torch.no_grad()
def attention_of(model: nn.Module, tokens: Tensor, ptr: Tensor,
                 generator: torch.Generator | None = None) -> dict[str, list[sp.csr_array]]:
    """Return the attention weights of each head of a model on each sequence of a batch."""
    found: list[list[list[sp.csr_array]]] = []
    hooks = [layer.register_forward_hook(
        lambda layer, given, options, out: found.append(_weights(layer, given, options, out[1])),
        with_kwargs=True) for layer in model.modules() if isinstance(layer, GraphAttention)]
    try:
        model(tokens, ptr, generator=generator)
    finally:
        for hook in hooks:
            hook.remove()
    return {f'layer {layer}, head {head}': matrices for layer, heads in enumerate(found)
            for head, matrices in enumerate(heads)}


def _weights(layer: GraphAttention, given: tuple[Tensor, Tensor], options: dict[str, object],
             graph: BipartiteGraph | PairMask) -> list[list[sp.csr_array]]:
    """Compute the attention weights of each head on each sequence, along a graph that the layer
    returned."""
    x, ptr = given
    bias = None
    if isinstance(graph, PairMask):
        graph, bias = _all_pairs(graph, ptr)
    _, (edge_index, alpha) = layer.forward(
        x, ptr, **options | {'graph': graph, 'edge_bias': bias, 'return_graph': False,
                             'return_attention_weights': True})
    check_finite({'attention': alpha}, 'in the model of this checkpoint')
    key, query = edge_index.numpy()
    matrices = [sp.csr_array((weight, (query, key)), shape=(graph.num_queries, graph.num_keys))
                for weight in alpha.double().T.numpy()]
    ends = zip(graph.segments.query_ptr.unfold(0, 2, 1), graph.segments.key_ptr.unfold(0, 2, 1))
    places = [(slice(*queries.tolist()), slice(*keys.tolist())) for queries, keys in ends]
    segments = [matrix[place] for matrix in matrices for place in places]
    count = len(ptr) - 1
    return [segments[first:first + count] for first in range(0, len(segments), count)]


def _all_pairs(mask: PairMask, ptr: Tensor) -> tuple[BipartiteGraph, Tensor]:
    """Return the graph of all pairs of tokens of each sequence, and the bias of a soft mask for
    each edge and head, ``[num_edges, heads]``."""
    lengths = ptr.diff().tolist()
    graph = BipartiteGraph.batch([Full().build(length) for length in lengths])
    return graph, torch.cat([mask.bias(length).flatten(1) for length in lengths], dim=1).T


def _load_run(checkpoint: Path, trust: Iterable[str]) -> tuple[nn.Module, LightningDataModule]:
    from lightning import LightningDataModule

    if checkpoint.is_dir():
        checkpoint = tested_checkpoint(checkpoint, read_config(checkpoint))
    run = rebuilt(checkpoint, load_tensors, 'checkpoint', trust, data=LightningDataModule)
    if isinstance(run.model, GraphTransformer):
        raise ValueError(f"'checkpoint' must contain a model of sequences (got a GraphTransformer "
                         f"in {checkpoint}); measure the graphs that it attends along by --graph "
                         f"or --pattern")
    return run.model.eval(), run.data


def _examples(data: LightningDataModule, example: int, count: int) -> list[Tensor]:
    """Return the tokens of ``count`` sequences of the test set from index ``example`` on, or fewer
    at the end of the set."""
    data.prepare_data()
    data.setup('test')
    found, first = [], 0
    for tokens, ptr, *_ in data.test_dataloader():
        sequences = tokens.split(ptr.diff().tolist())
        found += sequences[max(example - first, 0):max(example + count - first, 0)]
        first += len(sequences)
        if len(found) == count:
            return found
    if not 0 <= example < first:
        raise ValueError(f"'example' must be from 0 to {first - 1}, the examples of the test set "
                         f"(got {example})")
    return found
