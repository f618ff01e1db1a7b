"""Bulk matching: batches of an archive in, matching filters out. Arrow to Arrow, in process or on Spark.

Owns the forms of archives that can be matched, and the three outputs. Reads no files and starts no Spark; that is
`bulk_match_job`.

An archive holds events in one of two forms:

- messages: a column `attributes` with each event as a JSON object, beside a column `payload`, as in the archive of
  recorded channels; or a column `attributes` in the wire format (msgpack). Null means no attributes;
- columns: every column is an attribute of that name, as in `shoal.filters.event_batches`.

Outputs:

    counts   filter int64, matches int64: for each filter that matched an event, how many events
    ids      the event's key, filters list<int64>: for each event that matched a filter, which filters
    rows     all columns of the event, filters list<int64>

The key of a message is `channel`, `publisher`, `epoch`, `sequence` and `published_at`, as far as the archive has them.
Otherwise the key is `file` and `row`, the event's place in the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import EventError, PipelineError
from shoal.filters.index import Index, Matches, WireTable, batch_table, event_table
from shoal.filters.values import Value

Output: TypeAlias = Literal["counts", "ids", "rows"]

ATTRIBUTES: Final = "attributes"
"""The column with the events in an archive of messages."""
KEYS: Final = ("channel", "publisher", "epoch", "sequence", "published_at")
PLACE: Final = ("file", "row")
"""The key of an event in an archive of columns."""
FILTERS: Final = "filters"

BATCH_EVENTS: Final = 8192
"""Events matched at once, so that the ids found fit in memory and the events in the CPU cache."""
NO_EVENT: Final = b"\x80"
"""An event without attributes, in the wire format."""
FILTER_IDS: Final = pa.list_(pa.int64())

_objects: Final = msgspec.json.Decoder(dict[str, Value])

COUNTS_SCHEMA: Final = pa.schema([("filter", pa.int64()), ("matches", pa.int64())])


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The requested output, and the columns that have to be read for it. `query_of` makes one."""

    output: Output
    attributes: tuple[str, ...]
    """Attributes that the filters use."""
    messages: bool
    """Whether events are in the column `attributes`."""
    keys: tuple[str, ...]
    """The key columns of an event."""
    columns: tuple[str, ...]
    """The columns to read, in the archive's order, without `file` and `row`."""

    @property
    def place(self) -> bool:
        """Whether the output needs the events' places in the archive."""
        return self.output == "ids" and self.keys == PLACE


def query_of(schema: pa.Schema, output: Output, attributes: Sequence[str]) -> Query:
    """The query for an archive with this schema. PipelineError if it cannot be answered."""
    messages = _is_messages(schema)
    keys = tuple(name for name in KEYS if messages and name in schema.names) or PLACE
    wanted = {ATTRIBUTES} if messages else set(attributes)
    if not wanted & set(schema.names):
        raise PipelineError(
            "no filter uses an attribute that the archive has",
            do=f"the filters use {', '.join(attributes)}; the archive has {', '.join(schema.names)}",
        )
    taken = {FILTERS} if output == "rows" else set(PLACE) if output == "ids" and keys == PLACE else set()
    if taken & set(schema.names):
        name = min(taken & set(schema.names))
        raise PipelineError(
            f"the archive already has a column {name!r}", do="choose another --output, or rename the column"
        )
    wanted |= {"ids": set(keys), "rows": set(schema.names)}.get(output, set())
    return Query(
        output=output,
        attributes=tuple(attributes),
        messages=messages,
        keys=keys,
        columns=tuple(name for name in schema.names if name in wanted),
    )


def output_schema(schema: pa.Schema, query: Query) -> pa.Schema:
    """The columns of the output, for an archive's schema."""
    filters = pa.field(FILTERS, FILTER_IDS)
    if query.output == "counts":
        return COUNTS_SCHEMA
    if query.output == "rows":
        return pa.schema([*schema, filters])
    if query.place:
        return pa.schema([("file", pa.string()), ("row", pa.int64()), filters])
    return pa.schema([*(schema.field(name) for name in query.keys), filters])


