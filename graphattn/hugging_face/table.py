"""The heads of an attached model, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from torch import nn

from graphattn._checks import check_kind, check_size
from graphattn.hugging_face.modules import attention_modules, heads_of
from graphattn.hugging_face.state import check_unchanged
from graphattn.patterns import Causal, Full, Pattern
from graphattn.sources import ContentClusterSource, HeadClusters, PatternSource

__all__ = ['AttachedHeads', 'AttachmentTable', 'attachment']


@dataclass(frozen=True)
class AttachedHeads:
    """Heads of one layer that attend along the same edges: a row of an :class:`AttachmentTable`.

    Args:
        layer (str): Name of the module.
        heads (tuple of int, optional): Numbers of the heads; ``None`` if the module's config does
            not have the number of heads.
        along (str): The pattern of the heads, with long parts shortened, or their source. If they
            are not attached, how their full attention is computed.
        is_attached (bool): Whether the heads attend along a graph. If not, they keep full
            attention.
        hops (int or float): Number of hops that values travel.
        density (float, optional): Fraction of the (query, key) pairs that are edges, or of the
            causal pairs in a causal model; ``None`` if no length is given or the edges depend on
            the tokens.
    """

    layer: str
    heads: tuple[int, ...] | None
    along: str
    is_attached: bool = True
    hops: int | float = 1
    density: float | None = None


@dataclass(frozen=True)
class AttachmentTable:
    """The edges that each head of a model attends along, as rows of a table. The object prints as
    this table.

    Args:
        rows (tuple of AttachedHeads): The rows, in the order of ``model.modules()``.
        length (int, optional): Number of tokens at which densities were measured.
    """

    rows: tuple[AttachedHeads, ...]
    length: int | None = None

    def as_table(self) -> list[dict[str, object]]:
        """Return a list with a dict for each row of the table."""
        return list(map(asdict, self.rows))

    def __str__(self) -> str:
        titles = ['layer', 'heads', 'along', 'hops']
        titles += [] if self.length is None else [f'density at {self.length:,}']
        cells = [titles, *([row.layer, _shown(row.heads), row.along, f'{row.hops:g}',
                            '-' if row.density is None else f'{100 * row.density:.3g} %']
                           for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        return '\n'.join('  '.join(map(str.ljust, line, widths)).rstrip() for line in cells)

    __repr__ = __str__


def attachment(model: nn.Module, length: int | None = None) -> AttachmentTable:
    """Return a table of the edges that each head of a model attends along.

    Args:
        model (PreTrainedModel): A model, attached or not.
        length (int, optional): Number of tokens at which to measure the density of patterns.

    Returns:
        AttachmentTable.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``length`` is not positive, the model has no attention to attach, or it was
            changed after :func:`attach`, so that it would not attend along its graphs.

    Example:
        >>> from graphattn.hugging_face import attach, attachment
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> attachment(attach(bert, 'SlidingWindow(4)', layers=[0], heads=[1, 2]), length=100)
        layer                           heads  along                          hops  density at 100
        encoder.layer.0.attention.self  0, 3   not attached, Full() by edges  1     100 %
        encoder.layer.0.attention.self  1-2    SlidingWindow(radius=4)        1     8.8 %
        encoder.layer.1.attention.self  0-3    not attached, sdpa             1     -
    """
    check_kind('model', model, nn.Module)
    check_unchanged(model)
    if length is not None:
        check_size('length', length, 1)
    rows = [row for name, module in attention_modules(model).items()
            for row in _rows(name, module, length)]
    return AttachmentTable(tuple(rows), length)


def _rows(name: str, module: nn.Module, length: int | None) -> Iterator[AttachedHeads]:
    state, count = getattr(module, 'graph_attachment', None), heads_of(module)
    every = None if count is None else tuple(range(count))
    if state is None or not state.attends:
        own = module.config._attn_implementation if state is None else state.before['']
        yield AttachedHeads(name, every, f'not attached, {own}', is_attached=False)
        return
    source = getattr(module, 'graph_source', None)
    if not isinstance(source, PatternSource | ContentClusterSource):
        along = 'keys that the model chooses' if source is None else (
            f'{type(source).__name__}({source.extra_repr()})')
        yield AttachedHeads(name, every, along, hops=state.hops)
        return
    groups = {(source.patterns[0], True): every}
    if source.per_head:
        groups = _groups(source, state.heads)
    for (pattern, is_attached), heads in groups.items():
        density = None if length is None else _density(pattern, source.seed, length,
                                                       getattr(module, 'is_causal', False))
        along = str(pattern) if is_attached else 'not attached, Full() by edges'
        yield AttachedHeads(name, tuple(heads) if heads else None, along, is_attached, state.hops,
                            density)


def _groups(source: PatternSource | ContentClusterSource, attached: tuple[int, ...] | None,
            ) -> dict[tuple[Pattern | HeadClusters, bool], list[int]]:
    """Return the heads that share a pattern, as a dict from (pattern, whether it is attached) to a
    list of heads. ``attached`` are the attached heads, or ``None`` for all heads."""
    groups: dict[tuple[Pattern | HeadClusters, bool], list[int]] = {}
    for head, pattern in enumerate(source.patterns):
        groups.setdefault((pattern, attached is None or head in attached), []).append(head)
    return groups


def _density(pattern: Pattern | HeadClusters, seed: int | None, length: int,
             is_causal: bool) -> float | None:
    if isinstance(pattern, Full | HeadClusters):
        return 1. if isinstance(pattern, Full) else None
    pattern = pattern & Causal() if is_causal else pattern
    graph = pattern.build(length, seed=seed, crop=True, device='cpu')
    return graph.num_edges / (length * (length + 1) / 2 if is_causal else length * length)


def _shown(heads: tuple[int, ...] | None) -> str:
    """Return the numbers of heads as text with ranges, such as '0, 2-5', or 'all' for None."""
    if heads is None:
        return 'all'
    ranges: list[list[int]] = []
    for head in heads:
        if ranges and head == ranges[-1][1] + 1:
            ranges[-1][1] = head
        else:
            ranges.append([head, head])
    return ', '.join(str(first) if first == last else f'{first}-{last}' for first, last in ranges)
