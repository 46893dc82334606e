"""torch's multi-head attention along graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from graphattn._checks import (
    check_bool,
    check_device,
    check_dropout,
    check_floating,
    check_kind,
    check_on,
    check_place,
    check_sides,
    check_strided,
    is_float,
)
from graphattn._explained import Explained
from graphattn._tensors import is_one
from graphattn.graphs.masks import is_above_lowest
from graphattn.layers.graph_attention import check_diffusion, check_source, teleport_parameter
from graphattn.layers.padded import PairRules, attend_padded, warn_of_zeros_and_ones
from graphattn.ops import LogitTerms, check_backend
from graphattn.patterns import Full, Pattern
from graphattn.placement.padded import PaddedTokens
from graphattn.sources import GraphSource, as_source
from graphattn.sources.base import copy_beside, place_beside


class MultiheadAttention(nn.MultiheadAttention, Explained):
    r"""``torch.nn.MultiheadAttention`` along the edges of a source.

    .. math::
        \mathrm{MultiHead}(Q, K, V) = \big\Vert_h \mathrm{EdgeAttention}(Q W_h^Q, K W_h^K, V W_h^V,
        G_h) \, W^O

    Constructor, call and state dict are the same as in torch, except that the state dict also has
    the parameters of the source. Padding on the left or right is removed first. So patterns start
    at the first token of a sequence, and the attention of padded queries is 0 before the output
    projection. If query and key are the same tensor or share their memory, the call is
    self-attention. Otherwise, query i has the position of key i. In a
    ``torch.nn.TransformerEncoderLayer``, this module disables torch's fast path for inference,
    because the fast path would read the weights of this module without calling it.

    Args:
        embed_dim (int): Size of each token.
        num_heads (int): Number of heads.
        dropout (float): Dropout on the attention weights.
        bias (bool): Whether the projections have a bias.
        add_bias_kv, add_zero_attn (bool): Must be ``False``, because graphs have no key without a
            token.
        kdim, vdim (int, optional): Sizes of keys and values, ``embed_dim`` if omitted.
        batch_first (bool): Whether tokens are ``[batch, length, channels]``.
        device (torch.device, optional): Device of the parameters.
        dtype (torch.dtype, optional): Dtype of the parameters.
        source (GraphSource, Pattern or str, optional): Source of the edges; full attention if
            omitted.
        backend (str): Kernel for graphs, see :func:`graphattn.functional.edge_attention`.
        hops (int or float): Number of hops that values travel along the edges, as in
            :class:`GraphAttention`. More than one hop requires self-attention. The returned weights
            are the weights of one hop.
        teleport (float or sequence of float): Share of its own value that a token keeps at each
            hop, one for all hops or one for each.
        learn_teleport (bool): Whether each head learns its own teleport, initially ``teleport``.

    Raises:
        ImportError: The backend lacks a package that it needs.
        ValueError: The source requires another number of heads, the backend is unknown,
            ``add_bias_kv`` or ``add_zero_attn`` is set, or ``hops`` and ``teleport`` do not fit.

    Source: Vaswani et al., 2017, Sec. 3.2.2.

    Example:
        >>> import torch
        >>> from graphattn.layers import MultiheadAttention
        >>> attention = MultiheadAttention(32, 4, batch_first=True, source='SlidingWindow(2)')
        >>> x = torch.randn(2, 50, 32)
        >>> is_padding = torch.arange(50) >= torch.tensor([[50], [30]])
        >>> out, _ = attention(x, x, x, key_padding_mask=is_padding, need_weights=False)
        >>> out.shape
        torch.Size([2, 50, 32])
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0., bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
                 source: GraphSource | Pattern | str | None = None, backend: str = 'auto',
                 hops: int | float = 1, teleport: float | Sequence[float] = 0.,
                 learn_teleport: bool = False):
        check_sides(embed_dim=embed_dim, num_heads=num_heads,
                    kdim=embed_dim if kdim is None else kdim,
                    vdim=embed_dim if vdim is None else vdim)
        check_dropout(dropout=dropout)
        check_bool(bias=bias, batch_first=batch_first)
        if embed_dim % num_heads:
            raise ValueError(f"'embed_dim' must be a multiple of 'num_heads' (got "
                             f"embed_dim={embed_dim} and num_heads={num_heads})")
        if device is not None:
            check_device(device)
        if dtype is not None:
            check_kind('dtype', dtype, torch.dtype)
        _check_keys(add_bias_kv, add_zero_attn)
        check_backend(backend)
        check_diffusion(hops, teleport, learn_teleport)
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim,
                         batch_first=batch_first, device=device, dtype=dtype)
        self.source = check_source(Full() if source is None else source, num_heads)
        self.backend = backend
        self._set_diffusion(hops, teleport, learn_teleport)

    def _set_diffusion(self, hops: int | float, teleport: float | Sequence[float],
                       learn_teleport: bool) -> None:
        self.hops, self.teleport = hops, teleport
        self.teleport_logit = teleport_parameter(
            teleport, self.num_heads, *place_beside(self)) if learn_teleport else None

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # If this were True, TransformerEncoderLayer would take its fast path, which skips this
        # forward.
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of attention and the weights, as ``torch.nn.MultiheadAttention`` does.

        Args:
            query (Tensor): ``[length, batch, embed_dim]``, with ``batch_first`` ``[batch, length,
                embed_dim]``, or for one sequence ``[length, embed_dim]``.
            key (Tensor): As ``query``, with ``kdim`` channels.
            value (Tensor): As ``key``, with ``vdim`` channels.
            key_padding_mask (Tensor, optional): ``[batch, key_length]``: bool, ``True`` for
                padding; or floating, added to logits.
            need_weights (bool): Also return the dense weights.
            attn_mask (Tensor, optional): ``[query_length, key_length]`` or ``[batch * heads,
                query_length, key_length]``: bool, ``True`` where a query may not attend; or
                floating, added to logits. The mask can only remove edges of the source.
            average_attn_weights (bool): Whether to average the weights over heads.
            is_causal (bool): Whether to forbid that queries attend to later keys. Unlike torch,
                this module does not need ``attn_mask`` for this.

        Returns:
            A pair: the output, shaped like ``query``; and the weights ``[batch, query_length,
            key_length]``, without averaging ``[batch, heads, query_length, key_length]``, or
            ``None`` if not requested.

        Raises:
            TypeError: A tensor is of the wrong dtype.
            ValueError: Shapes do not fit.
        """
        check_bool(need_weights=need_weights, average_attn_weights=average_attn_weights,
                   is_causal=is_causal)
        check_floating(query=query, key=key, value=value)
        is_batched, same_tokens = query.dim() == 3, is_one(query, key)
        query, key, value = self._batch_first(query, key, value)
        heads, (batch, num_queries, _), num_keys = self.num_heads, query.shape, key.size(1)
        tables = _table(attn_mask, (batch, heads, num_queries, num_keys), query.device)
        is_token, bias = _padding(key_padding_mask, (batch, num_keys), is_batched, query.device)
        tables += () if bias is None else (bias[:, None, None].expand(-1, 1, num_queries, -1),)
        tokens = PaddedTokens(batch, num_queries, num_keys, query.device, is_token,
                              same_tokens=same_tokens)
        logit = self.teleport_logit
        out, weight = attend_padded(
            *self._project(query, key, value), self.source, tokens,
            PairRules(is_causal, None, tables),
            LogitTerms(scale=None, dropout_p=self.dropout if self.training else 0.),
            (self.hops, self.teleport if logit is None else logit.sigmoid()),
            backend=self.backend, needs_weights=need_weights)
        out = self.out_proj(out.flatten(2))
        if weight is not None and average_attn_weights:
            weight = weight.mean(dim=1)
        if not is_batched:
            return out.squeeze(0), None if weight is None else weight.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weight

    def _batch_first(self, *tensors: Tensor) -> list[Tensor]:
        dim = tensors[0].dim()
        if dim not in (2, 3) or any(x.dim() != dim for x in tensors):
            raise ValueError(f"'query', 'key' and 'value' must have three dimensions, or two "
                             f"without the batch (got {[x.dim() for x in tensors]})")
        sizes = self.embed_dim, self.kdim, self.vdim
        for name, x, size in zip(('query', 'key', 'value'), tensors, sizes):
            if x.size(-1) != size:
                raise ValueError(f"'{name}' must have {size} channels in its last dimension (got "
                                 f"shape {tuple(x.shape)})")
            check_place(name, x, self.out_proj)
        if dim == 2:
            tensors = [x.unsqueeze(0) for x in tensors]
        elif not self.batch_first:
            tensors = [x.transpose(0, 1) for x in tensors]
        query, key, value = tensors
        if key.size(0) != query.size(0) or value.shape[:2] != key.shape[:2]:
            raise ValueError(f"'key' and 'value' must have the same length and the {query.size(0)} "
                             f"sequences of 'query' (got {tuple(key.shape[:2])} and "
                             f"{tuple(value.shape[:2])})")
        return [query, key, value]

    def _project(self, *tensors: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim))
                for x, weight, bias in zip(tensors, weights, biases)]

    def extra_repr(self) -> str:
        return f'{self.embed_dim}, heads={self.num_heads}, batch_first={self.batch_first}'


def _check_keys(add_bias_kv: bool, add_zero_attn: bool) -> None:
    for name, value in (('add_bias_kv', add_bias_kv), ('add_zero_attn', add_zero_attn)):
        check_bool(**{name: value})
        if value:
            raise ValueError(f"'{name}' must be False, because graphs have no key without a token "
                             f"(got True)")


def _table(mask: Tensor | None, sizes: tuple[int, int, int, int],
           device: torch.device) -> tuple[Tensor, ...]:
    # In torch a bool mask is True where a query may not attend, in the table where it may.
    if mask is None:
        return ()
    _check_mask('attn_mask', mask, device)
    batch, heads, *lengths = sizes
    if list(mask.shape) not in (lengths, [batch * heads, *lengths]):
        raise ValueError(f"'attn_mask' must have shape {lengths} or {[batch * heads, *lengths]} "
                         f"(got {tuple(mask.shape)})")
    mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (batch, heads))
    return (~mask if mask.dtype == torch.bool else mask,)


@torch.compiler.disable(reason='the values of the mask decide what is added to logits')
def _padding(mask: Tensor | None, sizes: tuple[int, int], is_batched: bool,
             device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    # In torch a bool mask is True at padding. Returns what is True at tokens (None: all are), and
    # what is added to the logits of the keys (or None).
    if mask is None:
        return None, None
    _check_mask('key_padding_mask', mask, device)
    mask = mask if is_batched else mask.unsqueeze(0)
    if mask.shape != sizes:
        raise ValueError(f"'key_padding_mask' must have shape {list(sizes)}, or no dimension of "
                         f"the batch if 'query' has none (got shape {tuple(mask.shape)})")
    is_token = ~mask if mask.dtype == torch.bool else is_above_lowest(mask)
    adds = mask.dtype != torch.bool and (mask.requires_grad or bool(mask[is_token].any()))
    return None if bool(is_token.all()) else is_token, mask if adds else None


def _check_mask(name: str, mask: Tensor, device: torch.device) -> None:
    check_strided(name, mask)
    check_on(name, mask, device, 'the tokens')
    if not (mask.dtype == torch.bool or is_float(mask.dtype)):
        raise TypeError(f"'{name}' must be a Tensor of dtype bool (True = do not attend), or of a "
                        f"floating dtype (added to logits) (got {mask.dtype})")
    warn_of_zeros_and_ones(name, mask)


def from_torch(
    module: nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder,
    source: GraphSource | Pattern | str, *, backend: str = 'auto', hops: int | float = 1,
    teleport: float | Sequence[float] = 0., learn_teleport: bool = False,
) -> MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder:
    """Return a copy of a torch module with attention along the edges of a source.

    The copy has the call, weights, dropout, activation, order of norms, hooks and pruning of
    ``module``. Modules that replace projections are copied too. Each attention gets its own copy of
    the source, with new parameters.

    Args:
        module (nn.Module): ``torch.nn.MultiheadAttention``, ``TransformerEncoderLayer`` or
            ``TransformerEncoder``.
        source (GraphSource, Pattern or str): Source of the edges.
        backend (str): As in :class:`MultiheadAttention`.
        hops (int or float): As in :class:`MultiheadAttention`.
        teleport (float or sequence of float): As in :class:`MultiheadAttention`.
        learn_teleport (bool): As in :class:`MultiheadAttention`.

    Returns:
        :class:`MultiheadAttention`, or the torch module that contains it.

    Raises:
        TypeError: ``module`` is another kind of module, or overrides ``forward``.
        ValueError: The source requires another number of heads, ``hops`` and ``teleport`` do not
            fit, or the module has keys without tokens (``add_bias_kv``, ``add_zero_attn``).

    Example:
        >>> import torch
        >>> from graphattn.layers import from_torch
        >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        >>> encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> windowed = from_torch(encoder, 'SlidingWindow(2) | GlobalTokens(1)')
        >>> windowed(torch.randn(2, 50, 32)).shape
        torch.Size([2, 50, 32])
    """
    kinds = nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder
    if not isinstance(module, kinds):
        raise TypeError(f"'module' must be a torch.nn.MultiheadAttention, TransformerEncoderLayer "
                        f"or TransformerEncoder (got {type(module).__name__})")
    check_backend(backend)
    check_diffusion(hops, teleport, learn_teleport)
    source, module = as_source(source), copy.deepcopy(module)
    diffusion = hops, teleport, learn_teleport
    if isinstance(module, nn.MultiheadAttention):
        return _convert(module, source, backend, diffusion)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            _convert(part.self_attn, source, backend, diffusion)
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # only the fast path supports nested tensors
    return module


def _convert(attention: nn.MultiheadAttention, source: GraphSource, backend: str,
             diffusion: tuple[int | float, float | Sequence[float], bool]) -> MultiheadAttention:
    # In place: a new module would lose hooks and pruning, and shared or parametrised parameters.
    kind = type(attention)
    if getattr(kind, 'forward', None) not in (nn.MultiheadAttention.forward,
                                              MultiheadAttention.forward):
        raise TypeError(f"'module' must use the forward of torch.nn.MultiheadAttention (got "
                        f"{kind.__name__}, which overrides it)")
    _check_keys(attention.bias_k is not None, attention.add_zero_attn)
    source = check_source(source, attention.num_heads)
    if not isinstance(attention, MultiheadAttention):
        # torch gives each parametrised module its own class, whose properties compute the
        # parameters.
        attention.__class__ = (type(kind.__name__, (kind, MultiheadAttention), {})
                               if is_parametrized(attention) else MultiheadAttention)
    attention._qkv_same_embed_dim = False  # see MultiheadAttention._reset_parameters
    attention.source, attention.backend = copy_beside(source, attention), backend
    attention._set_diffusion(*diffusion)
    return attention
