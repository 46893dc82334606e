"""Measure how each head of a model attends, row by row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphattn._checks import check_kind, check_seed, check_size
from graphattn.hugging_face.attaching import attach, forget, kept
from graphattn.hugging_face.attending import Attending, OneSequence, as_batches, run_all
from graphattn.hugging_face.clusters import (
    InputClusters,
    LayerClusters,
    find,
    head_clusters,
    join_clusters,
)
from graphattn.hugging_face.modules import attention_modules, choose, heads_of
from graphattn.patterns import Pattern, parse
from graphattn.sources import ClusterKeys, HeadClusters
from graphattn.sources.content_clusters import read_clusters
from graphattn.utils.building import check_finite
from graphattn.utils.files import as_path, write_whole
from graphattn.utils.reading import check_arrays, json_value
from graphattn.utils.schema import Array, check_schema

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ['CANDIDATES', 'CLUSTERS', 'RANDOM', 'STRIDED', 'WINDOWS', 'Profile', 'profile']

FORMAT = 4
SHARES = .9, .95, .99  # of a row's weight
KINDS = 'first', 'special', 'other'  # of tokens
BOUNDS = [0, *(2**power for power in range(40))]  # of bins of distances on either side
TEXTS = {'layers': list, 'patterns': list, 'fingerprint': dict}  # fields that are saved as JSON
OF_PATTERNS = 'pattern_share', 'pattern_error', 'pattern_edges'  # fields
WINDOWS = tuple(f'SlidingWindow({2**power - 1}){sink}' for sink in ('', ' | GlobalTokens(1)')
                for power in range(11))
RANDOM = (*(f'SlidingWindow({2**power - 1}) | GlobalTokens(1) | RandomKeys({2**power})'
            for power in range(8)),
          *(f'SlidingWindow(0) | RandomKeys({2**power})' for power in range(9)))
STRIDED = tuple(f'{pattern}{sink}' for sink in ('', ' | GlobalTokens(1)') for pattern in (
    *(f'SlidingWindow({radius}, dilation={step})' for step in (2, 4, 8) for radius in (1, 4, 16)),
    *(f'Strided({2**power})' for power in range(2, 7)),
    *(f'Fixed({2**power})' for power in range(2, 7)), 'LogSparse()'))
CLUSTERS = tuple(f'{2**power} keys of 32 clusters{beside}'
                 for beside in ('', ' | SlidingWindow(3) | GlobalTokens(1)')
                 for power in range(1, 8))
CANDIDATES = {'windows': WINDOWS, 'strided': STRIDED, 'clusters': CLUSTERS, 'random': RANDOM}
Candidate = Pattern | ClusterKeys
_TO_2_31, _SHARE, _COUNT = (0, 2**31 - 1), (-1e-3, 1.001), (-1e-3, 2.**31)  # sums are rounded
OF_CLUSTERS = {'cluster_query': Array('f', ('heads', 'centroids', 'channels')),
               'cluster_key': Array('f', ('heads', 'centroids', 'channels')),
               'cluster_edges': Array('f', ('heads', 'pairs'), 0)}
SCHEMA = {
    'layers': [str], 'patterns': [str], 'fingerprint': {
        'config': str, 'layers': range(2**31), 'heads': (None, range(2**31)), 'hash': str},
    **dict.fromkeys(('head', 'channels'), Array('i', ('heads',), *_TO_2_31)),
    'bounds': Array('i', ('bins',), 0, 2**40),
    **dict.fromkeys(('before', 'after'), Array('f', ('heads', 'bins'), *_SHARE)),
    'kinds': Array('f', ('heads', len(KINDS)), *_SHARE),
    'edges': Array('f', ('heads', len(SHARES)), *_COUNT),
    **dict.fromkeys(('keys', 'entropy', 'rank'), Array('f', ('heads',), *_COUNT)),
    **dict.fromkeys(('same_edges', 'same_distances'), Array('f', ('heads',), *_SHARE, True)),
    'pattern_share': Array('f', ('heads', 'patterns'), *_SHARE),
    'pattern_error': Array('f', ('heads', 'patterns'), 0),
    'pattern_edges': Array('f', ('heads', 'patterns'), *_COUNT),
    'clusters': Array('i', ('counts',), 1, 2**15),
    'lengths': Array('i', ('inputs',), *_TO_2_31), **dict.fromkeys(OF_CLUSTERS, object)}
MAX_LENGTHS = 8  # whose edges are kept, to compare those of the next input with


@dataclass(frozen=True, eq=False)
class Profile:
    """Measurements of how each head of a model attends. Arrays have an entry for each head, layer
    by layer; the index of a head in them is its ``row``.

    Measurements are means over all queries of all inputs. Only ``edges``, ``rank`` and
    ``same_edges``, which take more time, use a random sample of the queries of each input (argument
    ``sample`` of :func:`profile`). In models with sinks, the weights of a query sum to less than 1,
    because the sink has the rest.

    Args:
        layers (tuple of str): Names of the attention modules.
        layer (ndarray): Index in ``layers`` of each head's module, int64 ``[heads]``.
        head (ndarray): Number of each head in its module, int64 ``[heads]``.
        bounds (ndarray): Smallest distance of each bin of distances, int64 ``[bins]``: 0, 1, 2, 4,
            8, ...
        before (ndarray): Attention weight on the query itself and on keys before it, by distance,
            ``[heads, bins]``.
        after (ndarray): Attention weight on keys after the query, by distance, ``[heads, bins]``; 0
            in the first bin.
        kinds (ndarray): Attention weight on the first token of a sequence, on other special tokens,
            and on all other tokens, ``[heads, 3]``.
        edges (ndarray): Number of keys that hold 90, 95 and 99 % of a query's weight,
            ``[heads, 3]``.
        keys (ndarray): Number of keys that the model's masks allow for a query, ``[heads]``.
        entropy (ndarray): Entropy of a query's weights in nats, ``[heads]``.
        rank (ndarray): Effective rank of the matrix of weights of an input, which is the
            exponential of the entropy of its normalised singular values, ``[heads]``.
        same_edges (ndarray): Similarity of the edges of successive inputs of equal length,
            ``[heads]``: intersection over union of the keys that hold 95 % of a query's weight. NaN
            if no two inputs have equal length.
        same_distances (ndarray): Overlap of the distances (``before`` and ``after``) of successive
            inputs, ``[heads]``; 1 if they are equal. NaN if there is only one input.
        patterns (tuple of str): Expressions of the patterns that a fit chooses from, and texts such
            as ``'8 keys of 32 clusters'`` for clusters by content (:meth:`pattern`).
        pattern_share (ndarray): Attention weight on the edges of each pattern,
            ``[heads, patterns]``.
        pattern_error (ndarray): Squared difference between the head's outputs along the pattern and
            its dense outputs, relative to the squared norm of the dense outputs,
            ``[heads, patterns]``. Weights along the pattern, with that of a sink, are normalised to
            sum to 1.
        pattern_edges (ndarray): Number of edges of a query in each pattern that the model's masks
            allow, ``[heads, patterns]``.
        clusters (ndarray): Numbers of clusters, int64, ascending. For the numbers 16 and 32,
            k-means grouped the tokens once into 16 and once into 32 clusters. ``cluster_query``,
            ``cluster_key`` and ``cluster_edges`` contain first the 16 clusters, then the 32.
        channels (ndarray): Number of channels of each head's queries, int64 ``[heads]``.
        cluster_query (ndarray): Centroids of queries before scaling, float32
            ``[heads, clusters, channels]``; 0 after the head's own channels.
        cluster_key (ndarray): Centroids of keys, shaped like ``cluster_query``.
        cluster_edges (ndarray): For each pair of a cluster of queries and a cluster of keys, the
            mean number of keys of a query if this pair and all pairs with larger mean weight are
            joined by edges, float32 ``[heads, pairs]``.
        lengths (ndarray): Number of tokens of each input, int64 ``[inputs]``, as the first module
            sees them. If a model calls a module several times, as ALBERT does, each call counts as
            an input of the module.
        fingerprint (dict): Class, size and hash of the model's config (:meth:`check`).

    Source: Roy and Vetterli, "The effective rank" (2007).
    """

    layers: tuple[str, ...]
    layer: np.ndarray
    head: np.ndarray
    bounds: np.ndarray
    before: np.ndarray
    after: np.ndarray
    kinds: np.ndarray
    edges: np.ndarray
    keys: np.ndarray
    entropy: np.ndarray
    rank: np.ndarray
    same_edges: np.ndarray
    same_distances: np.ndarray
    patterns: tuple[str, ...]
    pattern_share: np.ndarray
    pattern_error: np.ndarray
    pattern_edges: np.ndarray
    clusters: np.ndarray
    channels: np.ndarray
    cluster_query: np.ndarray
    cluster_key: np.ndarray
    cluster_edges: np.ndarray
    lengths: np.ndarray
    fingerprint: dict[str, Any]

    def as_table(self) -> list[dict[str, object]]:
        """Return a list with one dict of measurements for each head. ``near`` is the share of the
        head's weight on keys at distances below 8."""
        near = (self.before + self.after)[:, self.bounds < 8].sum(axis=1)
        columns = {'head': self.head, 'keys': self.keys,
                   **{f'edges_{100 * share:g}': self.edges[:, number]
                      for number, share in enumerate(SHARES)},
                   **{kind: self.kinds[:, number] for number, kind in enumerate(KINDS)},
                   'near': near, 'entropy': self.entropy, 'rank': self.rank,
                   'same_edges': self.same_edges, 'same_distances': self.same_distances}
        return [{'layer': self.layers[layer], **{name: column[row].item()
                                                 for name, column in columns.items()}}
                for row, layer in enumerate(self.layer)]

    def pattern(self, row: int, number: int) -> Pattern | HeadClusters:
        """Return the pattern, or the clusters, that ``patterns[number]`` stands for in the head
        with index ``row``. Each head has clusters of its own."""
        given = _candidate(self.patterns[number])
        return given if isinstance(given, Pattern) else head_clusters(given, vars(self), row)

    def among(self, patterns: Sequence[str]) -> Profile:
        """Return this profile with only some of its patterns, for a fit that chooses among them.

        Args:
            patterns (sequence of str): Some of :attr:`patterns`.

        Raises:
            ValueError: The profile lacks a pattern.
        """
        if missing := [each for each in patterns if each not in self.patterns]:
            raise ValueError(f"'patterns' must contain patterns of this profile (got "
                             f"{missing[0]!r}); see its attribute 'patterns'")
        at = list(map(self.patterns.index, patterns))
        measures = {name: getattr(self, name)[:, at] for name in OF_PATTERNS}
        return replace(self, patterns=tuple(patterns), **measures)

    @property
    def is_causal(self) -> bool:
        """Return whether no query attends to a later key."""
        return bool(self.after[:, 1:].sum() == 0)

    def __repr__(self) -> str:
        return (f'Profile({len(self.layers)} layers, {len(self.layer)} heads, '
                f'{len(self.lengths)} inputs of {self.lengths.min()} to {self.lengths.max()} '
                f'tokens)')

    def check(self, model: PreTrainedModel) -> None:
        """Raise an error unless ``model`` has the config of the profiled model. Weights may differ.

        Raises:
            ValueError: The model has another class, other heads, or another config.
        """
        found = _fingerprint(model)
        for name, value in self.fingerprint.items():
            if found[name] != value:
                raise ValueError(f"'profile' must be a profile of this model (got a profile with "
                                 f"{name} {value!r} instead of {found[name]!r}); call "
                                 f"profile(model, batches) again")

    def save(self, path: str | PathLike) -> None:
        """Write the profile to a file that ends in ``.npz``.

        Raises:
            TypeError, ValueError: ``path`` is no path, or has another suffix.
        """
        path = _path(path)
        texts = {name: json.dumps(getattr(self, name)) for name in TEXTS}
        arrays = {each.name: getattr(self, each.name) for each in fields(self)
                  if each.name not in texts}
        write_whole(path, lambda file: np.savez_compressed(file, format=FORMAT, **texts, **arrays))

    @staticmethod
    def load(path: str | PathLike) -> Profile:
        """Read a profile that :meth:`save` wrote. Nothing in the file is executed.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged or of another version.
        """
        path = _path(path)
        if not path.is_file():
            raise FileNotFoundError(f"'path' must be an existing profile (got {str(path)!r}, which "
                                    f"does not exist)")
        try:
            check_arrays(path)
            with np.load(path, allow_pickle=False) as file:
                if (version := file['format'].item()) != FORMAT:
                    raise ValueError(f'format {version}, not {FORMAT}; profile the model again')
                values = {name: file[name] for name in file.files if name != 'format'}
            for name, kind in TEXTS.items():
                check_schema(values, {name: Array('U', ()), str: object}, 'its fields')
                values[name] = kind(json_value(values[name].item(), name, kind))
            _check_fields(values)
            texts = {name: tuple(values[name]) for name in ('layers', 'patterns')}
            return Profile(**values | texts)
        except Exception as error:  # damaged files raise anything
            raise ValueError(f"'path' must be a file that Profile.save wrote (got {str(path)!r}: "
                             f"{error})") from error