def match_batches(batches: Iterable[pa.RecordBatch], index: Index, query: Query) -> Iterator[pa.RecordBatch]:
    """Matches batches of an archive. `counts` gives one batch at the end, the other outputs one for each batch."""
    if query.output == "counts":
        yield _counted(batches, index, query)
        return
    columns = list(query.columns if query.output == "rows" else query.keys)
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH_EVENTS):
            part = batch.slice(first, BATCH_EVENTS)
            matches = index.match_many(events_of(part, query))
            matched = np.diff(matches.offsets) > 0
            yield _with_filters(part.select(columns).filter(pa.array(matched)), matches, matched)


def sum_counts(parts: Iterable[pa.RecordBatch]) -> pa.Table:
    """Adds up the counts of several parts of an archive, by filter."""
    table = pa.Table.from_batches(parts, COUNTS_SCHEMA)
    summed = table.group_by("filter").aggregate([("matches", "sum")])
    return summed.rename_columns(["filter", "matches"]).cast(COUNTS_SCHEMA).sort_by("filter")


def events_of(batch: pa.RecordBatch, query: Query) -> WireTable:
    """The events of a batch, in the form that the index takes."""
    if not query.messages:
        return batch_table(batch, frozenset(query.attributes) - frozenset(PLACE if query.place else ()))
    column = batch.column(batch.schema.get_field_index(ATTRIBUTES))
    return wire_table(column) if _is_binary(column.type) else _of_json(column)


def wire_table(column: pa.Array) -> WireTable:
    """A binary column of events in the wire format."""
    if column.null_count:
        column = pc.fill_null(column, NO_EVENT)
    wide = pa.types.is_large_binary(column.type)
    _, places, data = column.buffers()
    kind: type[np.int32] | type[np.int64] = np.int64 if wide else np.int32
    offsets = np.zeros(len(column) + 1, np.int64)
    if places is not None and len(column):
        offsets[:] = np.frombuffer(places, kind)[column.offset : column.offset + len(column) + 1]
    return WireTable(np.frombuffer(data if data is not None else b"", np.uint8), offsets)


def _is_messages(schema: pa.Schema) -> bool:
    """Whether an archive holds messages, with their events in one column."""
    if ATTRIBUTES not in schema.names:
        return False
    kind = schema.field(ATTRIBUTES).type
    return _is_binary(kind) or (_is_text(kind) and "payload" in schema.names)


def _counted(batches: Iterable[pa.RecordBatch], index: Index, query: Query) -> pa.RecordBatch:
    counts = np.zeros(0, np.int64)
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH_EVENTS):
            found = index.match_many(events_of(batch.slice(first, BATCH_EVENTS), query)).ids
            more = np.bincount(found, minlength=len(counts))
            if len(more) > len(counts):
                counts = np.concatenate([counts, np.zeros(len(more) - len(counts), np.int64)])
            counts += more
    matched = np.flatnonzero(counts)
    return pa.RecordBatch.from_arrays([pa.array(matched), pa.array(counts[matched])], schema=COUNTS_SCHEMA)


def _with_filters(events: pa.RecordBatch, matches: Matches, matched: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The events that matched, with the sorted ids of their filters."""
    counts = np.diff(matches.offsets)
    ids = np.sort(np.repeat(np.arange(len(counts)), counts) << 32 | matches.ids.astype(np.int64)) & 0xFFFFFFFF
    offsets = np.concatenate([[0], np.cumsum(counts[matched])]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    return pa.RecordBatch.from_arrays(
        [*events.columns, lists], schema=events.schema.append(pa.field(FILTERS, FILTER_IDS))
    )


def _of_json(column: pa.Array) -> WireTable:
    """A column of events as JSON objects."""
    try:
        return event_table({} if text is None else _objects.decode(text) for text in column.to_pylist())
    except msgspec.DecodeError as error:
        raise EventError(f"the attributes of a message are not a valid event: {error}") from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
