"""The source "shoal" as Spark sees it: its schema, its readers and its writers.

Owns Spark's side and nothing else; what is read is decided in `planning`. Spark makes these objects anew in several
processes, so they keep nothing that must be remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from shoal import logs
from shoal.pipeline.source.offsets import ServerOffset, read_offset, write_offset
from shoal.pipeline.source.options import LATEST, SourceOptions, read_options
from shoal.pipeline.source.planning import Planning, check_order
from shoal.pipeline.source.reading import Part, read_part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shoal.pipeline.source.writer import BatchWriter, StreamWriter


class PartOfSource(InputPartition):
    """A part, as Spark hands it to a worker."""

    def __init__(self, part: Part) -> None:
        self.part = part


class BatchReader(DataSourceReader):
    """Reads what is there when the query starts."""

    def __init__(self, options: SourceOptions) -> None:
        _speak()
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """What to read, in parts."""
        planning = Planning(self._options, complete=True)
        start = planning.first()
        ending = self._options.ending
        if isinstance(ending, dict) or isinstance(self._options.starting, dict):
            check_order(start, ending if isinstance(ending, dict) else planning.first(LATEST))
        end = ending if isinstance(ending, dict) else planning.next(start)
        return [PartOfSource(part) for part in planning.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part. Where there was none, Spark hands over one of its own: it has no rows."""
        _speak()
        return read_part(partition.part) if isinstance(partition, PartOfSource) else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, micro-batch by micro-batch."""

    def __init__(self, options: SourceOptions) -> None:
        _speak()
        self._options = options
        self._planning = Planning(options)
        self._until: dict[str, ServerOffset] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint."""
        return write_offset(self._planning.first())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch reads."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return write_offset(self._planning.next(read_offset(start), rows_max, self._until))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much one micro-batch takes."""
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far one could read: Spark shows it beside how far it has."""
        return write_offset(self._planning.first("latest"))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that comes from now on is read: what is there now is all."""
        self._until = self._planning.first("latest")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What is between two offsets, in parts."""
        return [PartOfSource(part) for part in self._planning.parts(read_offset(start), read_offset(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        _speak()
        return read_part(cast(PartOfSource, partition).part)


class ShoalSource(DataSource):
    """The format "shoal"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "shoal"

    def schema(self) -> StructType:
        """The columns of the kind that is asked for."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from shoal.pipeline.source.kinds import kind_of

        return from_arrow_schema(kind_of({name.lower(): value for name, value in self.options.items()}).schema)

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        return BatchReader(read_options(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return StreamReader(read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        from shoal.pipeline.source.writer import BatchWriter

        return BatchWriter.of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """For `df.writeStream`."""
        from shoal.pipeline.source.writer import StreamWriter

        return StreamWriter.of(self.options, schema, overwrite)


def _speak() -> None:
    """Lets warnings out of Spark's own processes, where nobody has said how."""
    if not logging.getLogger("shoal").handlers:
        logs.configure()