def profile(
    model: PreTrainedModel, batches: Iterable[Any] | Mapping[str, Any] | Tensor, *,
    special: PreTrainedTokenizerBase | Sequence[int] = (),
    patterns: Sequence[Pattern | str] = WINDOWS, sample: int = 256, seed: int = 0,
) -> Profile:
    """Measure how each head of the self-attention of a model attends, over several inputs.

    The model runs in evaluation mode with full attention; the head that computes its logits is left
    out. Its masks apply, and padding does not count. The weights of a few queries are in memory at
    a time, so memory is linear in the length.

    ``patterns`` are what :func:`graphattn.hugging_face.fit` chooses from. Apart from patterns,
    ``'8 keys of 32 clusters'`` names edges that are found for each head in the inputs: the query
    itself, and about 7 other keys whose cluster is joined with that of the query. The mean number
    of keys depends on the length of these inputs.

    Clusters are found on one half of the inputs and measured on the other half, because edges
    always fit best the inputs that they were found on. The profile contains the clusters found on
    all inputs. ``batches`` are read two more times for them.

    Args:
        model (PreTrainedModel): A model that :func:`graphattn.hugging_face.attach` can attach. If
            it is attached, its full attention is measured.
        batches (iterable): Inputs of the model, such as a DataLoader: dicts of its arguments, or
            ``input_ids``. One input may stand alone: a dict, or ids ``[batch, length]``.
        special (tokenizer or sequence of int): Ids of special tokens, such as separators.
        patterns (sequence of Pattern or str): Patterns, their expressions, or texts as above; by
            default windows of many sizes, with and without the first token.
            ``profiling.CANDIDATES`` has these and others by name.
        sample (int): Number of queries of each sequence, drawn at random, for the measurements that
            take more time; all queries of shorter sequences.
        seed (int): Seed of this sample, and of clusters.

    Returns:
        Profile.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The model's attention cannot be replaced, or there are no batches.

    Example:
        >>> import torch
        >>> from graphattn.hugging_face import profile
        >>> from transformers import BertConfig, BertModel
        >>> bert = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
        ...                             num_attention_heads=4, intermediate_size=64))
        >>> measured = profile(bert, torch.randint(100, (3, 2, 40)), special=[0, 1])
        >>> measured
        Profile(2 layers, 8 heads, 6 inputs of 40 to 40 tokens)
        >>> list(measured.as_table()[0])[:5]
        ['layer', 'head', 'keys', 'edges_90', 'edges_95']
    """
    check_size('sample', sample, 2)
    check_seed(seed)
    modules = attention_modules(model)
    names = choose(modules, None)
    ids = _special_ids(special)
    parsed = [_candidate(each) for each in patterns]
    watching = _Watching(sample, seed, {name: _Sums() for name in names}, parsed)
    counts = sorted({each.clusters for each in parsed if isinstance(each, ClusterKeys)})
    batches = as_batches(batches)
    batches = list(batches) if counts else batches
    was_training = model.training
    with kept(model):
        forget(model)
        attach(model, 'Full()', layers=names)  # the source is not used
        try:
            model.eval()
            if counts:
                run = partial(run_all, model, modules, batches, ids=ids)
                watching.clusters = find(names, counts, run, seed)
            run_all(model, modules, batches, watching, ids)
        finally:
            model.train(was_training)
    if not watching.lengths:
        raise ValueError("'batches' must contain at least one input (got none)")
    return watching.profile(model)


