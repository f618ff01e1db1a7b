"""Dead letters of queues as rows: messages that failed for the last time, from the stores.

Owns the columns and the kind `dead` of the Spark source. A dead letter stays on its store until an operator replays or
forgets it, so a missing one is not a loss. If its shard moves, it moves too and is read again there: the columns
`queue`, `key` and `number` identify a message.

    spark.read.format("shoal").option("kind", "dead").option("queue", "orders.*").load()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from shoal.errors import ConfigError, ProtocolError
from shoal.history.table import TIME, channel_text
from shoal.pipeline.source.kinds import Ask, Entry
from shoal.plan.kinds import STORE
from shoal.queues.message_format import KEY_PREFIX, Stored, decode_dead_letter, decode_message
from shoal.wire.glob import glob_match

DEAD_SCHEMA: Final = pa.schema(
    [
        pa.field("queue", pa.string()),
        pa.field("key", pa.string()),
        pa.field("id", pa.string()),  # null if the application gave none
        pa.field("payload", pa.binary()),
        pa.field("attributes", pa.string()),  # JSON, null if there are none
        pa.field("put_at", TIME),  # by the producer's clock
        pa.field("dead_at", TIME),  # by the store's clock
        pa.field("attempts", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("store", pa.string()),
        pa.field("entry", pa.string()),  # names it in `shoal queue replay`
        pa.field("number", pa.string()),  # that its producer gave it, unique
    ]
)
UNREADABLE: Final = "this dead letter cannot be read"
"""The reason of a row that stands for a damaged letter."""
_SUFFIX: Final = b":dead"
_json: Final = msgspec.json.Encoder()


class DeadKind:
    """Dead letters. The option `queue` is a name or a pattern (default: all queues)."""

    schema = DEAD_SCHEMA
    stream_column: str | None = "queue"
    time_column: str | None = None  # entries are numbered, not timed
    server_wait_s = 10.0
    hosts = frozenset((STORE,))
    deletes = True

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("channel", "where", "rows", "startingtimestamp"):
            if name in options:
                raise ConfigError(f"the option {name} is not for dead letters", do=f"leave {name} out")
        self._pattern = options.get("queue", "*").encode()
        self.asked: Mapping[str, str] = {"kind": "dead", "queue": options.get("queue", "*")}

    def streams(self, ask: Ask, queues: Sequence[str] = ()) -> dict[str, bytes]:
        """The streams of the selected queues on a store."""
        names = {queue for queue in queues if glob_match(self._pattern, queue.encode())}
        if not set(self._pattern) & set(b"*?["):
            names.add(self._pattern.decode())
        return {name: KEY_PREFIX + name.encode() + _SUFFIX for name in sorted(names)}

    def is_written(self, ask: Ask) -> bool:
        """Any message may die."""
        return True

    def new_name(self, name: str) -> str:
        """The same: there are no older offsets."""
        return name

    def number(self, fields: Sequence[bytes]) -> int | None:
        """None: letters have no numbers without holes."""
        return None

    def rows(self, server: str, stream: str, entries: Sequence[Entry], ahead_ms: int) -> Iterable[pa.RecordBatch]:
        """One row for each letter."""
        rows = [_row(server, stream, id, fields) for id, fields in entries]
        return (pa.RecordBatch.from_pylist(rows, schema=DEAD_SCHEMA),)


def _row(store: str, queue: str, id: bytes, fields: Sequence[bytes]) -> dict[str, Any]:
    entry = f"{id.decode()}@{store}"  # as `shoal queue replay` takes it
    row: dict[str, Any] = {"queue": queue, "store": store, "entry": entry}
    try:
        letter = decode_dead_letter(fields)
        message: Stored = decode_message(letter.body)
        attributes, payload = message.split()
        return row | {
            "key": channel_text(letter.key),
            "id": channel_text(message.id) if message.id else None,
            "payload": bytes(payload),
            "attributes": None if attributes is None else _json.encode(dict(attributes)).decode(),
            "put_at": message.put_us,
            "dead_at": letter.at_ms * 1000,
            "attempts": letter.attempts,
            "reason": letter.reason,
            "number": message.number.decode(errors="replace"),
        }
    except (ValueError, ProtocolError):
        return row | {"reason": UNREADABLE}
