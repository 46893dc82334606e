"""The figures' numbers against what the papers print, and against counts of their own."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.commands import COMMANDS
from analysis.figures import (
    FIGURES,
    diffuser,
    diffuser_s2,
    diffuser_tables,
    sbm_3,
    sbm_6,
    sparsebert_1,
)
from analysis.figures.diffuser import diffuser_parts
from analysis.figures.picture import Picture, Row
from graphattn.patterns import GlobalTokens, get

main = COMMANDS['figures']

pytestmark = pytest.mark.slow


def rows_of(picture: Picture) -> dict[str, Row]:
    rows = {row.quantity: row for row in picture.rows}
    assert len(rows) == len(picture.rows)
    return rows


def remarks_of(picture: Picture) -> str:
    return ' '.join(picture.remarks)


@pytest.fixture(scope='module')
def sparsebert():
    return sparsebert_1()


@pytest.fixture(scope='module')
def tables():
    """Means of two draws instead of eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffuser, '_DRAWS', 2)
        return diffuser_tables()


@pytest.fixture
def small(monkeypatch):
    """Spectra of 256 tokens instead of 2,048; what is claimed of them does not change."""
    monkeypatch.setattr(diffuser, '_NODES', 256)
    monkeypatch.setattr(diffuser, '_SIZES', (8, 16))


# SparseBERT ##########################################################################

@pytest.mark.parametrize('name, computed', [
    ('Star', 96.13), ('LogSparse', 89.83), ('Strided', 70.39), ('Fixed', 72.66),
])
def test_sparsity_is_what_is_printed(sparsebert, name, computed):
    rows = rows_of(sparsebert)
    own, without = (rows[f'{name}{diagonal}, sparsity [%]']
                    for diagonal in ('', ' without diagonal'))
    for row in (own, without):
        assert round(row.computed, 1) == row.printed and row.fitted is None
    assert own.computed == pytest.approx(computed, abs=0.005)
    assert without.computed - computed == pytest.approx(100 / 128, abs=0.01)


def test_bigbird_is_what_is_printed_up_to_its_draws(sparsebert):
    row = rows_of(sparsebert)['BigBird, sparsity [%]']
    assert row.computed == pytest.approx(row.printed, abs=0.15)


@pytest.mark.parametrize('seed', [0, 3])
def test_longformer_as_stated_is_not_as_printed(seed):
    row = rows_of(sparsebert_1(seed))['Longformer, sparsity [%]']
    assert (row.printed, row.computed) == (88.7, pytest.approx(93.1, abs=0.1))
    assert row.fitted == pytest.approx(88.7, abs=0.1)
    without = rows_of(sparsebert_1(seed))['Longformer without diagonal, sparsity [%]']
    assert without.fitted == pytest.approx(without.printed, abs=0.1)


def test_sparsebert_says_what_cannot_be_reproduced(sparsebert):
    assert '93.1 % of the pairs, not 88.7 %' in remarks_of(sparsebert)
    assert '94.5 %' in remarks_of(sparsebert)  # LogSparse, causal
    assert len(sparsebert.figure.axes) == 6
    assert 'printed 88.7' in sparsebert.figure.axes[4].get_title()


# SBM-Transformer #####################################################################

def test_only_a_rectangle_reaches_probability_1():
    rows = rows_of(sbm_3())
    inside = rows['(b) groups: probability inside blocks']
    assert inside.computed == pytest.approx(1 / 3, abs=0.01)
    assert inside.fitted == pytest.approx(1, abs=0.01)
    assert rows['(b) groups: probability outside'].computed < 0.01
    assert rows['(a) one place: probability'].computed > 0.99
    assert rows['(a) one place, the origin: probability'].computed == pytest.approx(0.25)
    assert rows['(c) clusters far away: probability'].computed < 0.01
    assert rows['a rectangle: probability inside'].computed > 0.99
    assert rows['a rectangle: probability outside'].computed < 0.01
    assert 'a rectangle, rows times columns' in remarks_of(sbm_3())


@pytest.mark.parametrize('seed', range(3))
def test_mean_inside_blocks_is_at_most_1_over_k(seed):
    rows = rows_of(sbm_3(seed))
    assert rows['(b) groups: probability inside blocks'].computed <= 1 / 3 + 1e-6
    assert rows['(b) groups: mean inside, at most, for k = 128'].computed == 1 / 128


