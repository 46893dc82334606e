"""Cells that stand for a product of parameters."""

from itertools import combinations, product

import pytest

from tests.pairwise import pairwise

AXES = 'ab', range(3), (None, 0, 1.5, 'x')


@pytest.mark.parametrize('among', [lambda *cell: True, lambda letter, *_: letter == 'b',
                                   lambda letter, number, _: letter == 'a' or number == 0])
def test_every_pair_that_some_cell_has_is_in_few_of_them(among):
    cells = [cell for cell in product(*AXES) if among(*cell)]
    chosen = pairwise(*AXES, among=among)
    assert {*chosen} <= {*cells} and 0 < len(chosen) <= len(cells)
    for one, other in combinations(range(3), 2):
        assert ({(cell[one], cell[other]) for cell in chosen}
                == {(cell[one], cell[other]) for cell in cells})
    assert len(pairwise(*AXES)) == 12 < len([*product(*AXES)])