def _candidate(given: Pattern | str) -> Candidate:
    if isinstance(given, str):
        return read_clusters(given) or parse(given)
    check_kind('patterns', given, Pattern)
    return given


def _special_ids(special: Any) -> Tensor:
    ids = getattr(special, 'all_special_ids', special)
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise TypeError(f"'special' must be a tokenizer or ids (got {type(special).__name__})")
    for number in ids:
        check_size('special', number)
    return torch.tensor([*map(int, ids)], dtype=torch.long)


# Sums over rows ######################################################################


@dataclass
class _Sums:
    """Running sums of the measurements of one layer, over inputs and queries."""

    num_inputs: int = 0
    num_sampled: int = 0
    rows: dict[str, Tensor] = field(default_factory=dict)  # each over all rows
    num_rows: int = 0
    longest: int = 0
    num_same: int = 0
    before: Tensor | None = None  # distances of the last input
    edges: dict[int, np.ndarray] = field(default_factory=dict)  # packed, by length

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            value = value.cpu().double()
            self.rows[name] = self.rows[name] + value if name in self.rows else value


@dataclass
class _Watching(Attending):
    """Attention that measures its weights for a :class:`Profile`."""

    sample: int  # queries of a sequence for edges, rank and same_edges, which take more time
    seed: int
    sums: dict[str, _Sums]  # by layer
    patterns: list[Candidate]
    # By layer: to measure on inputs of even index, of odd index, and found on all inputs.
    clusters: dict[str, tuple[dict[int, LayerClusters], ...]] = field(default_factory=dict)

    def _see(self, name: str, one: OneSequence, value: Tensor, is_special: Tensor | None) -> Tensor:
        sums, out, total = self.sums[name], torch.empty_like(value), _Sums()
        found = self.clusters[name][sums.num_inputs % 2] if self.clusters else {}
        clusters = {count: each.on(one.query, one.key) for count, each in found.items()}
        for rows in one.blocks():
            weight = one.weights(rows)
            out[:, rows] = weight @ value
            of_sink = 0. if one.sink is None else (1 - weight.sum(2, keepdim=True)).clamp(min=0)
            total.add(**_sums_of(weight.double(), rows, is_special),
                      **_sums_along(self.patterns, clusters, weight, of_sink, rows, value,
                                    out[:, rows]))
        check_finite(total.rows, "in the attention of 'model'; check its weights and inputs")
        num_rows = len(one.slot)
        sums.num_rows, sums.num_inputs = sums.num_rows + num_rows, sums.num_inputs + 1
        sums.longest = max(sums.longest, num_rows)
        sums.add(**total.rows)
        distances = torch.cat([total.rows['before'], total.rows['after']], dim=1) / num_rows
        if sums.before is not None:
            sums.add(same_distances=torch.minimum(distances, sums.before).sum(1))
        sums.before = distances
        self._measure_sample(sums, one)
        return out

    def _measure_sample(self, sums: _Sums, one: OneSequence) -> None:
        # All weights of one head at a time.
        length = len(one.slot)
        rows = _some_rows(length, self.sample, self.seed).to(one.query.device)
        edges, rank, kept_edges = [], [], []
        for head in range(len(one.query)):
            weight = one.weights(rows, slice(head, head + 1))[0].double()
            ordered, place = weight.sort(dim=1, descending=True)
            counts = [_count(ordered, share) for share in SHARES]
            edges.append(torch.stack(counts, dim=1).double().sum(0))
            rank.append(_effective_rank(weight))
            is_in = torch.arange(length, device=rows.device) < counts[1].unsqueeze(1)
            is_edge = torch.zeros_like(is_in).scatter_(1, place, is_in)
            kept_edges.append(np.packbits(is_edge.cpu().numpy(), axis=1))
        sums.num_sampled += len(rows)
        sums.add(edges=torch.stack(edges), rank=torch.stack(rank))
        kept_edges = np.stack(kept_edges)
        if (earlier := sums.edges.pop(length, None)) is not None:
            sums.num_same += 1
            sums.add(same_edges=torch.from_numpy(_overlap(kept_edges, earlier)))
        sums.edges[length] = kept_edges
        if len(sums.edges) > MAX_LENGTHS:
            del sums.edges[next(iter(sums.edges))]

    def profile(self, model: nn.Module) -> Profile:
        seen = {name: sums for name, sums in self.sums.items() if sums.num_rows}
        longest = max(sums.longest for sums in seen.values())
        size = (longest - 1).bit_length() + 1  # bins that a distance can be in
        parts = [_means(sums) for sums in seen.values()]
        heads = [len(part['entropy']) for part in parts]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for name in ('before', 'after'):
            joined[name] = joined[name][:, :size]
        joined |= join_clusters([self.clusters[name][2] for name in seen if self.clusters], heads)
        return Profile(
            layers=tuple(seen), layer=np.repeat(np.arange(len(heads)), heads),
            head=np.concatenate(list(map(np.arange, heads))),
            bounds=np.array(BOUNDS[:size]), lengths=np.array(self.lengths),
            patterns=tuple(map(repr, self.patterns)), fingerprint=_fingerprint(model), **joined)


