"""The model of a random bipartite graph. It stores the probabilities of edges, and draws no
graph."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from graphattn._checks import check_bool, check_floating, check_number, check_on, check_shape
from graphattn._explained import Explained
from graphattn._tensors import is_traced, unwrap, without_autocast
from graphattn.graphs.segments import Segments, sum_segments


class FactorModel(Explained):
    r"""A model of random bipartite graphs, in which the matrix of edge probabilities has low rank.

    A query i and a key j of the same segment have an edge with probability

    .. math::
        p_{ij} + \delta = \hat Q_i \, \hat S \, \hat K_j^\top + \delta.

    For :func:`~graphattn.samplers.sample_fastrg`, this is the mean number of draws of the pair. A
    query and a key of different segments never have an edge. This is the mixed-membership
    stochastic block model of SBM-Transformer, Sec. 4.1, with memberships :math:`\hat Q` and
    :math:`\hat K` and the block matrix :math:`\hat S`.

    Segments mean the same as in :class:`~graphattn.BipartiteGraph`. If each head has its own block
    matrix, heads are folded into the nodes, head by head: the first ``num_segments / num_heads``
    segments belong to head 0. A model can be copied and pickled. A copy has the values of the
    factors without their gradients.

    Args:
        query_factor (Tensor): The membership of each query in each of the k clusters, floating
            ``[num_queries, k]``, not negative.
        mixing (Tensor): The block matrix, floating ``[k, k]`` or ``[num_heads, k, k]``, not
            negative. Rows are clusters of queries, and columns are clusters of keys.
        key_factor (Tensor): The membership of each key in each of the k clusters, floating
            ``[num_keys, k]``, not negative. The three factors must be on one device, and may
            require gradients. Probabilities are computed in the widest of the dtypes of the
            factors, and at least in float32.
        query_ptr (Tensor, optional): Where the queries of each segment begin, int64 ``[num_segments
            + 1]``. If omitted, there is one segment for each head.
        key_ptr (Tensor, optional): Where the keys of each segment begin, int64 ``[num_segments +
            1]``. If omitted, ``query_ptr`` is used if the numbers of keys and queries are equal;
            otherwise there is one segment for each head.
        exploration (float): :math:`\delta` of Sec. 4.2, which is added to the probability of every
            pair inside a segment. The same sum results from an additional cluster to which every
            query and every key belongs with membership 1, and whose entry of ``mixing`` is
            :math:`\delta`.
        validate (bool): Whether to check all arguments and to copy the pointers. Pass ``False``
            only for tensors that the caller has just built.

    Attributes:
        num_queries, num_keys (int): Number of nodes in all segments.
        num_segments (int): Number of sequences times the number of heads.
        num_clusters (int): Number k of clusters.
        num_heads (int): Number of block matrices.
        dtype (torch.dtype): Dtype of the probabilities.
        device (torch.device): Device of the factors.
        query_ptr, key_ptr (Tensor): Where the queries and the keys of each segment begin, int64
            ``[num_segments + 1]``.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Shapes, devices, range or segments are not as described. Range and segments are
            checked on CPUs only, because reading them would synchronise a GPU.

    Example:
        >>> import torch
        >>> from graphattn.samplers import FactorModel
        >>> member = torch.tensor([[1., 0.], [1., 0.], [0., 1.]])
        >>> mixing = torch.tensor([[0., 0.5], [1., 0.]])
        >>> model = FactorModel(member, mixing, member)
        >>> model
        FactorModel(num_queries=3, num_keys=3, num_clusters=2)
        >>> model.expectation()
        tensor([[0.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.5000],
                [1.0000, 1.0000, 0.0000]])
        >>> model.expected_edges()
        tensor([3.], dtype=torch.float64)
    """

    def __init__(
        self,
        query_factor: Tensor,
        mixing: Tensor,
        key_factor: Tensor,
        *,
        query_ptr: Tensor | None = None,
        key_ptr: Tensor | None = None,
        exploration: float = 0.,
        validate: bool = True,
    ):
        if validate is not False:
            check_bool(validate=validate)
            check_factors({'query_factor': query_factor, 'mixing': mixing,
                           'key_factor': key_factor}, query_ptr, key_ptr)
            check_number('exploration', exploration, 'finite and not negative')
        self.query_factor, self.mixing, self.key_factor = query_factor, mixing, key_factor
        self.exploration = float(exploration)
        self.num_queries, self.num_keys = sizes = query_factor.size(0), key_factor.size(0)
        self.num_clusters = mixing.size(-1)
        self.num_heads = mixing.size(0) if mixing.dim() == 3 else 1
        self.device = query_factor.device
        self._dtypes = query_factor.dtype, mixing.dtype, key_factor.dtype
        self.dtype = reduce(torch.promote_types, self._dtypes, torch.float32)
        self.segments = Segments.of(query_ptr, key_ptr, sizes, self.device, heads=self.num_heads,
                                    validate=validate, look=self.device.type == 'cpu')
        self.query_ptr, self.key_ptr = self.segments.ptrs
        self.num_segments = self.query_ptr.numel() - 1
        if validate:
            check_segments_of_heads(self.segments, self.num_heads, sizes)
        self._product = CachedMatmul(compares_leaves=validate)

    def mixed_query(self) -> Tensor:
        r"""Return the product of query memberships and mixing, :math:`\hat Q \hat S`.

        The product of the result with ``key_factor`` is :math:`p_{ij}`. The result is
        differentiable. It has the dtype :attr:`dtype` even under autocast, because probabilities
        near 0 and 1 need this precision. It is cached until a factor changes, because both sampling
        and edge probabilities use it.

        Returns:
            floating Tensor ``[num_queries, k]``.
        """
        dtype, num_heads, num_clusters = self.dtype, self.num_heads, self.num_clusters
        per_head = num_heads, self.num_queries // num_heads, num_clusters
        with without_autocast(self.device):
            query = self.query_factor.to(dtype).reshape(per_head)
            mixing = self.mixing.to(dtype).reshape(num_heads, num_clusters, num_clusters)
            mixed = self._product(query, mixing, (self.query_factor, self.mixing))
        return mixed.reshape(self.query_factor.shape)

    def rate_factors(self) -> tuple[Tensor, Tensor]:
        r"""Return two factors whose product is :math:`p_{ij} + \delta` inside the sequences
        (segments): the probability of an edge from query i to key j, plus the exploration
        probability that is added to every pair.

        The factors are :math:`\hat Q \hat S` and :math:`\hat K`. With exploration, they have one
        more cluster, to which every node belongs.

        Returns:
            floating Tensors ``[num_queries, k or k + 1]`` and ``[num_keys, k or k + 1]``.
        """
        mixed_query, key_factor = self.mixed_query(), self.key_factor.to(self.dtype)
        if self.exploration:
            explore = mixed_query.new_full((self.num_queries, 1), self.exploration)
            mixed_query = torch.cat([mixed_query, explore], dim=1)
            key_factor = torch.cat([key_factor, key_factor.new_ones(self.num_keys, 1)], dim=1)
        return mixed_query, key_factor

    def expectation(self) -> Tensor:
        r"""Return all :math:`p_{ij} + \delta` as a dense matrix, for small models and for tests:
        the probability of an edge from query i to key j, plus the exploration probability that is
        added to every pair.

        Returns:
            floating Tensor ``[num_queries, num_keys]``, 0 outside the segments.
        """
        mixed = self.mixed_query()
        with without_autocast(self.device):
            prob = mixed @ self.key_factor.to(mixed.dtype).t() + self.exploration
        same_segment = self.segments.of_queries()[:, None] == self.segments.of_keys()
        return torch.where(same_segment, prob, 0.)

    def expected_edges(self) -> Tensor:
        r"""Return the expected number of edges of each sequence (segment), in O(nk): the sum of
        :math:`p_{ij} + \delta` over its pairs. Here, :math:`p_{ij}` is the probability of an edge
        from query i to key j, and every pair has the exploration probability :math:`\delta` in
        addition.

        This is the expected number of draws of :func:`~graphattn.samplers.sample_fastrg`, before
        duplicates merge. If no :math:`p_{ij} + \delta` exceeds 1, it is also the expected number of
        edges of :func:`~graphattn.samplers.sample_bernoulli`.

        Returns:
            float64 Tensor ``[num_segments]``.
        """
        per_head = (self.num_heads, self.num_segments // self.num_heads, self.num_clusters)
        query_mass = sum_segments(self.query_factor, self.query_ptr)
        key_mass = sum_segments(self.key_factor, self.key_ptr)
        mixed_mass = (query_mass.view(per_head) @ self.mixing.double()).view_as(key_mass)
        return ((mixed_mass * key_mass).sum(1)
                + self.exploration * self.segments.pairs_per_segment())

    @property
    def highest_probability(self) -> float:
        """Return the largest number that counts as a probability: 1 plus a tolerance for the
        rounding of the factors."""
        return 1 + max(1e-4, *[torch.finfo(dtype).eps for dtype in self._dtypes])

    def check_probability(self, largest: float) -> None:
        r"""Raise an error unless ``largest``, the largest :math:`p_{ij}`, is a probability.

        Raises:
            ValueError: ``largest`` exceeds 1 by more than the tolerance, or is NaN.
        """
        if not largest <= self.highest_probability:
            check_finite_and_not_negative(self.factors())
            raise ValueError(f"'model' must have edge probabilities of at most 1 (got "
                             f"{largest:.6g}); multiply 'mixing' by a smaller factor, or call "
                             f"sample_fastrg, which accepts rates above 1")

    def factors(self) -> dict[str, Tensor]:
        """Return a dict of the detached factors of the model: ``query_factor``, ``mixing`` and
        ``key_factor``."""
        return {'query_factor': self.query_factor.detach(), 'mixing': self.mixing.detach(),
                'key_factor': self.key_factor.detach()}

    def numbers(self) -> FactorModel:
        """Return a copy of the model whose factors are plain tensors, without wrappers of
        ``torch.func``, as samplers need them.

        Raises:
            NotImplementedError: The factors are batched by ``torch.vmap``.
        """
        return FactorModel(*map(unwrap, (self.query_factor, self.mixing, self.key_factor)),
                           query_ptr=self.query_ptr, key_ptr=self.key_ptr,
                           exploration=self.exploration, validate=False)

    def __repr__(self) -> str:
        heads = f', num_heads={self.num_heads}' if self.num_heads != 1 else ''
        segments = f', num_segments={self.num_segments}' if self.num_segments != 1 else ''
        exploration = f', exploration={self.exploration:g}' if self.exploration else ''
        return (f'{type(self).__name__}(num_queries={self.num_queries}, num_keys={self.num_keys}, '
                f'num_clusters={self.num_clusters}{heads}{segments}{exploration})')

    # Internals #######################################################################

    def __getstate__(self) -> dict[str, Any]:
        return {**self.factors(), 'query_ptr': self.query_ptr, 'key_ptr': self.key_ptr,
                'exploration': self.exploration}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # checks the state, which may come from a file


class CachedMatmul:
    """Batched matrix product, computed again only for other or modified factors."""

    def __init__(self, compares_leaves: bool = True):
        self._compares_leaves = compares_leaves
        # The product, the versions of its factors and its own, and copies of leaves are replaced in
        # one assignment, so that no other thread gets the product of other factors.
        self._kept: tuple[Tensor | None, list[int], list[Tensor]] = None, [], []

    def __call__(self, x: Tensor, y: Tensor, sources: tuple[Tensor, Tensor]) -> Tensor:
        # x and y must depend only on ``sources``. Results of operations are compared by version,
        # which in-place changes increment. Leaves are compared by value, because changes through
        # .data, as in clamping or averaging weights, do not increment it.
        leaves = [source.detach() for source in sources
                  if source.is_leaf] if self._compares_leaves else []
        if not _can_be_kept(sources, leaves):
            return torch.bmm(x, y)
        versions = [source._version for source in sources]
        product, before, copies = self._kept
        if (product is None or before != [*versions, product._version]
                or not all(map(torch.equal, copies, leaves))):
            product = torch.bmm(x.detach(), y.detach())
            self._kept = (product, [*versions, product._version],
                          [leaf.clone() for leaf in leaves])
        # with an autograd graph of its own, so that any number of backward passes are possible
        return _Product.apply(x, y, product) if torch.is_grad_enabled() else product


def _can_be_kept(sources: tuple[Tensor, Tensor], leaves: list[Tensor]) -> bool:
    # Traced or transformed tensors have no values yet. Inference mode tracks no versions and makes
    # tensors unusable for training. Comparing leaves on a GPU takes longer than the product.
    x, y = sources
    if (is_traced(x, y) or torch.is_inference_mode_enabled() or x.is_inference()
            or y.is_inference() or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0):
        return False
    return not leaves or x.device.type == 'cpu'


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
        return product.view_as(product)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y, _ = ctx.needs_input_grad
        return grad @ y.mT if needs_x else None, x.mT @ grad if needs_y else None, None


def check_factors(factors: dict[str, Tensor], query_ptr: Tensor | None,
                  key_ptr: Tensor | None) -> None:
    """Raise an error unless the factors are valid and agree in shape and device."""
    check_floating(**factors)
    query_factor, mixing, key_factor = factors.values()
    check_shape('query_factor', query_factor, ('nodes', 'clusters'))
    clusters = query_factor.size(1)
    if clusters == 0:
        raise ValueError(f"'query_factor' must have at least one column, a cluster (got shape "
                         f"{tuple(query_factor.shape)})")
    own = ", with the columns of 'query_factor'"
    check_shape('key_factor', key_factor, ('nodes', clusters), own)
    heads = ('heads',) if mixing.dim() == 3 else ()
    check_shape('mixing', mixing, (*heads, clusters, clusters), own)
    for name, other in {**factors, 'query_ptr': query_ptr, 'key_ptr': key_ptr}.items():
        if isinstance(other, Tensor):
            check_on(name, other, query_factor.device, "'query_factor'")
    check_finite_and_not_negative(factors)
    _check_nodes_of_heads(factors)


def check_finite_and_not_negative(factors: dict[str, Tensor]) -> None:
    """Raise a ValueError if a factor has a negative or non-finite value."""
    factors = {name: factor.detach() for name, factor in factors.items() if factor.numel()}
    # factors on a GPU and traced factors are not checked
    if not factors or not _can_be_read(*factors.values()):
        return
    with torch.autocast(next(iter(factors.values())).device.type, enabled=False):
        bounds = torch.stack([torch.stack(torch.aminmax(factor)).double()
                              for factor in factors.values()])
    for name, (low, high) in zip(factors, bounds.tolist()):
        if not (low >= 0 and high < math.inf):
            raise ValueError(f"'{name}' must be finite and not negative (got values from {low} to "
                             f"{high})")


def _can_be_read(*tensors: Tensor) -> bool:
    # without synchronising a GPU
    return tensors[0].device.type == 'cpu' and not is_traced(*tensors)


def _check_nodes_of_heads(factors: dict[str, Tensor]) -> None:
    mixing = factors['mixing']
    num_heads = mixing.size(0) if mixing.dim() == 3 else 1
    if num_heads == 0:
        raise ValueError(f"'mixing' must have at least one head in its first dimension (got shape "
                         f"{tuple(mixing.shape)})")
    for name in ('query_factor', 'key_factor'):
        size = factors[name].size(0)
        if size % num_heads:
            raise ValueError(f"'{name}' must have shape [{num_heads} * n, k], with n nodes for "
                             f"each of the {num_heads} heads of 'mixing' (got {size} rows)")


def check_segments_of_heads(segments: Segments, num_heads: int, sizes: tuple[int, int]) -> None:
    """Raise a ValueError unless heads have equal numbers of segments, queries and keys."""
    if num_heads == 1 or len(segments) == 0:
        return
    segments_per_head, rest = divmod(len(segments), num_heads)
    if rest:
        raise ValueError(f"'query_ptr' must mark a multiple of {num_heads} segments, equally many "
                         f"for each of the {num_heads} heads of 'mixing' (got {len(segments)} "
                         f"segments)")
    # on a GPU, only the number of segments is checked
    if not _can_be_read(segments.query_ptr):
        return
    for name, ptr, size in (('query_ptr', segments.query_ptr, sizes[0]),
                            ('key_ptr', segments.key_ptr, sizes[1])):
        head_start = ptr[::segments_per_head].tolist()
        if head_start != [head * (size // num_heads) for head in range(num_heads + 1)]:
            raise ValueError(f"'{name}' must mark {size} / {num_heads} nodes for each head of "
                             f"'mixing', one head after the other (got heads that begin at "
                             f"{head_start})")
