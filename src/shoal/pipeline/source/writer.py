"""Writing to channels: each row a message, published at least once, with an id by which a repeat is known again.

Owns what columns mean and how ids are made. Publishing is the bus's.

    channel     text or bytes: where it goes; or the option `channel`, for all rows
    payload     bytes or text
    attributes  a map of texts to texts, numbers or truths, or JSON text as the source gives it; if there is one

A message carries the attribute `shoal_id`: `<writer>/<batch>/<partition>/<row>`. The writer is the id of the streaming
query (or of the write), which survives a restart from the checkpoint; so a micro-batch that Spark repeats gives the
same ids for the same rows, as long as its rows come in the same order. Consumers that must not see a message twice keep
the ids. The name is ours: in a row that was read and is written again, the id of the first writing is replaced, for it
is another message.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from shoal.bus import connect
from shoal.bus.locate import find_url
from shoal.coordination.link import parse_address
from shoal.errors import ConfigError
from shoal.pipeline.source.columns import attributes_of, check_written
from shoal.pipeline.source.names import WRITING, named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ID_ATTRIBUTE: Final = "shoal_id"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


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
        given = named(options, WRITING)
        channel = given.get("channel")
        check_written(schema, channel)
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
                    channels, batch["payload"].to_pylist(), attributes_of(batch), strict=True
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


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
        """What options and columns ask for. `overwrite` is of a query that gives all its rows each time."""
        if overwrite:
            raise ConfigError(
                "the output mode is complete, and what was published cannot be replaced",
                do='take outputMode("append"), or foreachBatch to publish all rows each time',
            )
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
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
        """What options and columns ask for."""
        if overwrite:
            raise ConfigError(
                "the mode is overwrite, and what was published cannot be replaced", do='take mode("append")'
            )
        return cls(Publishing.of(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        return Written(self._publishing.publish(iterator, f"{self._id}/0/{task.partitionId()}"))