def _means(sums: _Sums) -> dict[str, np.ndarray]:
    rows = {name: value.numpy() for name, value in sums.rows.items()}
    none = np.full(len(rows['entropy']), np.nan)
    return {**{name: rows[name] / sums.num_rows
               for name in ('before', 'after', 'kinds', 'keys', 'entropy', 'pattern_share',
                            'pattern_edges')},
            'pattern_error': rows['pattern_error'] / np.maximum(rows['norm'], 1e-300)[:, None],
            'edges': rows['edges'] / sums.num_sampled, 'rank': rows['rank'] / sums.num_inputs,
            'same_edges': rows['same_edges'] / sums.num_same if sums.num_same else none,
            'same_distances': rows['same_distances'] / (sums.num_inputs - 1) if (
                sums.num_inputs > 1) else none}


def _sums_of(weight: Tensor, rows: Tensor, is_special: Tensor | None) -> dict[str, Tensor]:
    # Fields of a Profile, summed over the queries of weight, [heads, rows, length].
    heads, _, length = weight.shape
    total = nn.functional.pad(weight.cumsum(-1), (1, 0))  # of the keys before each
    bounds = torch.tensor([*BOUNDS, 2**40], device=rows.device)
    before = _between(total, (rows.unsqueeze(1) - bounds + 1).clamp(0, length))
    after = _between(total, (rows.unsqueeze(1) + bounds).clamp(0, length))
    after[:, 0] = 0  # at the query itself
    first, whole = weight[..., 0].sum(1), total[..., -1].sum(1)
    special = torch.zeros_like(first)
    if is_special is not None:
        special = (weight[..., 1:] @ is_special[1:].to(weight)).sum(1)
    return {'before': before, 'after': after,
            'kinds': torch.stack([first, special, whole - first - special], dim=1),
            'entropy': torch.special.entr(weight).sum((1, 2)),
            'keys': (weight > 0).sum((1, 2))}


