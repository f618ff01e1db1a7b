"""Kinds of streams that the source reads: which streams of a server they are, and what their entries become.

Owns the seam. A kind is a small object without state; a new one (queues, the engine) is a class here or in a module of
its own, and a line in `KINDS`. Every row has the server and the entry that it came from, so that a row that is seen
twice can be known again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from shoal.balance.reports import BATCH_SCHEMA
from shoal.channels.telemetry import DATA_FIELD, ID_FIELD, RecordId
from shoal.errors import ConfigError, ProtocolError
from shoal.pipeline.recorded import Channel
from shoal.pipeline.source.offsets import EntryId
from shoal.wire.envelope import TELEMETRY_KEY

Ask = Callable[..., Any]
"""Asks a server one command, and returns its reply."""

Entry = tuple[EntryId, Mapping[bytes, bytes]]
"""An entry of a stream: its id and its fields."""


class Kind(Protocol):
    """One kind of streams. `options` are those of the source, in lower case."""

    schema: pa.Schema
    """Of the rows."""

    asked: Mapping[str, str]
    """The options that say which rows those are, `kind` among them: an offset holds for the same ones only."""

    def streams(self, ask: Ask) -> dict[str, bytes]:
        """The streams of this kind on a server: a name for offsets, and the key in Redis."""

    def rows(self, server: str, stream: str, entries: Sequence[Entry], arrived_s: Sequence[float]) -> pa.RecordBatch:
        """What entries become. `arrived_s` is when each was appended, on the reader's clock. An entry that cannot be
        read is a row that says so, never an error: one bad entry must not hold up the others."""


ORIGIN: Final = (pa.field("server", pa.string()), pa.field("entry", pa.string()))
"""Where a row came from: the server, and the id of the entry in its stream."""


class Telemetry:
    """What agents report: a row for each record, as `shoal.balance.reports` has them. A record that is none has its id
    null; the fold counts it as garbage."""

    schema = pa.schema([*BATCH_SCHEMA, *ORIGIN])

    asked: Mapping[str, str] = MappingProxyType({"kind": "telemetry"})

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("channel", "where"):
            if name in options:
                raise ConfigError(f"telemetry has no {name}", do=f"set kind to channel, or leave {name} out")

    def streams(self, ask: Ask) -> dict[str, bytes]:
        """The one stream of a server."""
        return {"telemetry": TELEMETRY_KEY}

    def rows(self, server: str, stream: str, entries: Sequence[Entry], arrived_s: Sequence[float]) -> pa.RecordBatch:
        """A row for each record."""
        ids = [_record_id(fields) for _, fields in entries]
        columns = [
            pa.array([id and id.server for id in ids], pa.string()),
            pa.array([id and id.instance for id in ids], pa.string()),
            pa.array([id and id.second for id in ids], pa.int64()),
            pa.array([id and id.sequence for id in ids], pa.int64()),
            pa.array(arrived_s, pa.float64()),
            pa.array([fields.get(DATA_FIELD, b"") for _, fields in entries], pa.binary()),
            pa.array([server] * len(entries), pa.string()),
            pa.array([str(id) for id, _ in entries], pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _record_id(fields: Mapping[bytes, bytes]) -> RecordId | None:
    try:
        id = RecordId.decode(fields.get(ID_FIELD, b""))
    except ProtocolError:
        return None
    return id if abs(id.second) < 2**63 and abs(id.sequence) < 2**63 else None


def reads_in_time(kind: Kind) -> bool:
    """Whether the streams of a kind must be read at the same pace, by time: the fold of telemetry takes for late what
    comes after the records of other servers that are much younger."""
    return isinstance(kind, Telemetry)


KINDS: Final[dict[str, Callable[[Mapping[str, str]], Kind]]] = {
    "telemetry": Telemetry,
    "channel": Channel,
}
"""By the name that the option `kind` gives."""


def kind_of(options: Mapping[str, str]) -> Kind:
    """The kind that the options ask for; ConfigError if there is none of that name."""
    name = options.get("kind", "telemetry")
    if name not in KINDS:
        raise ConfigError(f"there is no kind {name!r} of streams", do=f"give one of {', '.join(sorted(KINDS))}")
    return KINDS[name](options)
