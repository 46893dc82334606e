"""A random bipartite graph as a value: specify here, sample elsewhere."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from graphattn._checks import check_floating, check_ptr


class FactorModel:
    r"""A random bipartite graph whose edge probabilities have low rank.

    A query and a key of the same block are joined with probability (or, to
    :func:`~graphattn.samplers.sample_fastrg`, at rate)

    .. math::
        p_{ij} + \delta = \hat Q_i \, \hat S \, \hat K_j^\top + \delta,

    and never if their blocks differ. This is the mixed-membership stochastic block model of
    SBM-Transformer, Sec. 4.1: memberships :math:`\hat Q` and :math:`\hat K`, block matrix
    :math:`\hat S`. Blocks are those of :class:`~graphattn.BipartiteGraph`. Heads that mix in ways
    of their own are folded into the nodes, head by head: of ``num_blocks`` blocks the first
    ``num_blocks / num_heads`` belong to head 0.

    Args:
        query_factor (Tensor): floating ``[num_queries, k]``, not negative: how much each query
            belongs to each of the k clusters.
        mixing (Tensor): floating ``[k, k]`` or ``[num_heads, k, k]``, not negative: how readily
            a query's cluster (row) joins a key's (column).
        key_factor (Tensor): floating ``[num_keys, k]``, not negative. All three are of one dtype
            on one device, and may carry gradients.
        query_ptr (Tensor, optional): int64 ``[num_blocks + 1]``, where each block's queries
            begin; one block for each head if omitted.
        key_ptr (Tensor, optional): int64 ``[num_blocks + 1]``; if omitted, ``query_ptr`` where
            there are as many keys as queries, else one block for each head.
        exploration (float): :math:`\delta` of Sec. 4.2, the chance of edges that the factors rule
            out. It equals one more cluster of membership 1 everywhere and mixing
            :math:`\delta`.

    Raises:
        TypeError: An argument is of the wrong type or dtype.
        ValueError: Shapes, devices, range or blocks are not as described.

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
    ):
        factors = {'query_factor': query_factor, 'mixing': mixing, 'key_factor': key_factor}
        _check_factors(factors, query_ptr, key_ptr)
        _check_exploration(exploration)
        self.query_factor, self.mixing, self.key_factor = query_factor, mixing, key_factor
        self.exploration = float(exploration)
        self._product, self._versions = None, None
        self._check_head_sizes()
        if query_ptr is None:
            query_ptr = self._one_block_per_head(self.num_queries)
        if key_ptr is None:
            same_blocks = self.num_keys == self.num_queries
            key_ptr = query_ptr if same_blocks else self._one_block_per_head(self.num_keys)
        self.query_ptr, self.key_ptr = query_ptr, key_ptr
        self._check_blocks()

    @property
    def num_queries(self) -> int:
        """Number of queries over all blocks."""
        return self.query_factor.size(0)

    @property
    def num_keys(self) -> int:
        """Number of keys over all blocks."""
        return self.key_factor.size(0)

    @property
    def num_clusters(self) -> int:
        """Number of clusters, k."""
        return self.mixing.size(-1)

    @property
    def num_heads(self) -> int:
        """Number of block matrices."""
        return self.mixing.size(0) if self.mixing.dim() == 3 else 1

    @property
    def num_blocks(self) -> int:
        """Number of sequences, times the heads that are folded into the nodes."""
        return self.query_ptr.numel() - 1

    @property
    def device(self) -> torch.device:
        """The device of the factors."""
        return self.query_factor.device

    def mixed_query(self) -> Tensor:
        r"""What each query offers each cluster of keys, :math:`\hat Q \hat S`.

        Its product with ``key_factor`` is :math:`p_{ij}`. Differentiable, and computed in float32
        at least, also under autocast: probabilities near 1 and near 0 both need the digits.

        Returns:
            floating Tensor ``[num_queries, k]``.
        """
        dtype = torch.promote_types(self.query_factor.dtype, torch.float32)
        per_head = (self.num_heads, self.num_queries // self.num_heads, self.num_clusters)
        with torch.autocast(self.device.type, enabled=False):
            query = self.query_factor.to(dtype).reshape(per_head)
            mixing = self.mixing.to(dtype).reshape(-1, self.num_clusters, self.num_clusters)
            mixed = _Product.apply(query, mixing, self._product_of(query, mixing))
        return mixed.reshape(self.query_factor.shape)

    def expectation(self) -> Tensor:
        r"""All :math:`p_{ij} + \delta` as a dense matrix, for small models and for tests.

        Returns:
            floating Tensor ``[num_queries, num_keys]``, 0 outside the blocks.
        """
        mixed = self.mixed_query()
        with torch.autocast(self.device.type, enabled=False):
            prob = mixed @ self.key_factor.to(mixed.dtype).t() + self.exploration
        same_block = _block_of(self.query_ptr)[:, None] == _block_of(self.key_ptr)
        return torch.where(same_block, prob, 0.)

    def expected_edges(self) -> Tensor:
        r"""The sum of :math:`p_{ij} + \delta` over the pairs of each block, in O(nk).

        This is the expected number of draws of :func:`~graphattn.samplers.sample_fastrg`, before
        repeated ones merge, and, where no :math:`p_{ij} + \delta` exceeds 1, the expected number
        of edges of :func:`~graphattn.samplers.sample_bernoulli`.

        Returns:
            float64 Tensor ``[num_blocks]``.
        """
        per_head = (self.num_heads, self.num_blocks // self.num_heads, self.num_clusters)
        query_mass = _block_sum(self.query_factor, self.query_ptr)
        key_mass = _block_sum(self.key_factor, self.key_ptr)
        mixed_mass = (query_mass.view(per_head) @ self.mixing.double()).view_as(key_mass)
        num_pairs = self.query_ptr.diff() * self.key_ptr.diff()
        return (mixed_mass * key_mass).sum(1) + self.exploration * num_pairs

    def __repr__(self) -> str:
        heads = f', num_heads={self.num_heads}' if self.num_heads != 1 else ''
        blocks = f', num_blocks={self.num_blocks}' if self.num_blocks != 1 else ''
        exploration = f', exploration={self.exploration:g}' if self.exploration else ''
        return (f'{type(self).__name__}(num_queries={self.num_queries}, num_keys={self.num_keys}, '
                f'num_clusters={self.num_clusters}{heads}{blocks}{exploration})')

    # Internals #######################################################################

    @torch.no_grad()
    def _product_of(self, query: Tensor, mixing: Tensor) -> Tensor:
        """Their product, kept: whoever draws edges and then asks for p_ij needs it twice."""
        if self._versions is None or self._versions != self._current_versions():
            self._product = query @ mixing
            self._versions = self._current_versions()
        return self._product

    def _current_versions(self) -> list[int] | None:
        parts = self.query_factor, self.mixing, self._product
        if any(part.is_inference() for part in parts):  # changes of these leave no trace
            return None
        return [part._version for part in parts]

    def _one_block_per_head(self, num_nodes: int) -> Tensor:
        return torch.arange(self.num_heads + 1, device=self.device) * (num_nodes // self.num_heads)

    def _check_head_sizes(self) -> None:
        if self.num_heads == 0:
            raise ValueError("'mixing' must have at least one head (got shape "
                             f"{tuple(self.mixing.shape)})")
        for name, size in (('query_factor', self.num_queries), ('key_factor', self.num_keys)):
            if size % self.num_heads:
                raise ValueError(f"'{name}' must hold as many nodes for each of the "
                                 f"{self.num_heads} heads of 'mixing' (got {size} in all); fold "
                                 f"heads into nodes as [num_heads * n, k]")

    def _check_blocks(self) -> None:
        check_ptr('query_ptr', self.query_ptr, self.num_queries, self.device)
        check_ptr('key_ptr', self.key_ptr, self.num_keys, self.device)
        if self.query_ptr.numel() != self.key_ptr.numel():
            raise ValueError(f"'query_ptr' and 'key_ptr' must mark as many blocks (got "
                             f"{self.num_blocks} and {self.key_ptr.numel() - 1})")
        if self.num_heads == 1 or self.num_blocks == 0:
            return
        blocks_per_head, rest = divmod(self.num_blocks, self.num_heads)
        if rest:
            raise ValueError(f"'query_ptr' must mark as many blocks for each of the "
                             f"{self.num_heads} heads of 'mixing' (got {self.num_blocks} in all)")
        for name, ptr, size in (('query_ptr', self.query_ptr, self.num_queries),
                                ('key_ptr', self.key_ptr, self.num_keys)):
            head_start = ptr[::blocks_per_head]
            if not torch.equal(head_start, self._one_block_per_head(size)):
                raise ValueError(f"'{name}' must give each head of 'mixing' {size} / "
                                 f"{self.num_heads} nodes, head after head (got heads that begin "
                                 f"at {head_start.tolist()})")


class _Product(torch.autograd.Function):
    """The gradient of a product that is known already."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, product: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return product.view_as(product)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y, _ = ctx.needs_input_grad
        return grad @ y.mT if needs_x else None, x.mT @ grad if needs_y else None, None


def _block_of(ptr: Tensor) -> Tensor:
    """The block of each node, int64 ``[num_nodes]``."""
    return torch.repeat_interleave(ptr.diff())


def _block_sum(factor: Tensor, ptr: Tensor) -> Tensor:
    """The column sums of each block, float64 ``[num_blocks, k]``."""
    return torch.segment_reduce(factor.double(), 'sum', offsets=ptr, axis=0, initial=0)


def _check_sampling(model: FactorModel, generator: torch.Generator | None) -> None:
    """Checks what every sampler is given."""
    if not isinstance(model, FactorModel):
        raise TypeError(f"'model' must be a FactorModel (got {type(model).__name__})")
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"'generator' must be a torch.Generator or None (got "
                        f"{type(generator).__name__}); a seed becomes one by "
                        f"torch.Generator(device).manual_seed(seed)")
    if generator.device.type != model.device.type:
        raise ValueError(f"'generator' must be on {model.device}, where the model is (got "
                         f"{generator.device})")


def _check_factors(factors: dict[str, Tensor], query_ptr: Tensor | None,
                   key_ptr: Tensor | None) -> None:
    for name, factor in factors.items():
        check_floating(name, factor)
    query_factor, mixing, key_factor = factors.values()
    for name, factor in (('query_factor', query_factor), ('key_factor', key_factor)):
        if factor.dim() != 2:
            raise ValueError(f"'{name}' must be [num_nodes, k] (got shape "
                             f"{tuple(factor.shape)}); fold batch and heads into the nodes")
    num_clusters = query_factor.size(1)
    if mixing.dim() not in (2, 3) or mixing.shape[-2:] != (num_clusters, num_clusters):
        raise ValueError(f"'mixing' must be [k, k] or [num_heads, k, k] with k = {num_clusters} "
                         f"as in 'query_factor' (got shape {tuple(mixing.shape)})")
    if key_factor.size(1) != num_clusters or num_clusters == 0:
        raise ValueError(f"'key_factor' and 'query_factor' must have the same clusters, at least "
                         f"one (got {key_factor.size(1)} and {num_clusters})")
    for name, other in {**factors, 'query_ptr': query_ptr, 'key_ptr': key_ptr}.items():
        if isinstance(other, Tensor) and other.device != query_factor.device:
            raise ValueError(f"'{name}' must be on {query_factor.device}, where 'query_factor' is "
                             f"(got {other.device})")
    for name, factor in factors.items():
        if factor.dtype != query_factor.dtype:
            raise TypeError(f"'{name}' must be of the dtype of 'query_factor', "
                            f"{query_factor.dtype} (got {factor.dtype})")
        _check_finite_and_not_negative(name, factor.detach())


def _check_finite_and_not_negative(name: str, factor: Tensor) -> None:
    if factor.numel() == 0:
        return
    low, high = (bound.item() for bound in torch.aminmax(factor))
    if not (low >= 0 and high < math.inf):
        raise ValueError(f"'{name}' must be finite and not negative (got values from {low} to "
                         f"{high})")


def _check_exploration(exploration: float) -> None:
    if not isinstance(exploration, Real) or isinstance(exploration, bool):
        raise TypeError(f"'exploration' must be a float (got {type(exploration).__name__})")
    if not 0 <= exploration < math.inf:
        raise ValueError(f"'exploration' must be finite and not negative (got {exploration})")
