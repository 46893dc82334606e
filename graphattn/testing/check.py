"""The one function that users call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import torch
from torch import Tensor

from graphattn._checks import check_choice
from graphattn.graphs.graph import BipartiteGraph
from graphattn.testing.call import FORMS, LAYOUTS, Kernel
from graphattn.testing.checks import CHECKS, Setting
from graphattn.testing.report import Report, WrongAttention, name_of
from graphattn.testing.run import Examiner, Trial, run_apart, run_here
from graphattn.testing.supports import Supports


def check_attention(
    function: Callable[..., Tensor],
    *,
    supports: Supports | None = None,
    form: str = 'graph',
    layout: str = 'nhc',
    graphs: Mapping[str, BipartiteGraph] | None = None,
    checks: Collection[str] | None = None,
    device: torch.device | str = 'cpu',
    time_limit: float = 20.,
    isolated: bool = False,
    on_fail: Literal['raise', 'report'] = 'raise',
) -> Report:
    r"""Compare an attention function with its definition, the dense reference in float64.

    ``function(query, key, value, edges, **terms)`` returns

    .. math::
        \mathrm{out}_i = \sum_j \alpha_{ij} \mathrm{value}_j, \qquad
        \alpha_{ij} = \operatorname*{softmax}_j \left( \mathrm{gate}_{ij} \, \mathrm{scale} \,
        \langle \mathrm{query}_i, \mathrm{key}_j \rangle + \mathrm{bias}_{ij} \right)

    over the keys j that query i attends to, and 0 if there are none. A ``softcap`` c turns the
    product x before the bias into :math:`c \tanh(x / c)`. A ``sink`` of each head, ``[H]``, is one
    more logit in the softmax, without a value. Terms are passed only if a case has them:
    ``edge_bias``, ``edge_gate``, ``sink``, ``scale``, ``softcap`` and ``dropout_p``. A case is not
    run if it needs a parameter that the function lacks. Dropout uses the generator that
    ``torch.manual_seed`` sets.

    Output and gradients must be right to the rounding of the dtype
    (:func:`graphattn.testing.definition.tolerance`). If a case needs a feature that ``supports``
    does not declare, the function must be right or raise an error.

    Args:
        function (Callable): The function to examine.
        supports (Supports, optional): Declaration of what the function supports; float32 and a
            backward pass if omitted.
        form (str): Form in which the function takes edges: ``'graph'``, a BipartiteGraph;
            ``'mask'``, bool ``[N, M]``, True where a query attends to a key; ``'indices'``, int64
            ``[N, K]``, the keys of each query padded by -1; ``'edge_index'``, int64 ``[2, E]``,
            keys over queries; or ``'block_mask'``, FlexAttention's. Bias and gate have the form of
            the edges and a last dimension for the heads: ``[num_edges, H]``, ``[N, M, H]`` or ``[N,
            K, H]``; with layout ``'bhnc'`` heads are first, ``[1, H, N, M]``.
        layout (str): Layout of query, key, value and output: ``'nhc'``, ``[nodes, heads,
            channels]``; ``'bhnc'``, ``[1, heads, nodes, channels]``; or ``'bnhc'``.
        graphs (Mapping[str, BipartiteGraph], optional): The only graphs that the function knows,
            such as the window of a local attention. It may ignore its argument ``edges``.
        checks (Collection[str], optional): Names of the checks to make; all if omitted.
        device (torch.device or str): Where the function runs.
        time_limit (float): Seconds for each case.
        isolated (bool): Whether to run the function in forked processes. A crash, or an endless
            loop in compiled code, then ends only its own process and is reported. On CUDA, the
            calling process must not have used CUDA yet.

        on_fail (str): ``'raise'``, to raise an error if a check fails, or ``'report'``, to return
            the report in any case.

    Returns:
        Report, a table if printed.

    Raises:
        WrongAttention: A check failed. Its attribute ``report`` is the report.

    Example:
        >>> import torch
        >>> from graphattn.testing import check_attention
        >>> def attention(query, key, value, mask):
        ...     logits = torch.einsum('nhc,mhc->nmh', query, key) / query.size(2) ** 0.5
        ...     weights = logits.masked_fill(~mask.unsqueeze(2), -torch.inf).softmax(1)
        ...     return torch.einsum('nmh,mhc->nhc', weights, value)
        >>> report = check_attention(attention, form='mask', checks=['nothing to attend to'],
        ...                          on_fail='report')
        >>> report.findings[0].case, report.findings[0].undeclared
        ('idle nodes', ('empty_rows',))
    """
    check_choice('form', form, FORMS)
    check_choice('layout', layout, LAYOUTS)
    check_choice('on_fail', on_fail, ('raise', 'report'))
    names = [check.name for check in CHECKS]
    for name in checks or ():
        check_choice('checks', name, names)
    supports = Supports() if supports is None else supports
    for name in supports.limits:
        check_choice('limits', name, names)
    kernel = Kernel(function, supports, form, layout, torch.device(device))
    setting = Setting(supports, None if graphs is None else dict(graphs))
    trials = [Trial(check, case) for check in CHECKS if checks is None or check.name in checks
              for case in check.cases(setting)]
    run = run_apart if isolated else run_here
    report = Report(name_of(function), list(run(Examiner(kernel, time_limit), trials)))
    if on_fail == 'raise' and not report.is_right:
        raise WrongAttention(report)
    return report
