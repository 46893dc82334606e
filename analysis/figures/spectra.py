"""Diffuser, Figures S.7 to S.9: what diffusion does to eigenvalues, and those of the patterns."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from analysis.adjacency import symmetric_adjacency
from analysis.diffusion import heat_response, operator, ppr_response, resolvent
from analysis.figures.picture import Picture, Row
from analysis.spectrum import Laplacian
from graphattn.patterns import (
    Full,
    GlobalTokens,
    OverlappingBlocks,
    Pattern,
    RandomBlocks,
    RandomKeys,
    SlidingWindow,
    get,
)

_TELEPORT, _HOPS = 0.1, 5  # Table S.10
_NODES = 2048
_SIZES = (32, 64, 128)
_BLOCKS = 3  # random ones for each block of queries, as BigBird has them


# Figure S.7 ######################################################################################

def diffuser_s7(seed: int = 0) -> Picture:
    r"""The eigenvalue :math:`\tilde\lambda` after diffusion against :math:`\lambda` before it.

    .. math::
        \tilde\lambda = 1 - \frac{a}{1 - (1 - a)(1 - \lambda)}
        \quad \text{(PPR)}, \qquad
        \tilde\lambda = 1 - e^{-\lambda t} \quad \text{(heat)}

    Both are tried on a cycle of twelve tokens, whose walk has the eigenvectors
    :math:`\cos(2 \pi j i / 12)` and the eigenvalues :math:`\lambda = 1 - \cos(2 \pi j / 12)`.

    Args:
        seed (int): Of no effect: nothing is random here.

    Returns:
        Picture.

    Source: Feng et al., "Diffuser" (2023), Figure S.7, Eq. S.7 and S.10.
    """
    rows = []
    matrices = _diffusions_of_cycle()
    for frequency in (2, 3, 4, 6):  # at the last lambda = 2
        value, of_cycle = _on_cycle(matrices, frequency)
        rows += [
            Row(f'PPR, a = {_TELEPORT:g}: lambda = {value:g} becomes',
                1 - _TELEPORT / (1 - (1 - _TELEPORT) * (1 - value)), of_cycle['ppr']),
            Row(f'PPR, a = {_TELEPORT:g}, K = {_HOPS}: lambda = {value:g} becomes', None,
                of_cycle['hops']),
            Row(f'heat, t = 5: lambda = {value:g} becomes', 1 - np.exp(-5 * value).item(),
                of_cycle['heat'])]
    fixed_point = (1 - 2 * _TELEPORT) / (1 - _TELEPORT)
    rows.append(Row(f'PPR, a = {_TELEPORT:g}: the lambda that stays', None, fixed_point))
    remarks = (
        'Proposition 5 holds for infinitely many hops and real eigenvalues. The K = 5 hops of the '
        f'model leave a weight of {(1 - _TELEPORT)**_HOPS:.2f} on the last power, and '
        f'lambda = 2 becomes {of_cycle["hops"]:.2f} and not {of_cycle["ppr"]:.3f}: that is no '
        'low-pass filter. Attention is not symmetric either, and its eigenvalues are '
        'complex.',
        'The values of a and t in the figure are not in the text. a = 0.1 and K = 5 are those of '
        'Table S.10; the others are ours.')
    return Picture('Diffuser, Figure S.7: eigenvalues before and after diffusion', tuple(rows),
                   remarks, _draw_responses())


def _diffusions_of_cycle() -> dict[str, np.ndarray]:
    tokens = np.arange(12)
    cycle = np.zeros((12, 12))
    cycle[tokens, tokens - 1] = cycle[tokens - 1, tokens] = 0.5
    attention = sp.csr_array(cycle)
    return {'none': cycle, 'ppr': resolvent(attention, _TELEPORT),
            'hops': operator(attention, _HOPS, _TELEPORT),
            'heat': scipy.linalg.expm(-5 * (np.eye(12) - cycle))}


def _on_cycle(matrices: dict[str, np.ndarray], frequency: int) -> tuple[float, dict[str, float]]:
    """The Laplacian's eigenvalue at a frequency, and what each kernel makes of it."""
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
    ppr.plot(value, 1 - ppr_response(1 - value, _TELEPORT, _HOPS), '--', color='C1',
             label=f'a = {_TELEPORT:g}, K = {_HOPS}')
    for number, time in enumerate((1., 2., 5., 10.)):
        heat.plot(value, 1 - heat_response(1 - value, time), color=f'C{number}',
                  label=f't = {time:g}')
    ppr.set(title='PPR kernel (dashed: what the model computes)',
            ylabel=r'eigenvalue $\tilde\lambda$ after diffusion')
    heat.set_title('heat kernel')
    for axes in (ppr, heat):
        axes.plot(value, value, ':', color='0.5', label='no diffusion')
        axes.set(xlabel=r'eigenvalue $\lambda$ of the graph', xlim=(0, 2), ylim=(0, 2.05))
        axes.grid(alpha=0.3)
        axes.legend(fontsize='small', loc='upper left')
    figure.suptitle('Diffuser, Fig. S.7: diffusion and the eigenvalues of the Laplacian')
    return figure


