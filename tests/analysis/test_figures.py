"""The figures' numbers against what the papers print, and against counts of their own."""

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
from graphattn.patterns import get

main = COMMANDS['figures']

pytestmark = pytest.mark.slow


def rows_of(picture: Picture) -> dict[str, Row]:
    rows = {row.quantity: row for row in picture.rows}
    assert len(rows) == len(picture.rows)
    return rows


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


def test_sparsity_is_what_is_printed_but_that_of_longformer(sparsebert):
    rows = rows_of(sparsebert)
    for name, computed in (('Star', 96.13), ('LogSparse', 89.83), ('Strided', 70.39),
                           ('Fixed', 72.66)):
        own, without = (rows[f'{name}{diagonal}, sparsity [%]']
                        for diagonal in ('', ' without diagonal'))
        for row in (own, without):
            assert round(row.computed, 1) == row.printed and row.fitted is None
        assert own.computed == pytest.approx(computed, abs=0.005)
        assert without.computed - computed == pytest.approx(100 / 128, abs=0.01)
    bigbird = rows['BigBird, sparsity [%]']  # by its draws
    assert bigbird.computed == pytest.approx(bigbird.printed, abs=0.15)
    row = rows['Longformer, sparsity [%]']
    assert (row.printed, row.computed) == (88.7, pytest.approx(93.1, abs=0.1))
    assert row.fitted == pytest.approx(88.7, abs=0.1)
    without = rows['Longformer without diagonal, sparsity [%]']
    assert without.fitted == pytest.approx(without.printed, abs=0.1)
    assert len(sparsebert.figure.axes) == 6


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


def test_parts_are_those_of_the_authors():
    window, num_global, num_random = 64, 1024, 8
    parts = diffuser_parts(window, num_global, num_random, 4096)
    assert int(parts['random'].sum()) == 4096 * num_random
    assert len(set(parts['random'].sum(axis=1))) > 1  # of all pairs at once, not of each row
    hub = parts['global'].all(axis=1)
    assert hub.sum() == num_global and not hub[:window].any()
    assert (parts['global'] == (hub[:, None] | hub)).all()
    assert np.isin(parts['local'].sum(axis=1), (64, 96)).all()


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


def test_the_tables_count_overlapping_blocks(tables):
    for name, computed in (('Longformer, n = 1024, total', 43.8), ('BigBird, n = 8192, local', 2.3),
                           ('Longformer, n = 4096, total', 12.1)):
        row = rows_of(tables)[f'{name} [%]']
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


def test_one_draw_at_1024_tokens():
    picture = diffuser_s2()
    rows = rows_of(picture)
    assert rows['local, density [%]'].computed == pytest.approx(9.18, abs=0.005)
    assert rows['local, density [%]'].fitted == pytest.approx(17.97, abs=0.005)
    assert rows['random, density [%]'].fitted == pytest.approx(1.9, abs=0.05)
    assert rows['total, density [%]'].fitted == pytest.approx(24, abs=3)
    assert len(picture.figure.axes) == 8


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


def test_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('analysis.figures.FIGURES', {
        name: FIGURES[name] for name in ('sbm-3', 'sbm-6')})
    main(['all', '--out', str(tmp_path)])
    captured = capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'sbm-3.json', 'sbm-3.png', 'sbm-6.json', 'sbm-6.png']
    assert captured.err == ''  # no bar where there is no terminal
    assert 'Figure 3' in captured.out and 'Figure 6' in captured.out