def _sums_along(patterns: Sequence[Candidate], clusters: Mapping[int, InputClusters],
                weight: Tensor, of_sink: Tensor | float, rows: Tensor, value: Tensor,
                out: Tensor) -> dict[str, Tensor]:
    # Fields of a Profile, [heads, patterns], summed over some queries, and the squared norm of
    # the dense outputs, [heads], by which errors are divided later. of_sink: its weight, which no
    # pattern leaves out
    shares, errors, edges = ([weight.new_zeros(len(weight), 0)] for _ in range(3))
    for pattern in patterns:
        kept = weight * _mask(pattern, clusters, rows, weight.size(2)).to(weight.device)
        whole = kept.sum(2, keepdim=True)
        error = kept @ value / (whole + of_sink).clamp(min=torch.finfo(whole.dtype).tiny) - out
        shares.append(whole.sum(1))
        errors.append(error.square().sum((1, 2)).unsqueeze(1))
        edges.append((kept > 0).sum((1, 2)).unsqueeze(1))
    return {'pattern_share': torch.cat(shares, dim=1), 'pattern_error': torch.cat(errors, dim=1),
            'pattern_edges': torch.cat(edges, dim=1), 'norm': out.square().sum((1, 2))}


def _mask(pattern: Candidate, clusters: Mapping[int, InputClusters], rows: Tensor,
          length: int) -> Tensor:
    # Returns bool [heads or 1, rows, length]; rows are consecutive.
    if isinstance(pattern, ClusterKeys):
        mask, beside = clusters[pattern.clusters].mask(pattern.keys, rows), pattern.beside
        return mask if beside is None else mask | _mask(beside, {}, rows, length).to(mask.device)
    graph = pattern.build(len(rows), length, offset=int(rows[0]), seed=0, crop=True)
    mask = torch.zeros(1, len(rows), length, dtype=torch.bool)
    mask[0, graph.query, graph.key] = True
    return mask