# Figures S.8 and S.9 #############################################################################

def diffuser_s8(seed: int = 0) -> Picture:
    """Spectra of local, global, random and full attention on 2,048 tokens.

    Eigenvalues are those of the normalised Laplacian of the union of both directions.

    Args:
        seed (int): Of the random patterns.

    Returns:
        Picture.

    Source: Feng et al., "Diffuser" (2023), Figure S.8 and App. B, Spectral Analysis.
    """
    panels = {
        '(a) local': {w: OverlappingBlocks(w) for w in _SIZES},
        '(b) global, block': {b: GlobalTokens(b) for b in _SIZES},
        '(c) global, token': {b: GlobalTokens(b, random=True) for b in _SIZES},
        '(d) random, block': {b: RandomBlocks(_BLOCKS, b) for b in _SIZES},
        '(e) random, token': {b: RandomKeys(_BLOCKS * b) for b in _SIZES},
        '(f) full': {_NODES: Full() - SlidingWindow(0)},
    }
    spectra = _spectra({(panel, size): pattern for panel, of_panel in panels.items()
                        for size, pattern in of_panel.items()}, seed)
    by_panel = {panel: {size: spectra[panel, size] for size in of_panel}
                for panel, of_panel in panels.items()}
    rows = [Row(f'{panel} {size}, lambda_2', None, float(values[1]))
            for (panel, size), values in spectra.items()]
    local, block, token, random_block, random_token, full = by_panel.values()
    alike = max(float(np.abs(block[size] - token[size]).max()) for size in _SIZES)
    rows += [
        Row('all eigenvalues within [0, 2]', True,
            all(-1e-9 < values[0] and values[-1] < 2 + 1e-9 for values in spectra.values())),
        Row('all graphs connected', True,
            all(bool(values[1] > 1e-9) for values in spectra.values())),
        Row('global expands better than local', True, _is_larger(token, local)),
        Row('random expands better than local', True, _is_larger(random_token, local)),
        Row('token-wise expands better, random', True, _is_larger(random_token, random_block)),
        Row('token-wise expands better, global', True, _is_larger(token, block)),
        Row('largest difference of (b) and (c)', None, alike),
        Row('lambda_n of local nearer to full than global', True,
            _is_nearer(local, token, full[_NODES])),
        Row('lambda_n of random nearer to full than global', True,
            _is_nearer(random_token, token, full[_NODES]))]
    remarks = (
        'Token-wise global attention cannot expand better than block-wise with as many global '
        'tokens: the one graph is the other with its tokens renamed, and a spectrum knows no '
        'names. For random attention the claim holds.',
        'That 0 is the smallest eigenvalue says nothing of connectedness: it always is. That it '
        'occurs once does.',
        'Window and block sizes of the figure are not in the text; those drawn are ours, with the '
        f'{_BLOCKS} random blocks of BigBird. Directed graphs count as the union of both '
        'directions, of which the paper does not speak.')
    return Picture('Diffuser, Figure S.8: spectra of kinds of attention at 2,048 tokens',
                   tuple(rows), remarks, _draw_kinds(by_panel))


