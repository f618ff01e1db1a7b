"""Selects rows of a table by number, also when a column holds more than 2 GiB.

Owns the workaround for Arrow's 32-bit offsets: `Table.take` first joins the chunks of a column, which fails for 2 GiB
or more of strings or bytes. Such columns are selected with 64-bit offsets, in parts that fit 32-bit offsets again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CHUNK_BYTES_MAX: Final = 1 << 30
"""Bytes in one chunk of a string or binary column."""


def take(table: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The rows with these numbers, in the order of the numbers."""
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    columns = [_take(column, rows) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _take(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    if column.nbytes <= CHUNK_BYTES_MAX or not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        return column.take(rows)
    large = pa.large_binary() if pa.types.is_binary(column.type) else pa.large_string()
    whole = column.cast(large).combine_chunks()
    parts = [whole.take(part).cast(column.type) for part in _parts(whole, rows)]
    return pa.chunked_array(parts, column.type)


def _parts(whole: pa.Array, rows: pa.Array) -> list[pa.Array]:
    """Splits the numbers so that the values of each part fit one chunk; a larger value is a part of its own."""
    sizes = pc.fill_null(pc.binary_length(whole), 0).take(rows).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    parts, begin = [], 0
    while begin < len(rows):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + CHUNK_BYTES_MAX, "right")), begin + 1)
        parts.append(rows.slice(begin, end - begin))
        begin = end
    return parts
