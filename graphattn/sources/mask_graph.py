"""The graph of a hard mask in training, which passes gradients from edges to the values of the
mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphattn._checks import check_ptr
from graphattn._tensors import accumulated, host_copy, index_dtype, unwrap
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_layout import PairLayout
from graphattn.graphs.pair_mask import check_values
from graphattn.graphs.segments import Segments
from graphattn.sources.base import fold_ptr

__all__ = ['MaskGraph']


class MaskGraph(BipartiteGraph):
    """Graph in training whose edges are the pairs that a hard mask turns on, for each head."""

    # A value M, 0 or 1, enters as in SparseBERT's Eq. 5 and 6, softmax(score - c (1 - M)), but a
    # pair of value 0 is no edge and has weight 0 for every c. On edges the bias is 0, and c is the
    # factor of its gradient, dL / dM = c dL / dscore, summed over all edges that share a value.
    # Values that are off get no gradient: they turn on again by chance, or by a penalty on norm(),
    # whose weight relative to c decides how sparse a mask becomes, unless the optimiser normalises
    # gradients.
    def __init__(self, values: Tensor, layout: PairLayout, ptr: Tensor, *,
                 logit_drop: float = 10.):
        check_values(values, layout, logit_drop)
        check_ptr('ptr', ptr, None, values.device)
        is_on = unwrap(values)
        others = is_on[(is_on != 0) & (is_on != 1)]
        if others.numel():
            raise ValueError(f"'values' must contain only 0 and 1 (got {float(others[0])}); use "
                             f"PairMask for other weights of pairs")
        lengths = host_copy(ptr).diff().tolist()
        indptr, key, value = _edges(layout, is_on > 0, lengths)
        ptr = fold_ptr(ptr, len(values), sum(lengths))
        self._fill(indptr, key, indptr.numel() - 1, Segments(ptr, ptr), None)
        self.values, self.layout, self.edge_bias = values, layout, None
        if values.requires_grad and torch.is_grad_enabled():
            # Gradients are summed over the edges of a value in at least float32.
            bias = logit_drop * (accumulated(values) - 1)
            bias = F.pad(bias, (0, 1))  # last column: pairs that are always on
            self.edge_bias = bias.flatten().index_select(0, value)

    def norm(self) -> Tensor:
        return self.layout.norm(self.values)

    def __getstate__(self) -> dict[str, Any]:
        return {'graph': super().__getstate__(), 'values': self.values.detach(),
                'layout': self.layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state['graph'])
        self.values, self.layout, self.edge_bias = state['values'], state['layout'], None


def _edges(layout: PairLayout, is_on: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    # Values of head h have the indices h * (num_values + 1) and following; the last of them is for
    # pairs that are always on.
    heads, num_tokens, width = len(is_on), sum(lengths), layout.num_values + 1
    rows = {}
    for length in set(lengths):
        degree, key, value = layout.rows(is_on, length)
        num_pairs = degree.sum(dim=1).tolist()
        rows[length] = [*zip(degree, key.split(num_pairs), value.split(num_pairs))]
    segments = [(head, length, *rows[length][head]) for head in range(heads) for length in lengths]
    start = torch.zeros(1, dtype=torch.long, device='cpu')
    indptr = torch.cat([start, *(degree for _, _, degree, *_ in segments)]).cumsum(0)
    indptr = indptr.to(is_on.device, non_blocking=True)
    num_edges = sum(segment_key.numel() for *_, segment_key, _ in segments)
    key = is_on.new_empty(num_edges, dtype=index_dtype(heads * num_tokens))
    value = is_on.new_empty(num_edges, dtype=torch.int32 if heads * width < 2**31 else torch.int64)
    first_key = end = 0
    for head, length, _, segment_key, segment_value in segments:
        edges = slice(end, end := end + segment_key.numel())
        torch.add(segment_key, first_key, out=key[edges])
        torch.add(segment_value, head * width, out=value[edges])
        first_key += length
    return indptr, key, value
