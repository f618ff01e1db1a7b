"""Selection of rows: equal to Arrow's own, also for columns that Arrow cannot handle."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.history import row_selection
from shoal.history.row_selection import take

VALUES = st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.text(max_size=4)), min_size=1, max_size=9)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.data())
def test_selection_in_parts_equals_arrow(values: list[tuple[bytes | None, str | None]], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20))
    rows = pa.array(order, pa.int64())
    table = pa.table(
        {
            "payload": pa.chunked_array([pa.array([value[0]], pa.binary()) for value in values]),
            "text": pa.array([value[1] for value in values], pa.string()),
            "number": range(len(values)),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_selection, "CHUNK_BYTES_MAX", 8)
        taken = take(table, rows)
    taken.validate(full=True)
    assert taken.equals(table.take(rows))