def _between(total: Tensor, ends: Tensor) -> Tensor:
    # total: weight of the first n keys, [heads, rows, length + 1]; ends: int64 [rows, bins + 1]
    at = total.gather(2, ends.expand(len(total), -1, -1))
    return at.diff(dim=2).abs().sum(1)


def _some_rows(length: int, sample: int, seed: int) -> Tensor:
    if length <= sample:
        return torch.arange(length)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(length, generator=generator)[:sample].sort().values


def _count(ordered: Tensor, share: float) -> Tensor:
    # ordered: weights [rows, length], descending
    needed = share * ordered.sum(1, keepdim=True)
    return (ordered.cumsum(1) < needed).sum(1) + (needed.squeeze(1) > 0)


def _effective_rank(weight: Tensor) -> Tensor:
    squares = torch.linalg.eigvalsh(weight @ weight.t())
    squares = squares.masked_fill(squares < len(squares) * 1e-15 * squares.amax(), 0)
    singular = squares.sqrt()
    return torch.special.entr(singular / singular.sum().clamp(min=1e-300)).sum().exp()


def _overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    # Keys are bits, packed as uint8 [heads, rows, bytes].
    both, either = (np.bitwise_count(x).sum(axis=-1) for x in (one & other, one | other))
    return (both / np.maximum(either, 1)).mean(axis=-1)


