"""How a decision changes placements."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Placements
from shoal.balance.decision import changed

ROWS = [(0,), (0, 1), (2, 0, 1)]
BEFORE = Placements.build([SINGLE, ALL_SUBSCRIBERS, ALL_PUBLISHERS], ROWS)
MEASURED = Placements(BEFORE.mode, BEFORE.offsets, BEFORE.servers, np.array([1.0, 0.9, 0.1, 0.5, 0.2, 0.3]))

rows = st.lists(st.permutations(range(5)).flatmap(lambda all: st.integers(1, 5).map(lambda n: tuple(all[:n]))))


@given(rows.filter(bool), st.data())
def test_rows_that_are_placed_anew_are_and_the_others_stay(before: list[tuple[int, ...]], data: st.DataObject) -> None:
    moves = data.draw(st.lists(st.integers(0, len(before) - 1), unique=True))
    new = [data.draw(rows.filter(bool))[0] for _ in moves]
    placements = Placements.build([ALL_SUBSCRIBERS] * len(before), before)
    after = changed(
        placements, np.array(moves, np.int64), Placements.build(np.full(len(new), ALL_PUBLISHERS, np.int8), new)
    )
    wanted = {**dict(enumerate(before)), **dict(zip(moves, new, strict=True))}
    assert {row: after.of(row) for row in range(len(before))} == wanted
    assert [row for row in range(len(before)) if after.mode[row] == ALL_PUBLISHERS] == sorted(moves)


def test_a_channel_keeps_its_parts_when_one_of_its_servers_is_replaced() -> None:
    after = changed(MEASURED, np.array([1]), Placements.build([ALL_SUBSCRIBERS], [(3, 1)]))
    assert after.part.tolist() == [1.0, 0.9, 0.1, 0.5, 0.2, 0.3]


def test_with_another_number_of_servers_or_another_mode_its_parts_are_even() -> None:
    wider = changed(MEASURED, np.array([1]), Placements.build([ALL_SUBSCRIBERS], [(0, 1, 2, 3)]))
    assert wider.part.tolist() == [1.0, 0.25, 0.25, 0.25, 0.25, 0.5, 0.2, 0.3]
    other = changed(MEASURED, np.array([1]), Placements.build([ALL_PUBLISHERS], [(0, 1)]))
    assert other.part.tolist() == [1.0, 0.5, 0.5, 0.5, 0.2, 0.3]
