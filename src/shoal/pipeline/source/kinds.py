"""The kinds of streams that the Spark source reads: which streams of a server belong to a kind, and their rows.

Owns the interface `Kind` and two implementations; `dead_letters` has a third. A kind is a small object without state;
another one needs a class and a line in `KINDS`. This module runs in Spark's workers and does not import Spark. Every
row names the server and the entry that it was read from, so that a row that is read twice can be recognised.

    spark.readStream.format("shoal").option("kind", "telemetry").option("rows", "units")
    spark.readStream.format("shoal").option("kind", "channel").option("channel", "orders.*")
        .option("where", "volume > 300000")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from shoal.errors import ConfigError, ProtocolError
from shoal.filters.language import parse
from shoal.history.entry_decoder import decode_entries
from shoal.history.table import SCHEMA, channel_text, matching
from shoal.load.record import DATA_FIELD, ID_FIELD, RecordId
from shoal.load.reports import BATCH_SCHEMA
from shoal.pipeline.source.offsets import EntryId
from shoal.pipeline.source.telemetry_rows import HOST_SCHEMA, ORIGIN, UNIT_SCHEMA, host_rows, unit_rows
from shoal.plan.keys import unit_of
from shoal.plan.kinds import SERVER, STORE
from shoal.wire.envelope import TELEMETRY_KEY
from shoal.wire.glob import glob_match
from shoal.wire.record_entry import INDEX_KEY, MARKS_KEY, NUMBER_FIELD, read_marks, record_key

Ask = Callable[..., Any]
"""Sends one command to a server and returns the reply."""

Entry = tuple[bytes, Sequence[bytes]]
"""An entry of a stream as its server returns it: its id, and the names and values of its fields in turn."""


class Kind(Protocol):
    """One kind of streams."""

    schema: pa.Schema
    """Schema of the rows."""

    asked: Mapping[str, str]
    """The options that select these rows, `kind` included. An offset is only valid for the same ones."""

    server_wait_s: float
    """The default of the option `serverWait`."""

    stream_column: str | None
    """The column with the name of the stream, if there is one."""

    time_column: str | None
    """The column with the time in the entry's id, by the server's clock, if there is one."""

    hosts: frozenset[str]
    """The kinds of hosts that have such streams."""

    deletes: bool
    """Whether entries are deleted before they are old, so that a missing one is not a loss."""

    def streams(self, ask: Ask, queues: Sequence[str] = ()) -> dict[str, bytes]:
        """The streams of this kind on a server: their names in offsets, and their keys in Redis. `queues` are the
        queues on it, if it is a store."""

    def is_written(self, ask: Ask) -> bool:
        """Whether the agent of a server may write such streams, even if there are none yet."""

    def new_name(self, name: str) -> str:
        """The name of a stream, from its name in offsets of version 1."""

    def number(self, fields: Sequence[bytes]) -> int | None:
        """The number of an entry, which grows by one with each entry of a stream; None if it has none. Only used for
        counting, and only while the numbers of a stream have no holes."""

    def rows(self, server: str, stream: str, entries: Sequence[Entry], ahead_ms: int) -> Iterable[pa.RecordBatch]:
        """The rows for some entries, in batches. The server's clock is `ahead_ms` ahead of the reader's. A corrupt
        entry becomes a row that says so, never an error, so that it does not block the others."""


RECORD_SCHEMA: Final = pa.schema([*BATCH_SCHEMA, *ORIGIN])
ROWS: Final[dict[str, tuple[pa.Schema, Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]]]] = {
    "hosts": (HOST_SCHEMA, host_rows),
    "units": (UNIT_SCHEMA, unit_rows),
    "records": (RECORD_SCHEMA, lambda records: (records,)),
}
"""By the value of the option `rows` of kind telemetry: the schema, and how rows are made of records."""


class TelemetryKind:
    """Telemetry of agents. The option `rows` is what a row is about: a host in a second (`hosts`, the default), a unit
    on a host in a second (`units`), or a record as its agent wrote it (`records`), for the fold. The entries that are
    read are the same, so an offset is valid for all of them."""

    asked: Mapping[str, str] = MappingProxyType({"kind": "telemetry"})

    stream_column: str | None = None
    time_column: str | None = None
    server_wait_s = 0.0  # the balancer must learn of the other servers while one is down
    hosts = frozenset((SERVER, STORE))
    deletes = False

    def __init__(self, options: Mapping[str, str]) -> None:
        for name, kind in (("channel", "channel"), ("where", "channel"), ("queue", "dead")):
            if name in options:
                raise ConfigError(
                    f"the option {name} is not for telemetry", do=f"set kind to {kind}, or leave {name} out"
                )
        self._rows = options.get("rows", "hosts")
        if self._rows not in ROWS:
            raise ConfigError(f"rows is {self._rows!r}", do=f"give one of {', '.join(ROWS)}")
        self.schema = ROWS[self._rows][0]

    def streams(self, ask: Ask, queues: Sequence[str] = ()) -> dict[str, bytes]:
        """The telemetry stream of a server."""
        return {"telemetry": TELEMETRY_KEY}

    def is_written(self, ask: Ask) -> bool:
        """Every agent writes telemetry."""
        return True

    def new_name(self, name: str) -> str:
        """The same."""
        return name

    def number(self, fields: Sequence[bytes]) -> int | None:
        """The sequence number; it starts again when the agent does."""
        id = _record_id(fields)
        return None if id is None else id.sequence

    def rows(self, server: str, stream: str, entries: Sequence[Entry], ahead_ms: int) -> Iterable[pa.RecordBatch]:
        """The rows of some records."""
        ids = [_record_id(fields) for _, fields in entries]
        arrived_s = [(EntryId.parse(entry).ms - ahead_ms) / 1000 for entry, _ in entries]
        columns = [
            pa.array([id and id.host for id in ids], pa.string()),
            pa.array([id and id.instance for id in ids], pa.string()),
            pa.array([id and id.second for id in ids], pa.int64()),
            pa.array([id and id.sequence for id in ids], pa.int64()),
            pa.array(arrived_s, pa.float64()),
            pa.array([_value(fields, DATA_FIELD) for _, fields in entries], pa.binary()),
            pa.repeat(server, len(entries)),
            pa.array([entry for entry, _ in entries], pa.string()),
        ]
        return ROWS[self._rows][1](pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))


def _value(fields: Sequence[bytes], name: bytes) -> bytes:
    """The value of a field; empty if the entry does not have it."""
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(name, b"")


def _record_id(fields: Sequence[bytes]) -> RecordId | None:
    try:
        id = RecordId.decode(_value(fields, ID_FIELD))
    except ProtocolError:
        return None
    return id if abs(id.second) < 2**63 and abs(id.sequence) < 2**63 else None


class ChannelKind:
    """Messages of recorded channels, with the columns of `shoal.history.table`.

    The option `channel` is a name or a pattern (default: all channels). With `where` only messages whose attributes
    satisfy the filter are read. Gaps and stream ends are rows too.
    """

    schema = SCHEMA.remove_metadata()

    stream_column: str | None = "channel"
    time_column: str | None = "recorded_at"
    server_wait_s = 10.0
    hosts = frozenset((SERVER,))
    deletes = False

    def __init__(self, options: Mapping[str, str]) -> None:
        if "rows" in options:
            raise ConfigError("the option rows is for telemetry", do="set kind to telemetry, or leave rows out")
        if "queue" in options:
            raise ConfigError("the option queue is for dead letters", do="set kind to dead, or leave queue out")
        self._pattern = options.get("channel", "*").encode("utf-8", "surrogateescape")
        if not self._pattern:
            raise ConfigError("the option channel is empty", do="name a channel, or a pattern like orders.*")
        self._where = parse(options["where"]) if options.get("where") else None
        self.asked: Mapping[str, str] = {
            "kind": "channel",
            "channel": options.get("channel", "*"),
            **({} if self._where is None else {"where": options["where"]}),
        }

    def streams(self, ask: Ask, queues: Sequence[str] = ()) -> dict[str, bytes]:
        """The records of the selected channels on a server, by the channel's name as text."""
        channels = ask(b"SMEMBERS", INDEX_KEY) or ()
        return {
            channel_text(channel): record_key(channel)
            for channel in sorted(channels)
            if channel == self._pattern or glob_match(self._pattern, channel)
        }

    def is_written(self, ask: Ask) -> bool:
        """Whether a pattern that the agent records may match a selected channel. Patterns are compared as names, so two
        patterns that only overlap (`a*` and `*b`) are not found."""
        return any(
            glob_match(mark, self._pattern) or glob_match(self._pattern, mark)
            for mark in read_marks(ask(b"GET", MARKS_KEY))
        )

    def new_name(self, name: str) -> str:
        """The channel's name as text, from base64url."""
        channel = unit_of(name, "")
        return name if channel is None else channel_text(channel)

    def number(self, fields: Sequence[bytes]) -> int | None:
        """The number that its agent gave the entry."""
        number = _value(fields, NUMBER_FIELD)
        return int(number) if number.isdigit() else None

    def rows(self, server: str, stream: str, entries: Sequence[Entry], ahead_ms: int) -> Iterable[pa.RecordBatch]:
        """One row for each message, stream end and gap. `recorded_at` is by the server's clock."""
        batch = decode_entries(stream, server, entries)
        if self._where is not None:
            kept = matching(pa.Table.from_batches([batch]), self._where).combine_chunks().to_batches()
            batch = kept[0] if kept else batch.slice(0, 0)
        return (batch.replace_schema_metadata(None),)


def _dead_kind(options: Mapping[str, str]) -> Kind:
    from shoal.pipeline.source.dead_letters import DeadKind  # decodes messages of queues, which other kinds do not need

    return DeadKind(options)


KINDS: Final[dict[str, Callable[[Mapping[str, str]], Kind]]] = {
    "telemetry": TelemetryKind,
    "channel": ChannelKind,
    "dead": _dead_kind,
}
"""By the value of the option `kind`."""


def kind_of(options: Mapping[str, str]) -> Kind:
    """The kind that the options (names in lower case) select; ConfigError if there is no such kind."""
    name = options.get("kind", "telemetry")
    if name == "archive":
        raise ConfigError("an archive is not a stream", do="use spark.read, or kind channel for new messages")
    if name not in KINDS:
        raise ConfigError(f"there is no kind {name!r}", do=f"give one of {', '.join(sorted(KINDS))}")
    return KINDS[name](options)
