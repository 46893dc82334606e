"""Diffuser, Figure S.7: eigenvalues before and after diffusion."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from matplotlib.figure import Figure

from analysis.diffusion import heat_response, operator, ppr_response, resolvent
from analysis.figures.picture import Picture, Row

TELEPORT, HOPS = 0.1, 5  # Table S.10


def diffuser_s7(seed: int = 0) -> Picture:
    r"""Draw the eigenvalue :math:`\tilde\lambda` after diffusion against :math:`\lambda` before it.

    .. math::
        \tilde\lambda = 1 - \frac{a}{1 - (1 - a)(1 - \lambda)}
        \quad \text{(PPR)}, \qquad
        \tilde\lambda = 1 - e^{-\lambda t} \quad \text{(heat)}

    Both formulas are checked on a cycle of twelve tokens. The walk on the cycle has the
    eigenvectors :math:`\cos(2 \pi j i / 12)` and the eigenvalues
    :math:`\lambda = 1 - \cos(2 \pi j / 12)`.

    Args:
        seed (int): Unused, because nothing is random.

    Returns:
        Picture.

    Source: Feng et al., "Diffuser" (2023), Figure S.7, Eq. S.7 and S.10.
    """
    rows = []
    matrices = _diffusions_of_cycle()
    for frequency in (2, 3, 4, 6):  # the last has lambda = 2
        value, of_cycle = _on_cycle(matrices, frequency)
        rows += [
            Row(f'PPR, a = {TELEPORT:g}: lambda = {value:g} becomes',
                1 - TELEPORT / (1 - (1 - TELEPORT) * (1 - value)), of_cycle['ppr']),
            Row(f'PPR, a = {TELEPORT:g}, K = {HOPS}: lambda = {value:g} becomes', None,
                of_cycle['hops']),
            Row(f'heat, t = 5: lambda = {value:g} becomes', 1 - np.exp(-5 * value).item(),
                of_cycle['heat'])]
    fixed_point = (1 - 2 * TELEPORT) / (1 - TELEPORT)
    rows.append(Row(f'PPR, a = {TELEPORT:g}: the lambda that stays', None, fixed_point))
    remarks = (
        f'Proposition 5 holds for infinitely many hops and real eigenvalues. The K = 5 hops of the '
        f'model leave a weight of {(1 - TELEPORT)**HOPS:.2f} on the last power, and lambda = 2 '
        f'becomes {of_cycle["hops"]:.2f}, not {of_cycle["ppr"]:.3f}, so it is not a low-pass '
        f'filter. Moreover, attention is not symmetric, and its eigenvalues are complex.',
        'The text does not state the values of a and t in the figure. a = 0.1 and K = 5 are from '
        'Table S.10; the others are ours.')
    return Picture('Diffuser, Figure S.7: eigenvalues before and after diffusion', tuple(rows),
                   remarks, _draw_responses())


def _diffusions_of_cycle() -> dict[str, np.ndarray]:
    tokens = np.arange(12)
    cycle = np.zeros((12, 12))
    cycle[tokens, tokens - 1] = cycle[tokens - 1, tokens] = 0.5
    attention = sp.csr_array(cycle)
    return {'none': cycle, 'ppr': resolvent(attention, TELEPORT),
            'hops': operator(attention, HOPS, TELEPORT),
            'heat': scipy.linalg.expm(-5 * (np.eye(12) - cycle))}


def _on_cycle(matrices: dict[str, np.ndarray], frequency: int) -> tuple[float, dict[str, float]]:
    """Return an eigenvalue of the Laplacian of a cycle of twelve tokens, and the same eigenvalue
    after each kind of diffusion, as a dict.

    Args:
        matrices: The walk on the cycle, under the name ``'none'``, and the matrix of each kind of
            diffusion, ``[12, 12]``.
        frequency: Number of periods of the eigenvector around the cycle.
    """
    vector = np.cos(2 * np.pi * frequency * np.arange(12) / 12)
    value = {name: round(1 - float(vector @ matrix @ vector / (vector @ vector)), 12)
             for name, matrix in matrices.items()}
    return value.pop('none'), value


def _draw_responses() -> Figure:
    figure = Figure(figsize=(8.6, 4.2), layout='constrained')
    ppr, heat = figure.subplots(1, 2, sharey=True)
    value = np.linspace(0, 2, 401)
    for number, teleport in enumerate((0.05, 0.1, 0.2, 0.5)):
        ppr.plot(value, 1 - ppr_response(1 - value, teleport), color=f'C{number}',
                 label=f'a = {teleport:g}')
    ppr.plot(value, 1 - ppr_response(1 - value, TELEPORT, HOPS), '--', color='C1',
             label=f'a = {TELEPORT:g}, K = {HOPS}')
    for number, time in enumerate((1., 2., 5., 10.)):
        heat.plot(value, 1 - heat_response(1 - value, time), color=f'C{number}',
                  label=f't = {time:g}')
    ppr.set(title='PPR kernel (dashed: what the model computes)',
            ylabel=r'eigenvalue $\tilde\lambda$ after diffusion')
    heat.set_title('heat kernel')
    for axes in (ppr, heat):
        axes.plot(value, value, ':', color='0.5', label='no diffusion')
        axes.set(xlabel=r'eigenvalue $\lambda$ of the graph', xlim=(0, 2), ylim=(0, 2.05))
        axes.grid()
        axes.legend(loc='upper left')
    figure.suptitle('Diffuser, Fig. S.7: diffusion and the eigenvalues of the Laplacian')
    return figure
