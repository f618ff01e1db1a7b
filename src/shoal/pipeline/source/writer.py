"""Writes rows to channels: each row is a message, published at least once, with an id that identifies repeats.

Owns the meaning of columns, and the ids. The bus publishes.

    channel     string or binary: the channel; or the option `channel`, for all rows
    payload     binary or string
    attributes  optional: a map of strings to strings, numbers, booleans or arrays of them, or JSON text
                as the source returns it

Each message has the attribute `shoal_id`: `<writer>/<batch>/<partition>/<row>`. The writer is the id of the streaming
query, which survives a restart from the checkpoint, or of the batch write. So a micro-batch that Spark repeats has the
same ids for the same rows, provided that its rows come in the same order; consumers can drop repeats by id. A
`shoal_id` that a row already has is replaced: a row that was read and is written again is another message.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from shoal.bus import connect
from shoal.bus.location import find_url
from shoal.coordination.link import parse_address
from shoal.errors import ConfigError
from shoal.pipeline.message_ids import ID_ATTRIBUTE
from shoal.pipeline.source.columns import check_written, row_attributes
from shoal.pipeline.source.options import WRITER_OPTIONS, known_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that one task has published."""

    rows: int


@dataclass(frozen=True, slots=True)
class RowPublisher:
    """Publishes rows."""

    url: str = field(repr=False)
    """The coordinator's address, with the login."""
    channel: str | None
    """The channel of all rows; None: the column `channel`."""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Self:
        """The publisher for some options and columns; ConfigError if they are invalid."""
        given = known_options(options, WRITER_OPTIONS)
        channel = given.get("channel")
        check_written(schema, channel)
        return cls(_url(given), channel)

    def publish(self, batches: Iterator[pa.RecordBatch], prefix: str) -> int:
        """Publishes all rows, waits until servers have confirmed them, and returns their number."""
        return asyncio.run(self._publish(batches, prefix))

    async def _publish(self, batches: Iterator[pa.RecordBatch], prefix: str) -> int:
        row = 0
        async with connect(self.url, name="shoal-spark") as bus:
            for batch in batches:
                channels = batch["channel"].to_pylist() if self.channel is None else [self.channel] * batch.num_rows
                for channel, payload, attributes in zip(
                    channels, batch["payload"].to_pylist(), row_attributes(batch), strict=True
                ):
                    if channel is None or payload is None:
                        raise ConfigError("the channel or payload of a row is null", do="filter such rows out")
                    await bus.publish(channel, payload, attributes={**attributes, ID_ATTRIBUTE: f"{prefix}/{row}"})
                    row += 1
            await bus.drain()
        return row


def _url(options: Mapping[str, str]) -> str:
    """The coordinator's address with the login; the options `user` and `password` override those in the address."""
    if "servers" in options:
        raise ConfigError(
            "the option servers is not for writing: only the coordinator knows which server carries a channel",
            do="name a coordinator: shoal://host:port",
        )
    url = options.get("coordinator") or find_url(options.get("statedir"))
    user, password = options.get("user"), options.get("password")
    if user is None and password is None:
        return url
    return parse_address(url, user, password).url


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, publisher: RowPublisher) -> None:
        self._publisher = publisher

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer for some options and columns. `overwrite`: the query's output mode is complete."""
        if overwrite:
            raise ConfigError(
                "the output mode is complete, but published messages cannot be replaced",
                do='use outputMode("append"), or foreachBatch to publish all rows each time',
            )
        return cls(RowPublisher.of(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        query, batch = (task.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        return Written(self._publisher.publish(iterator, f"{query}/{batch}/{task.partitionId()}"))


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch. Its id is made when the write is planned, so that a repeated task repeats its ids."""

    def __init__(self, publisher: RowPublisher) -> None:
        self._publisher = publisher
        self._id = secrets.token_hex(16)

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer for some options and columns."""
        if overwrite:
            raise ConfigError(
                "the mode is overwrite, but published messages cannot be replaced", do='use mode("append")'
            )
        return cls(RowPublisher.of(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        task = TaskContext.get()
        assert task is not None
        return Written(self._publisher.publish(iterator, f"{self._id}/0/{task.partitionId()}"))