def diffuser_s9(seed: int = 0) -> Picture:
    """Spectra of Longformer, BigBird and Diffuser on 2,048 tokens, and after diffusion.

    As the symmetric walk :math:`D^{-1} A` has real eigenvalues :math:`1 - \\lambda`, those after
    K hops follow from them by Eq. S.7.

    Args:
        seed (int): Of the random patterns.

    Returns:
        Picture.

    Source: Feng et al., "Diffuser" (2023), Figure S.9 and App. B, Spectral Analysis.
    """
    spectra = _spectra({
        'Longformer': SlidingWindow(256),
        'Longformer, 1 global': get('longformer', radius=256, num_global=1),
        'BigBird': get('bigbird'),
        'Diffuser': get('diffuser'),
        'Diffuser, 128/96/96': get('diffuser', window=128, num_global=96, num_random=96),
        'random': get('diffuser'),
        'evenly spaced': (OverlappingBlocks(64) | GlobalTokens(64, random=True)
                          | RandomKeys(64, spacing='uniform')),
    }, seed)
    diffuser = spectra['Diffuser']
    hops = {'none': diffuser} | {
        f'K = {count}': 1 - ppr_response(1 - diffuser, _TELEPORT, count)
        for count in (1, 2, 3, 5, 10)} | {'infinite': 1 - ppr_response(1 - diffuser, _TELEPORT)}
    gap = {name: float(values[1]) for name, values in spectra.items()}
    after = {name: float(np.sort(values)[1]) for name, values in hops.items()}
    rows = [Row(f'(a) {name}, lambda_2', None, gap[name])
            for name in list(spectra)[:5]]
    rows += [
        Row('(a) gap of Diffuser above Longformer and BigBird', True,
            gap['Diffuser'] > max(gap['Longformer'], gap['Longformer, 1 global'],
                                  gap['BigBird'])),
        Row('(b) random keys, lambda_2', None, gap['random']),
        Row('(b) evenly spaced keys, lambda_2', None, gap['evenly spaced']),
        Row('(b) randomness improves expansion', True, gap['random'] > gap['evenly spaced'])]
    rows += [Row(f'(c) diffusion {name}, least lambda above 0', None, value)
             for name, value in after.items()]
    finite = [after[name] for name in list(after)[1:-1]]
    rows += [
        Row('(c) expansion rises with every step from K = 1 on', True,
            all(first < second for first, second in zip(finite, finite[1:]))),
        Row('(c) K = 1 expands better than no diffusion', True, after['K = 1'] > after['none']),
        Row('(c) saturates: K = 5 within 1 % of infinitely many', True,
            abs(after['K = 5'] / after['infinite'] - 1) < 0.01)]
    remarks = (
        f'One hop multiplies every eigenvalue by {1 - _TELEPORT:g} and lowers the gap.',
        'Longformer has a band of 256 to either side, without global tokens as in Table S.8 or '
        'with one; BigBird blocks of 64, 2 global and 3 random. Diffuser has 64/64/64 of '
        'Table S.10; its densities in Table S.1 are those of 128/96/96.',
        'The union of both directions is taken, of which the paper does not speak. Attention as '
        'trained is not symmetric, and its eigenvalues are complex.')
    return Picture('Diffuser, Figure S.9: spectra of models and their variants at 2,048 tokens',
                   tuple(rows), remarks, _draw_models(spectra, hops))


def _spectra(patterns: dict[object, Pattern], seed: int) -> dict[object, np.ndarray]:
    """All eigenvalues, ascending, float64 ``[2048]``; equal patterns are solved once."""
    solved = {}
    for pattern in tqdm(dict.fromkeys(patterns.values()), desc='spectra', unit='graph', delay=2,
                        leave=False):
        adjacency = symmetric_adjacency(pattern.build(_NODES, seed=seed))
        solved[pattern] = scipy.linalg.eigvalsh(Laplacian(adjacency).matrix.toarray(),
                                                overwrite_a=True, check_finite=False)
    return {name: solved[pattern] for name, pattern in patterns.items()}