def test_lemma_2_takes_five_layers_as_printed_and_three_in_another_order():
    rows = rows_of(sbm_6())
    layers = rows['layers until all tokens know all, s']
    assert (layers.printed, layers.computed, layers.fitted) == (3, 5, 3)
    assert rows['patterns that Eq. 5 can give probability 1'].computed == 2
    assert rows['clusters of floor(ik/n), i = 1..n'].computed == 5
    edges = rows['edges of the three patterns'].computed
    assert edges == 16**2 // 4 + 2 * 4 * 16 + 2 * (16 - 4)
    assert edges > rows['least edges for any k, 2 sqrt(2) n^(3/2)'].computed
    assert rows['Hamiltonian path in the union'].computed is True


# Diffuser: densities #################################################################

def test_parts_are_those_of_the_authors():
    window, num_global, num_random = 64, 1024, 8
    parts = diffuser_parts(window, num_global, num_random, 4096)
    assert int(parts['random'].sum()) == 4096 * num_random
    assert len(set(parts['random'].sum(axis=1))) > 1  # of all pairs at once, not of each row
    hub = parts['global'].all(axis=1)
    assert hub.sum() == num_global and not hub[:window].any()
    assert (parts['global'] == (hub[:, None] | hub)).all()
    assert np.isin(parts['local'].sum(axis=1), (64, 96)).all()


def test_shorter_inputs_use_the_corner():
    whole, corner = (diffuser_parts(64, 64, 16, n, seed=5) for n in (4096, 1024))
    for name, part in corner.items():
        assert (part == whole[name][:1024, :1024]).all()
    longer = diffuser_parts(64, 64, 16, 5120)
    assert longer['random'].shape == (5120, 5120)
    assert longer['random'].sum() == 5120 * 16
    assert longer['global'].all(axis=1).sum() == 64


def test_every_pair_is_counted_once():
    parts = diffuser_parts(128, 96, 96, 1024)
    total, *each = diffuser._densities(parts)
    assert total == pytest.approx(sum(each))
    assert total == pytest.approx(100 * np.logical_or.reduce(list(parts.values())).mean())


def test_densities_of_the_authors_draw():
    """14.2 % at 1,024 tokens, which has 21 global tokens where 15 are expected."""
    hub = np.isin(np.arange(1024), 100 + 40 * np.arange(21))
    parts = diffuser_parts(64, 64, 64, 1024) | {'global': hub[:, None] | hub}
    assert diffuser._densities(parts)[0] == pytest.approx(14.2, abs=0.1)


@pytest.mark.parametrize('n, stated, fitted', [(2048, 9.2, 15.4), (4096, 6.8, 11.2)])
def test_densities_of_stated_and_fitted_settings(tables, n, stated, fitted):
    row = rows_of(tables)[f'Diffuser, n = {n}, total [%]']
    assert row.computed == pytest.approx(stated, abs=0.4 if n == 2048 else 0.05)
    assert row.fitted == pytest.approx(fitted, abs=0.4 if n == 2048 else 0.05)


@pytest.mark.parametrize('n', [1024, 2048, 4096, 8192])
def test_128_96_96_come_to_the_printed_parts(tables, n):
    rows = rows_of(tables)
    for part in ('total', 'local', 'global', 'random'):
        row = rows[f'Diffuser, n = {n}, {part} [%]']
        by_chance = part in ('total', 'global') and n < 4096
        share = n / 4096  # of the 96 global tokens of 4,096, each 200 / n % of the pairs
        spread = 200 / n * (96 * share * (1 - share)) ** 0.5
        assert row.fitted == pytest.approx(row.printed, abs=3 * spread if by_chance else 0.051)
        assert row.printed - row.computed > 0.3


@pytest.mark.parametrize('row, computed', [
    *((f'Longformer, n = {n}, total [%]', band)
      for n, band in ((1024, 43.8), (2048, 23.5), (4096, 12.1), (8192, 6.2))),
    *((f'BigBird, n = {n}, local [%]', real)
      for n, real in ((2048, 9.2), (4096, 4.6), (8192, 2.3))),
])
def test_the_tables_count_overlapping_blocks(tables, row, computed):
    row = rows_of(tables)[row]
    assert row.computed == pytest.approx(computed, abs=0.051)
    assert row.fitted == pytest.approx(row.printed, abs=0.051)


