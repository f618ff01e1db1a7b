"""The source "shoal" as Spark sees it: its schema, its readers and its writers.

Owns Spark's side and nothing else; what is read is decided in `planning`. Spark makes these objects anew in several
processes, so they keep nothing that must be remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from shoal import logs
from shoal.errors import ConfigError
from shoal.pipeline.source.checking import check_order
from shoal.pipeline.source.columns import chosen
from shoal.pipeline.source.kinds import kind_of
from shoal.pipeline.source.names import READING, named
from shoal.pipeline.source.offsets import ServerOffset, read_offset, write_offset
from shoal.pipeline.source.options import LATEST, SourceOptions, read_options
from shoal.pipeline.source.planning import Planning
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

    def __init__(self, options: SourceOptions, columns: Sequence[str] | None = None) -> None:
        _speak()
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """What to read, in parts."""
        planning = Planning(self._options, complete=True)
        start = planning.first()
        ending = self._options.ending
        if isinstance(ending, dict):
            planning.check("endingOffsets", ending)
        if isinstance(ending, dict) or isinstance(self._options.starting, dict):
            check_order(start, ending if isinstance(ending, dict) else planning.first(LATEST))
        end = ending if isinstance(ending, dict) else planning.next(start)
        return [PartOfSource(part) for part in planning.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part. Where there was none, Spark hands over one of its own: it has no rows."""
        _speak()
        return _rows(partition.part, self._columns) if isinstance(partition, PartOfSource) else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, micro-batch by micro-batch.

    Its options are read when it is first asked: Spark hides what is said while it is made.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        _speak()
        self._given = given
        self._schema = schema
        self._until: dict[str, ServerOffset] | None = None

    @cached_property
    def _options(self) -> SourceOptions:
        options = read_options(self._given)
        if options.ending != LATEST:
            raise ConfigError(
                "endingOffsets is of a batch, and this is a stream", do="take spark.read, or leave endingOffsets out"
            )
        chosen(self._schema, options.kind.schema)
        return options

    @cached_property
    def _planning(self) -> Planning:
        return Planning(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint."""
        return self._written(self._planning.first())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch reads."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return self._written(self._planning.next(self._read(start), rows_max, self._until))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much one micro-batch takes."""
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far one could read: Spark shows it beside how far it has."""
        return self._written(self._planning.first(LATEST))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that comes from now on is read: what is there now is all."""
        self._until = self._planning.first(LATEST)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What is between two offsets, in parts."""
        return [PartOfSource(part) for part in self._planning.parts(self._read(start), self._read(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        _speak()
        return _rows(cast(PartOfSource, partition).part, self._schema.fieldNames())

    def _read(self, offset: dict[str, Any]) -> dict[str, ServerOffset]:
        return read_offset(offset, self._options.kind.asked)

    def _written(self, offset: dict[str, ServerOffset]) -> dict[str, Any]:
        return write_offset(offset, self._options.kind.asked)


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

        return from_arrow_schema(kind_of(named(self.options, READING)).schema)

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`. A schema that a user gives names the columns that are wanted."""
        options = read_options(self.options)
        return BatchReader(options, chosen(schema, options.kind.schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        from shoal.pipeline.source.writer import BatchWriter

        return BatchWriter.of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """For `df.writeStream`."""
        from shoal.pipeline.source.writer import StreamWriter

        return StreamWriter.of(self.options, schema, overwrite)


def _rows(part: Part, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The rows of a part, with some of its columns in this order; None: as they are."""
    rows = read_part(part)
    return rows if columns is None else (batch.select(columns) for batch in rows)


def _speak() -> None:
    """Lets warnings out of Spark's own processes, where nobody has said how."""
    if not logging.getLogger("shoal").handlers:
        logs.configure()
