"""Diffuser, Figures S.8 and S.9: eigenvalues of patterns, before and after diffusion."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from analysis.adjacency import symmetric_adjacency
from analysis.diffusion import ppr_response
from analysis.figures.picture import Picture, Row
from analysis.figures.responses import TELEPORT
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

_NODES = 2048
_SIZES = (32, 64, 128)
_BLOCKS = 3  # number of random blocks per block of queries, as in BigBird


def diffuser_s8(seed: int = 0) -> Picture:
    """Draw spectra of local, global, random and full attention on 2,048 tokens.

    The spectra are those of the normalised Laplacian. A graph is made undirected by the union of
    both directions.

    Args:
        seed (int): Seed of the random patterns.

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
        'tokens: the graphs are equal up to a permutation of tokens, so their spectra are equal. '
        'For random attention the claim holds.',
        'The smallest eigenvalue is always 0, so it does not show connectedness; its multiplicity '
        'of 1 does.',
        f'The text does not state window and block sizes of the figure, so they are ours, with the '
        f'{_BLOCKS} random blocks of BigBird. Directed graphs are replaced by the union of both '
        f'directions, which the paper does not specify.')
    return Picture('Diffuser, Figure S.8: spectra of kinds of attention at 2,048 tokens',
                   tuple(rows), remarks, _draw_kinds(by_panel))


def diffuser_s9(seed: int = 0) -> Picture:
    r"""Draw spectra of Longformer, BigBird and Diffuser on 2,048 tokens, before and after
    diffusion.

    The walk :math:`D^{-1} A` of a symmetric graph has real eigenvalues :math:`1 - \lambda`, so the
    eigenvalues after K hops follow from Eq. S.7.

    Args:
        seed (int): Seed of the random patterns.

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
        f'K = {count}': 1 - ppr_response(1 - diffuser, TELEPORT, count)
        for count in (1, 2, 3, 5, 10)} | {'infinite': 1 - ppr_response(1 - diffuser, TELEPORT)}
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
        f'One hop multiplies every eigenvalue by {1 - TELEPORT:g} and lowers the gap.',
        'Longformer has a band of 256 to either side, without global tokens as in Table S.8 or '
        'with one; BigBird blocks of 64, 2 global and 3 random. Diffuser has 64/64/64 of Table '
        'S.10; its densities in Table S.1 fit 128/96/96.',
        'The union of both directions is used, which the paper does not specify. Trained '
        'attention is not symmetric, and its eigenvalues are complex.')
    return Picture('Diffuser, Figure S.9: spectra of models and their variants at 2,048 tokens',
                   tuple(rows), remarks, _draw_models(spectra, hops))


def _spectra(patterns: dict[object, Pattern], seed: int) -> dict[object, np.ndarray]:
    """Return the eigenvalues of each pattern's normalised Laplacian at 2,048 tokens, ascending,
    float64 ``[2048]``. Equal patterns are solved once."""
    solved = {}
    for pattern in tqdm(dict.fromkeys(patterns.values()), desc='spectra', unit='graph', delay=2,
                        leave=False, disable=None):
        adjacency = symmetric_adjacency(pattern.build(_NODES, seed=seed))
        solved[pattern] = scipy.linalg.eigvalsh(Laplacian(adjacency).matrix.toarray(),
                                                overwrite_a=True, check_finite=False)
    return {name: solved[pattern] for name, pattern in patterns.items()}


def _is_larger(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> bool:
    """Return whether the second eigenvalue of ``one`` is larger than that of ``other`` at every
    size. Both are dicts from sizes to ascending eigenvalues."""
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
        axes.set_title(panel)
        axes.legend(loc='upper left')
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
        axes.set_title(title)
        axes.set(xlabel='index i', ylim=limits)
        axes.legend(loc='upper left')
    models.set_ylabel(r'eigenvalue $\lambda_i$')
    figure.suptitle('Diffuser, Fig. S.9: normalised Laplacians, n = 2,048')
    return figure


def _draw_spectrum(axes: Axes, values: np.ndarray, label: str, color: str,
                   first: int = 1) -> None:
    index = np.arange(first, first + len(values))
    axes.plot(index, values, color=color, linewidth=1.4, label=label)
    ends = [0, 1, -2, -1] if first == 1 else [0, -2, -1]
    axes.plot(index[ends], values[ends], 'o', color=color, markersize=4)
    axes.grid()
