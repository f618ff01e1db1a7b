"""Writing to channels: each row a message, published at least once, with an id by which a repeat is known again.

Owns what columns mean and how ids are made. Publishing is the bus's.

    channel     text or bytes: where it goes; or the option `channel`, for all rows
    payload     bytes or text
    attributes  a map of texts, if there is one

A message carries the attribute `id`: `<writer>/<batch>/<partition>/<row>`. The writer is the id of the streaming query
(or of the write), which survives a restart from the checkpoint; so a micro-batch that Spark repeats gives the same ids
for the same rows, as long as its rows come in the same order. Consumers that must not see a message twice keep the ids.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from shoal.bus import connect
from shoal.bus.locate import find_url
from shoal.coordination.link import parse_address
from shoal.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ID_ATTRIBUTE: Final = "id"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
COLUMNS: Final = ("channel", "payload", "attributes")


@dataclass
class Written(WriterCommitMessage):
    """What one task has published."""

    rows: int


@dataclass(frozen=True, slots=True)
class Publishing:
    """Where rows go."""

    url: str = field(repr=False)
    """Of the coordinator, with the log-in."""
    channel: str | None
    """For all rows; None: each row says it."""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Self:
        """What options and columns ask for; ConfigError if that cannot be."""
        given = {name.lower(): value for name, value in options.items()}
        channel = given.get("channel")
        names = schema.fieldNames()
        if unknown := [name for name in names if name not in COLUMNS]:
            raise ConfigError(f"a message has no {unknown[0]!r}", do=f"give columns out of {', '.join(COLUMNS)}")
        if "payload" not in names:
            raise ConfigError("there is no column payload", do="name the bytes or texts to publish so")
        if (channel is None) == ("channel" not in names):
            raise ConfigError("a row has no channel, or two", do="give a column channel, or the option channel")
        return cls(_url(given), channel)

    def publish(self, batches: Iterator[pa.RecordBatch], prefix: str) -> int:
        """Publishes all rows, and returns how many those were when servers have confirmed them all."""
        return asyncio.run(self._publish(batches, prefix))

    async def _publish(self, batches: Iterator[pa.RecordBatch], prefix: str) -> int:
        row = 0
        async with connect(self.url, name="shoal-spark") as bus:
            for batch in batches:
                channels = batch["channel"].to_pylist() if self.channel is None else [self.channel] * batch.num_rows
                for channel, payload, attributes in zip(
                    channels, batch["payload"].to_pylist(), _attributes(batch), strict=True
                ):
                    if channel is None or payload is None:
                        raise ConfigError("a row has a null for its channel or payload", do="leave such rows out")
                    await bus.publish(channel, payload, attributes={**attributes, ID_ATTRIBUTE: f"{prefix}/{row}"})
                    row += 1
            await bus.drain()
        return row


def _url(options: Mapping[str, str]) -> str:
    """The coordinator's address with the log-in; the options `user` and `password` win over what stands in it."""
    if "servers" in options:
        raise ConfigError(
            "servers is no option of writing: the coordinator says which server a channel is on",
            do="name a coordinator: shoal://host:port",
        )
    url = options.get("coordinator") or find_url(options.get("statedir"))
    user, password = options.get("user"), options.get("password")
    if user is None and password is None:
        return url
    address = parse_address(url, user, password)
    login = f"{quote(address.username or '', safe='')}:{quote(address.password or '', safe='')}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"shoal://{login}@{host}:{address.port}"


def _attributes(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The attributes of each row; a map comes from Arrow as pairs."""
    if "attributes" not in batch.schema.names:
        return [{} for _ in range(batch.num_rows)]
    return [
        {name: value for name, value in pairs or () if value is not None} for pairs in batch["attributes"].to_pylist()
    ]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> StreamWriter:
        """What options and columns ask for."""
        return cls(Publishing.of(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        query, batch = (task.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        return Written(self._publishing.publish(iterator, f"{query}/{batch}/{task.partitionId()}"))


class BatchWriter(DataSourceArrowWriter):
    """Writes once. Its id is made when the write is planned, so that a task that is tried again repeats its ids."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self._id = secrets.token_hex(16)

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> BatchWriter:
        """What options and columns ask for."""
        return cls(Publishing.of(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        return Written(self._publishing.publish(iterator, f"{self._id}/0/{task.partitionId()}"))
