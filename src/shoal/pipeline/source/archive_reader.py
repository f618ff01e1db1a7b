"""Kind `archive` of the source "shoal": the rows of an archive of recorded channels, as a batch.

Owns the options of this kind and the classes that Spark calls. The rows are those of the table: a message that two
servers recorded may come twice until a compaction, as from the kind `channel`.

    spark.read.format("shoal").option("kind", "archive").option("path", "s3://bucket/shoal")
        .option("channel", "orders.eu").option("since", "2026-11-01T10:00").option("until", "1d").load()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shoal.bus.times import read_time
from shoal.errors import ConfigError
from shoal.history.archive import read_files
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import open_table
from shoal.history.table import SCHEMA
from shoal.pipeline.source.columns import chosen
from shoal.pipeline.source.options import known_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ARCHIVE_OPTIONS: Final = ("kind", "path", "channel", "since", "until")
ARCHIVE_SCHEMA: Final = SCHEMA.remove_metadata()


class ArchivedPart(InputPartition):
    """A file of the archive, which one task reads."""

    def __init__(self, path: str) -> None:
        self.path = path


class ArchiveReader(DataSourceReader):
    """Reads the files that the archive has when the query starts."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = known_options(given, ARCHIVE_OPTIONS)
        if not options.get("path"):
            raise ConfigError("kind archive needs the option path", do="give the directory or URL of the archive")
        now_s = time.time()
        self._location = ArchiveLocation.of(options["path"])
        self._columns = chosen(schema, ARCHIVE_SCHEMA) or ARCHIVE_SCHEMA.names
        self._channel = options.get("channel")
        self._since_us = read_time(options["since"], now_s) if "since" in options else None
        self._until_us = read_time(options["until"], now_s) if "until" in options else None

    def partitions(self) -> Sequence[InputPartition]:
        """One part for each file that may have wanted rows."""
        wanted = (self._channel, self._since_us, self._until_us)
        return [ArchivedPart(file.path) for file in open_table(self._location).files if file.may_hold(*wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The wanted rows of one file. If there are no parts, Spark passes a partition of its own."""
        if not isinstance(partition, ArchivedPart):
            return iter(())
        rows = read_files(
            self._location.filesystem(),
            [partition.path],
            self._columns,
            channel=self._channel,
            from_us=self._since_us,
            to_us=self._until_us,
        )
        return iter(rows.replace_schema_metadata(None).to_batches())
