"""Masks that are learned with the model, one for each head."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from graphattn._checks import (
    MAX_SIDE,
    check_bool,
    check_choice,
    check_generator,
    check_number,
    check_sides,
)
from graphattn._tensors import host_copy, outside_transforms, unwrap
from graphattn.functional.drive import LOCAL, Placement
from graphattn.functional.shard import Shard, check_shard
from graphattn.graphs.graph import BipartiteGraph
from graphattn.graphs.pair_layout import DiagonalLayout, FreeLayout, PairLayout
from graphattn.graphs.pair_mask import PairMask
from graphattn.patterns import Mask
from graphattn.sources.base import GraphSource
from graphattn.sources.mask_graph import MaskGraph
from graphattn.sources.pattern_source import pattern_graph

_MODES = ('dam_structured', 'dam_unstructured', 'soft')


class LearnedMaskSource(GraphSource):
    r"""Learn one mask for each head, shared by all examples (SparseBERT, Sec. 3.1 and 4.1).

    Every value of a mask has a logit :math:`\alpha`. The mode ``'soft'`` is the continuous
    relaxation of Eq. 3, both in training and in evaluation. The mask of this mode is

    .. math:: P = \operatorname{sigmoid}(\alpha).

    The two DAM modes draw a mask in each training pass, by the Gumbel-sigmoid of Sec. 4.1. The
    difference of two Gumbel noises is one logistic noise, drawn once for all pairs that share a
    value:

    .. math::
        \tilde{M} = \operatorname{sigmoid}\bigl((\alpha + \varepsilon) / \tau\bigr), \quad
        \varepsilon \sim \mathrm{Logistic}(0, 1), \qquad
        M = \mathbb{1}[\alpha + \varepsilon > 0].

    Hard masks use M, so that P(on) = sigmoid(:math:`\alpha`) at every temperature, and pass their
    gradient straight through to :math:`\tilde{M}`. With ``hard=False``, masks use :math:`\tilde{M}`
    itself. In evaluation there is no noise, and a value is on where :math:`\alpha > 0`.

    Hard and frozen masks become graphs. In training, the graph is a :class:`MaskGraph
    <graphattn.sources.mask_graph.MaskGraph>`, which carries the gradient on its edges. The edges of
    structured masks are listed without visiting other pairs. Soft masks weigh every pair and become
    a :class:`PairMask <graphattn.graphs.pair_mask.PairMask>`, for dense attention. A MaskGraph and
    a PairMask both have a method ``norm()``, the penalty of Eq. 7.

    **Bias.** The gradient of soft masks is unbiased. The gradient of hard masks is biased, even for
    a loss that is linear in each single value, such as the penalty. Let s be the mean slope of the
    loss in that value, f the density of a logistic variable, and g the density of
    :math:`\varepsilon + \tau \varepsilon'` with another logistic variable :math:`\varepsilon'`.
    Then

    .. math::
        \frac{\partial \, \mathrm{E}[L]}{\partial \alpha} = s \, f(\alpha), \qquad
        \mathrm{E}[\text{estimate}] = s \, g(\alpha).

    The sign is correct, and the size is 1/6 instead of 1/4 at :math:`\alpha = 0, \tau = 1`. As
    :math:`\tau` goes to 0, the bias vanishes and the variance grows. A loss after a softmax is not
    linear in the mask. Only pairs that are drawn on have a slope in such a loss
    (:class:`graphattn.sources.mask_graph.MaskGraph`). This bias remains at every temperature.

    Under ``torch.compile``, building a graph is one graph break, because the edges depend on the
    values of the parameters.

    To share one mask among all layers, as in the paper, pass the same source to every layer.

    Args:
        heads (int): Number of heads; each has its own mask.
        size (int): Number of tokens n of a mask. In longer sequences, a structured mask has no edge
            over a distance that it lacks; the other masks raise an error. In shorter sequences, the
            last token has the last row and column of these others, because it is a separator in
            the inputs of BERT.
        mode (str): ``'dam_structured'``: all pairs of one distance share a value, so there are n -
            2 values inside the border. ``'dam_unstructured'`` and ``'soft'``: each pair has its own
            value.
        border (bool, optional): Whether the first and last row and column are always on. If
            omitted, this border is on only in structured masks, as in Sec. 4.1.
        temperature (float): :math:`\tau` of the Gumbel-sigmoid.
        hard (bool): Whether the masks drawn in training are 0 or 1.
        logit_drop (float): The constant c of Eq. 6, 10,000 in the authors' code. At about 10, soft
            masks distinguish values between 0 and 1; with a larger c, soft masks act like hard
            masks. In hard masks, c only scales the gradient. See
            :class:`graphattn.sources.mask_graph.MaskGraph`.
        init_std (float): Standard deviation of the initial logits, which are normal with mean 0. So
            P starts at about 1/2.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A size or a value is out of range, or the mode is unknown.

    Source: SparseBERT, Eq. 3 to 6 and Algorithm 1.

    Example:
        >>> import torch
        >>> from graphattn.sources import LearnedMaskSource
        >>> source = LearnedMaskSource(heads=2, size=128)
        >>> query, key = torch.randn(2, 200, 2, 8)
        >>> graph = source(query, key, torch.tensor([0, 72, 200]))
        >>> graph.num_segments, 0.3 < graph.density() < 0.7
        (4, True)
        >>> (1e-3 * graph.norm()).backward()  # Eq. 7
        >>> source.eval()(query, key, torch.tensor([0, 72, 200])).num_segments
        4
    """

    per_head = True

    def __init__(
        self,
        heads: int,
        size: int,
        *,
        mode: Literal['dam_structured', 'dam_unstructured', 'soft'] = 'dam_structured',
        border: bool | None = None,
        temperature: float = 1.,
        hard: bool = True,
        logit_drop: float = 10.,
        init_std: float = 1e-3,
    ):
        super().__init__()
        check_sides(heads=heads)
        check_choice('mode', mode, _MODES)
        check_bool(hard=hard)
        for name, number in (('temperature', temperature), ('logit_drop', logit_drop)):
            check_number(name, number, 'positive and finite')
        check_number('init_std', init_std, 'finite and not negative')
        self.heads, self.mode, self.temperature = heads, mode, temperature
        self.hard, self.logit_drop, self.init_std = hard, logit_drop, init_std
        is_structured = mode == 'dam_structured'
        self.layout = (DiagonalLayout if is_structured else FreeLayout)(
            size, is_structured if border is None else border)
        if self.layout.num_values > MAX_SIDE:
            raise ValueError(f"'size' must be smaller in mode {mode!r}, because the mask has "
                             f"{self.layout.num_values} values to learn, which do not fit into "
                             f"memory (got {size})")
        self.max_length = self.layout.max_length
        self.logit = nn.Parameter(torch.empty(heads, self.layout.num_values))
        self._frozen: tuple[Tensor, tuple[Mask, ...]] | None = None
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        return {'heads': self.heads, 'size': self.layout.size, 'mode': self.mode,
                'border': self.layout.border, 'temperature': self.temperature, 'hard': self.hard,
                'logit_drop': self.logit_drop, 'init_std': self.init_std}

    def reset_parameters(self) -> None:
        """Draw the logits of all mask values from a normal distribution."""
        nn.init.normal_(self.logit, std=self.init_std)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        ptr: Tensor,
        *,
        key_ptr: Tensor | None = None,
        placement: Placement = LOCAL,
        generator: torch.Generator | None = None,
    ) -> BipartiteGraph | PairMask:
        if key_ptr is not None:
            raise ValueError("'key_ptr' must be None for a learned mask, because queries and keys "
                             "of a mask are the same tokens; a layer passes 'key_ptr' if it is "
                             "called with 'memory', whose tokens are the keys, so call the layer "
                             "without 'memory'")
        self.check_tokens(query, key, ptr, generator=generator)
        if placement is not LOCAL:
            return self._rows(check_shard(placement))
        if self.mode == 'soft':
            return PairMask(self.logit.sigmoid(), self.layout, logit_drop=self.logit_drop)
        if not self.training:
            return self._frozen_graph(ptr)
        values = draw_values(self.logit, self.temperature, generator, hard=self.hard)
        if self.hard:
            return self._drawn_graph(values, ptr)
        return PairMask(values, self.layout, logit_drop=self.logit_drop)

    @torch.compiler.disable(reason='the edges depend on the values of parameters')
    def _drawn_graph(self, values: Tensor, ptr: Tensor) -> MaskGraph:
        return MaskGraph(values, self.layout, ptr, logit_drop=self.logit_drop)

    def logit_terms(self, graph: BipartiteGraph) -> dict[str, Tensor]:
        bias = graph.edge_bias if isinstance(graph, MaskGraph) else None
        return {} if bias is None else {'edge_bias': bias}

    def _rows(self, shard: Shard) -> BipartiteGraph:
        if self.mode == 'soft' or self.training:
            mode = 'training' if self.training else 'eval'
            raise ValueError(f"'source' must be a frozen mask, so that each process builds only "
                             f"the edges of its own queries (got mode={self.mode!r} in {mode} "
                             f"mode); call freeze(), or eval() of a hard mask")
        return pattern_graph(self._frozen_masks(), None, shard.lengths, shard.ptr.device,
                             shard.spans())

    @torch.compiler.disable(reason='the edges of frozen masks depend on the values of parameters')
    def _frozen_graph(self, ptr: Tensor) -> BipartiteGraph:
        return pattern_graph(self._frozen_masks(), None, host_copy(ptr).diff().tolist(), ptr.device)

    def _frozen_masks(self) -> tuple[Mask, ...]:
        # cached while the signs are unchanged: freezing 12 masks of 512 x 512 pairs took 99 ms
        with outside_transforms():
            is_on, frozen = unwrap(self.logit) > 0, self._frozen
            if frozen is None or frozen[0].device != is_on.device or not torch.equal(frozen[0],
                                                                                     is_on):
                self._frozen = frozen = is_on, _masks(self.layout, is_on)
        return frozen[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), '_frozen': None}

    def probability(self) -> Tensor:
        """Return the probability that each pair of a sequence of n = ``size`` tokens is on,
        ``[heads, n, n]``. Pairs on the border have probability 1."""
        mask = PairMask(self.logit.sigmoid(), self.layout)
        return mask.dense(self.layout.size)

    @torch.no_grad()
    def freeze(
        self,
        how: Literal['threshold', 'sample', 'top-k'] = 'threshold',
        sparsity: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Mask, ...]:
        r"""Return the masks as patterns, which :class:`PatternSource` and
        :func:`graphattn.patterns.save_masks` accept.

        Args:
            how (str): Rule that decides which values are on. ``'threshold'``: values with a
                probability above 1/2, so :math:`\alpha > 0`. ``'sample'``: values of one draw, as
                in Algorithm 1. ``'top-k'``: the most probable values of each head, as long as at
                most :math:`(1 - \rho) n^2` pairs are on. This number includes the border and all
                pairs that share a value.
            sparsity (float, optional): Fraction :math:`\rho` of pairs that are off, in [0, 1], for
                ``'top-k'``.
            generator (torch.Generator, optional): Random generator for ``'sample'``, on the device
                of the logits.

        Returns:
            tuple of Mask, one for each head.

        Raises:
            TypeError: ``sparsity`` is not a number.
            ValueError: ``how`` is unknown, only one of ``sparsity`` and ``'top-k'`` is given, or
                the border makes ``sparsity`` impossible.
        """
        check_choice('how', how, ('threshold', 'sample', 'top-k'))
        check_generator(generator)
        if (sparsity is not None) != (how == 'top-k'):
            raise ValueError(f"'sparsity' must be given with how='top-k', and omitted otherwise "
                             f"(got sparsity={sparsity} with how={how!r})")
        if how == 'top-k':
            is_on = self._most_probable(sparsity)
        else:
            is_on = (self.logit if how == 'threshold' else add_noise(self.logit, generator)) > 0
        return _masks(self.layout, is_on)

    def _most_probable(self, sparsity: float) -> Tensor:
        check_number('sparsity', sparsity, 'in [0, 1]')
        multiplicity = self.layout.multiplicity(self.logit.device)
        num_pairs, num_always_on = self.layout.size**2, int(multiplicity[self.layout.always_on])
        num_left = num_pairs - math.ceil(sparsity * num_pairs - 1e-6) - num_always_on
        if num_left < 0:
            raise ValueError(f"'sparsity' must be at most {1 - num_always_on / num_pairs:.4f}, "
                             f"because the {num_always_on} of {num_pairs} pairs in the border stay "
                             f"on (got {sparsity})")
        order = self.logit.argsort(dim=1, descending=True, stable=True)
        fits = multiplicity[order].cumsum(dim=1) <= num_left
        return torch.zeros_like(fits).scatter_(1, order, fits)

    def extra_repr(self) -> str:
        return (f'heads={self.heads}, {self.layout}, mode={self.mode!r}, '
                f'temperature={self.temperature}, hard={self.hard}, logit_drop={self.logit_drop}')


def _masks(layout: PairLayout, is_on: Tensor) -> tuple[Mask, ...]:
    return tuple(Mask(layout, head) for head in is_on)


def add_noise(logit: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return ``logit`` plus logistic noise, which is the difference of two Gumbel noises."""
    # half precision has too few values to represent the distribution
    dtype = torch.promote_types(logit.dtype, torch.float)
    uniform = torch.rand(logit.shape, generator=generator, dtype=dtype, device=logit.device)
    return logit + uniform.logit()


def draw_values(logit: Tensor, temperature: float, generator: torch.Generator | None, *,
                hard: bool = True) -> Tensor:
    """Draw the value of a mask for each logit by the Gumbel-sigmoid, 0 or 1 if ``hard``."""
    noisy_logit = add_noise(logit, generator)
    soft = (noisy_logit / temperature).sigmoid().to(logit.dtype)
    # hard values pass their gradient straight through to the soft ones
    return (noisy_logit > 0).to(soft.dtype) + (soft - soft.detach()) if hard else soft