def _fingerprint(model: nn.Module) -> dict[str, Any]:
    # Weights do not matter.
    config = {name: value for name, value in model.config.to_dict().items()
              if not name.startswith('_') and name not in (
                  'transformers_version', 'architectures', 'dtype', 'torch_dtype')}
    text = json.dumps(config, sort_keys=True, default=str)
    return {'config': type(model.config).__name__, 'layers': len(attention_modules(model)),
            'heads': heads_of(model),
            'hash': hashlib.sha256(text.encode()).hexdigest()}


def _check_fields(values: Mapping[str, Any]) -> None:
    schema = SCHEMA | {'layer': Array('i', ('heads',), 0, len(values['layers']) - 1)}
    check_schema(values, schema, 'its fields', {'patterns': len(values['patterns'])})
    counts = values['clusters']
    sizes = {'heads': len(values['layer']), 'channels': int(values['channels'].max(initial=0)),
             'centroids': int(counts.sum()), 'pairs': int((counts**2).sum())}
    check_schema({name: values[name] for name in OF_CLUSTERS}, OF_CLUSTERS, 'its fields', sizes)
    for text in values['patterns']:
        _candidate(text)


def _path(path: str | PathLike) -> Path:
    if as_path('path', path).suffix != '.npz':
        raise ValueError(f"'path' must end with .npz (got {str(path)!r})")
    return Path(path)