def test_bigbird_as_published_is_the_preset(tables):
    row = rows_of(tables)['BigBird, n = 1024, total [%]']
    means = [100 * get('bigbird').build(1024, seed=seed).density() for seed in range(10)]
    assert row.computed == pytest.approx(np.mean(means), abs=0.5)
    at_8192 = [rows_of(tables)[f'BigBird, n = 8192, {part} [%]'] for part in ('global', 'random')]
    assert at_8192[0].fitted == pytest.approx(at_8192[1].printed, abs=0.1)  # swapped
    assert at_8192[1].fitted == pytest.approx(at_8192[0].printed, abs=0.1)


def test_lra_average(tables):
    rows = rows_of(tables)
    assert rows['LRA average of Diffuser, Table S.6 [%]'].computed == pytest.approx(57.156)
    assert rows['LRA average of BigBird, Table S.6 [%]'].computed == pytest.approx(55.012)
    assert rows['LRA, Diffuser over BigBird [points]'].computed == pytest.approx(2.144)
    assert '128/96/96 do (fitted)' in remarks_of(tables) and 'LRA' in remarks_of(tables)


def test_one_draw_at_1024_tokens():
    picture = diffuser_s2()
    rows = rows_of(picture)
    assert rows['local, density [%]'].computed == pytest.approx(9.18, abs=0.005)
    assert rows['local, density [%]'].fitted == pytest.approx(17.97, abs=0.005)
    assert rows['random, density [%]'].fitted == pytest.approx(1.9, abs=0.05)
    assert rows['total, density [%]'].fitted == pytest.approx(24, abs=3)
    assert len(picture.figure.axes) == 8
    other = rows_of(diffuser_s2(seed=1))
    assert other['total, density [%]'].computed != rows['total, density [%]'].computed


# Diffuser: spectra ###################################################################

def test_diffusion_of_eigenvalues():
    rows = rows_of(FIGURES['diffuser-s7']())
    for row in rows.values():
        if row.printed is not None:
            assert row.computed == pytest.approx(row.printed, abs=1e-9)
    assert rows['PPR, a = 0.1: lambda = 2 becomes'].computed == pytest.approx(1.8 / 1.9)
    assert rows['PPR, a = 0.1, K = 5: lambda = 2 becomes'].computed == pytest.approx(1.51, abs=.01)
    stays = rows['PPR, a = 0.1: the lambda that stays'].computed
    assert 1 - 0.1 / (1 - 0.9 * (1 - stays)) == pytest.approx(stays)


def test_kinds_of_attention(small):
    rows = rows_of(FIGURES['diffuser-s8']())
    claims = {name: row.computed for name, row in rows.items() if row.printed is True}
    assert claims.pop('token-wise expands better, global') is False
    assert len(claims) == 7 and all(value is True for value in claims.values())
    assert rows['largest difference of (b) and (c)'].computed < 1e-9
    assert rows['(f) full 256, lambda_2'].computed == pytest.approx(256 / 255)
    assert rows['(c) global, token 8, lambda_2'].computed == pytest.approx(1)


def test_eigenvalues_of_global_tokens(small):
    """All but the ends are 1; the trace, without the hubs' self-loops of 1/n, gives the last."""
    n, g = 256, 16
    values = diffuser._spectra({'hubs': GlobalTokens(g)}, 0)['hubs']
    assert values[0] == pytest.approx(0, abs=1e-12)
    assert values[1:-1] == pytest.approx(np.ones(n - 2))
    assert values[-1] == pytest.approx(2 - g / n)


def test_models_and_variants(monkeypatch):
    monkeypatch.setattr(diffuser, '_NODES', 768)
    rows = rows_of(FIGURES['diffuser-s9']())
    claims = {name: row.computed for name, row in rows.items() if row.printed is True}
    assert claims.pop('(c) K = 1 expands better than no diffusion') is False
    assert len(claims) == 4 and all(value is True for value in claims.values())
    before, after = (rows[f'(c) diffusion {name}, least lambda above 0'].computed
                     for name in ('none', 'K = 1'))
    assert after == pytest.approx(0.9 * before)
    infinite = rows['(c) diffusion infinite, least lambda above 0'].computed
    assert infinite == pytest.approx(0.9 * before / (0.1 + 0.9 * before))


# The command #########################################################################


def test_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('analysis.figures.FIGURES', {
        name: FIGURES[name] for name in ('sbm-3', 'sbm-6')})
    main(['all', '--out', str(tmp_path)])
    captured = capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'sbm-3.json', 'sbm-3.png', 'sbm-6.json', 'sbm-6.png']
    assert captured.err == ''  # no bar where there is no terminal
    assert 'Figure 3' in captured.out and 'Figure 6' in captured.out