def _is_larger(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> bool:
    """Whether lambda_2 is, by more than rounding, at every size."""
    return all(bool(one[size][1] > other[size][1] + 1e-9) for size in _SIZES)


def _is_nearer(one: dict[int, np.ndarray], other: dict[int, np.ndarray],
               full: np.ndarray) -> bool:
    return all(abs(one[size][-1] - full[-1]) < abs(other[size][-1] - full[-1])
               for size in _SIZES)


def _draw_kinds(by_panel: dict[str, dict[int, np.ndarray]]) -> Figure:
    figure = Figure(figsize=(8.6, 5.8), layout='constrained')
    grid = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, (panel, of_panel) in zip(grid.flat, by_panel.items()):
        for number, (size, values) in enumerate(of_panel.items()):
            word = 'window' if 'local' in panel else 'block'
            kind = 'complete graph' if len(of_panel) == 1 else f'{word} {size}'
            _draw_spectrum(axes, values, rf'{kind}: $\lambda_2$ = {values[1]:.2g}', f'C{number}')
        axes.set_title(panel, fontsize='medium')
        axes.legend(fontsize='small', loc='upper left')
        axes.set(ylim=(-0.05, 2.6), yticks=[0, 0.5, 1, 1.5, 2])
    for axes in grid[1]:
        axes.set_xlabel('index i')
    for axes in grid[:, 0]:
        axes.set_ylabel(r'eigenvalue $\lambda_i$')
    figure.suptitle(r'Diffuser, Fig. S.8: normalised Laplacians, n = 2,048 '
                    r'(dots: $\lambda_1, \lambda_2, \lambda_{n-1}, \lambda_n$)')
    return figure


def _draw_models(spectra: dict[str, np.ndarray], hops: dict[str, np.ndarray]) -> Figure:
    figure = Figure(figsize=(8.6, 4.4), layout='constrained')
    models, variants, steps = figure.subplots(1, 3)

    def label(name: str, lambda_2: float) -> str:
        return rf'{name}: $\lambda_2$ = {lambda_2:.2g}'

    for number, name in enumerate(('Longformer', 'BigBird', 'Diffuser')):
        _draw_spectrum(models, spectra[name], label(name, spectra[name][1]), f'C{number}')
    for number, name in enumerate(('random', 'evenly spaced')):
        _draw_spectrum(variants, spectra[name], label(name, spectra[name][1]), f'C{2 + number}')
    for number, name in enumerate(('none', 'K = 1', 'K = 3', 'K = 5', 'infinite')):
        values = np.sort(hops[name])
        _draw_spectrum(steps, values[1:], label(name, values[1]), f'C{number}', first=2)
    for axes, title, limits in ((models, '(a) models', (-0.05, 1.9)),
                                (variants, '(b) random keys of Diffuser', (-0.05, 1.9)),
                                (steps, r'(c) diffusion, without $\lambda_1$', (0.55, 1.6))):
        axes.set_title(title, fontsize='medium')
        axes.set(xlabel='index i', ylim=limits)
        axes.legend(fontsize='small', loc='upper left')
    models.set_ylabel(r'eigenvalue $\lambda_i$')
    figure.suptitle('Diffuser, Fig. S.9: normalised Laplacians, n = 2,048')
    return figure


def _draw_spectrum(axes: Axes, values: np.ndarray, label: str, color: str,
                   first: int = 1) -> None:
    index = np.arange(first, first + len(values))
    axes.plot(index, values, color=color, linewidth=1.4, label=label)
    ends = [0, 1, -2, -1] if first == 1 else [0, -2, -1]
    axes.plot(index[ends], values[ends], 'o', color=color, markersize=4)
    axes.grid(alpha=0.3)
