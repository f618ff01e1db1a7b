"""Bulk matching: batches of an archive in, which filters matched out. Arrow to Arrow, in process and on Spark alike.

Owns what an archive must look like to be matched, and the three outputs. Reads no file and starts no Spark: that is for
`matching_job`.

An archive has its events in one of two forms:

- a column `attributes` with each event in its wire form (msgpack; null: no attributes), as the archive of recorded
  channels has them;
- otherwise every column is an attribute of its name, in the form of `shoal.filters.event_batches`.

Columns out:

    counts   filter int64, matches int64: for each filter that matched something, how many events
    ids      the event's key, filters list<int64>: for each event that some filter matched, which ones
    rows     all columns of the event, filters list<int64>

The key is `channel`, `publisher`, `sequence` and `published_at`, as far as the archive has them, otherwise `file` and
`row`, the event's place in the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import PipelineError
from shoal.filters.index import Index, Matches, WireTable
from shoal.filters.index.encoding import batch_table

Output: TypeAlias = Literal["counts", "ids", "rows"]
OUTPUTS: Final[tuple[str, ...]] = get_args(Output)

ATTRIBUTES: Final = "attributes"
"""The column of an archive of messages that has the events."""
KEYS: Final = ("channel", "publisher", "sequence", "published_at")
PLACE: Final = ("file", "row")
"""The key of an event in an archive without messages."""
FILTERS: Final = "filters"

BATCH_EVENTS: Final = 8192
"""Events that are matched at once: their ids have to fit in memory, and their bytes in the cache."""
NO_EVENT: Final = b"\x80"
"""The event without attributes."""
FILTER_IDS: Final = pa.list_(pa.int64())

COUNTS_SCHEMA: Final = pa.schema([("filter", pa.int64()), ("matches", pa.int64())])


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns by which an event is known."""
    keys = tuple(name for name in KEYS if name in schema.names)
    return keys if is_messages(schema) and keys else PLACE


def is_messages(schema: pa.Schema) -> bool:
    """Whether an archive has messages, with their events in one column."""
    return ATTRIBUTES in schema.names and _is_binary(schema.field(ATTRIBUTES).type)


def needed_columns(schema: pa.Schema, output: Output, attributes: Sequence[str]) -> list[str]:
    """The columns of an archive that have to be read for an output, in the archive's order."""
    if output == "rows":
        return list(schema.names)
    wanted = {ATTRIBUTES} if is_messages(schema) else set(attributes)
    if output == "ids":
        wanted |= set(key_columns(schema))
    return [name for name in schema.names if name in wanted]


def output_schema(schema: pa.Schema, output: Output) -> pa.Schema:
    """The columns that come out for an archive's schema; `file` and `row` come with the batches if they are keys."""
    if output == "counts":
        return COUNTS_SCHEMA
    filters = pa.field(FILTERS, FILTER_IDS)
    if output == "rows":
        if FILTERS in schema.names:
            raise PipelineError(
                f"the archive has a column {FILTERS!r} of its own", do="ask for ids, or rename the column"
            )
        return schema.append(filters)
    keys = key_columns(schema)
    if keys == PLACE:
        return pa.schema([("file", pa.string()), ("row", pa.int64()), filters])
    return pa.schema([*(schema.field(name) for name in keys), filters])


def match_batches(
    batches: Iterable[pa.RecordBatch], index: Index, output: Output, attributes: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Matches batches of an archive; for `counts` one batch comes out at the end, otherwise one for each."""
    if output == "counts":
        yield _counted(batches, index, attributes)
        return
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH_EVENTS):
            part = batch.slice(first, BATCH_EVENTS)
            matches = index.match_many(events_of(part, attributes))
            columns = list(part.schema.names) if output == "rows" else list(key_columns(part.schema))
            matched = np.diff(matches.offsets) > 0
            yield _with_filters(part.select(columns).filter(pa.array(matched)), matches, matched)


def sum_counts(parts: Iterable[pa.RecordBatch]) -> pa.Table:
    """The counts of several parts of an archive together, by filter."""
    table = pa.Table.from_batches(parts, COUNTS_SCHEMA)
    summed = table.group_by("filter").aggregate([("matches", "sum")])
    return summed.rename_columns(["filter", "matches"]).cast(COUNTS_SCHEMA).sort_by("filter")


def events_of(batch: pa.RecordBatch, attributes: Sequence[str]) -> WireTable:
    """The events of a batch of an archive, as the index takes them."""
    if is_messages(batch.schema):
        return _wire(batch.column(batch.schema.get_field_index(ATTRIBUTES)))
    return batch_table(batch, frozenset(attributes) - frozenset(PLACE))


def _counted(batches: Iterable[pa.RecordBatch], index: Index, attributes: Sequence[str]) -> pa.RecordBatch:
    counts = np.zeros(0, np.int64)
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH_EVENTS):
            found = index.match_many(events_of(batch.slice(first, BATCH_EVENTS), attributes)).ids
            more = np.bincount(found, minlength=len(counts))
            if len(more) > len(counts):
                counts = np.concatenate([counts, np.zeros(len(more) - len(counts), np.int64)])
            counts += more
    matched = np.flatnonzero(counts)
    return pa.RecordBatch.from_arrays([pa.array(matched), pa.array(counts[matched])], schema=COUNTS_SCHEMA)


def _with_filters(events: pa.RecordBatch, matches: Matches, matched: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The events that matched, with the ids of their filters, each list in order."""
    counts = np.diff(matches.offsets)
    ids = np.sort(np.repeat(np.arange(len(counts)), counts) << 32 | matches.ids.astype(np.int64)) & 0xFFFFFFFF
    offsets = np.concatenate([[0], np.cumsum(counts[matched])]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    return pa.RecordBatch.from_arrays(
        [*events.columns, lists], schema=events.schema.append(pa.field(FILTERS, FILTER_IDS))
    )


def _wire(column: pa.Array) -> WireTable:
    """A column of events in their wire form."""
    if column.null_count:
        column = pc.fill_null(column, NO_EVENT)
    wide = pa.types.is_large_binary(column.type)
    _, places, data = column.buffers()
    kind: type[np.int32] | type[np.int64] = np.int64 if wide else np.int32
    offsets = np.zeros(len(column) + 1, np.int64)
    if places is not None and len(column):
        offsets[:] = np.frombuffer(places, kind)[column.offset : column.offset + len(column) + 1]
    return WireTable(np.frombuffer(data if data is not None else b"", np.uint8), offsets)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
