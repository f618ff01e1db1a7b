"""The source "shoal" as Spark sees it: its schema, readers and writers.

Owns the classes that Spark calls; what is read is decided in `offset_planner`. Spark creates these objects again in
several processes, so they keep no state that matters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from shoal import logs
from shoal.errors import ConfigError
from shoal.pipeline.source import conditions
from shoal.pipeline.source.columns import chosen
from shoal.pipeline.source.conditions import Condition
from shoal.pipeline.source.kinds import kind_of
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset, check_order, read_offset, write_offset
from shoal.pipeline.source.options import LATEST, READER_OPTIONS, SourceOptions, known_options, read_options
from shoal.pipeline.source.part_filter import narrowed
from shoal.pipeline.source.parts import Part, read_part
from shoal.pipeline.spark.tasks import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shoal.pipeline.source.writer import BatchWriter, StreamWriter


class PartOfSource(InputPartition):
    """A part, as Spark sends it to a worker."""

    def __init__(self, part: Part) -> None:
        self.part = part


ARCHIVE: Final = "archive"
"""The value of the option `kind` for archives. What reads them loads pandas and the client of the bus, which takes
longer than to start a worker, so only this kind loads it."""

Comparison = EqualTo | In | StringStartsWith | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual
"""Spark's filters that a batch uses."""

TESTS: Final[dict[type[Filter], str]] = {
    EqualTo: conditions.EQUAL,
    In: conditions.IN,
    StringStartsWith: conditions.PREFIX,
    LessThan: conditions.LESS,
    LessThanOrEqual: conditions.LESS_EQUAL,
    GreaterThan: conditions.GREATER,
    GreaterThanOrEqual: conditions.GREATER_EQUAL,
}


class PushFilters:
    """The method `pushFilters` of a reader, in a form that PySpark accepts in every session.

    While `spark.sql.python.filterPushdown.enabled` is false, PySpark never calls the method, and rejects readers that
    override it. It compares `__func__` to find out.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Calls the method."""
        return self._push(filters)


class BatchReader(DataSourceReader):
    """Reads the entries that exist when the query starts."""

    def __init__(self, options: SourceOptions, columns: Sequence[str] | None = None) -> None:
        _enable_logs()
        self._options = options
        self._columns = columns
        self._conditions: list[Condition] = []

    @property
    def pushFilters(self) -> PushFilters:  # noqa: N802
        """Takes the conditions of a query, before `partitions`. Spark checks all of them again."""
        return PushFilters(self._push_filters)

    def _push_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if isinstance(each, Comparison) and len(each.attribute) == 1:
                column, test = each.attribute[0], TESTS[type(each)]
                made = conditions.condition(self._options.kind.schema, column, test, each.value)
                self._conditions += [] if made is None else [made]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """What to read, in parts."""
        planner = OffsetPlanner(self._options, complete=True)
        start = planner.first()
        ending = self._options.ending
        if isinstance(ending, dict):
            planner.check("endingOffsets", ending)
        if isinstance(ending, dict) or isinstance(self._options.starting, dict):
            check_order(start, ending if isinstance(ending, dict) else planner.first(LATEST))
        end = ending if isinstance(ending, dict) else planner.next(start)
        return [PartOfSource(part) for part in narrowed(planner.parts(start, end), self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part. If there are no parts, Spark passes a partition of its own, which has no rows."""
        _enable_logs()
        return _rows(partition.part, self._columns) if isinstance(partition, PartOfSource) else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads entries as they come, micro-batch by micro-batch.

    Options are read on first use, not in the constructor, because Spark hides errors of the constructor.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        _enable_logs()
        self._given = given
        self._schema = schema
        self._until: dict[str, ServerOffset] | None = None

    @cached_property
    def _options(self) -> SourceOptions:
        options = read_options(self._given)
        if options.ending != LATEST:
            raise ConfigError(
                "endingOffsets is for a batch, and this is a stream", do="use spark.read, or leave endingOffsets out"
            )
        chosen(self._schema, options.kind.schema)
        return options

    @cached_property
    def _planner(self) -> OffsetPlanner:
        return OffsetPlanner(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts."""
        return self._written(self._planner.first())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch reads."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return self._written(self._planner.next(self._read(start), rows_max, self._until))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The size limit of a micro-batch."""
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The newest entries, which Spark shows beside its own position."""
        return self._written(self._planner.first(LATEST))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limits reading to the entries that exist now."""
        self._until = self._planner.first(LATEST)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What is between two offsets, in parts."""
        return [PartOfSource(part) for part in self._planner.parts(self._read(start), self._read(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        _enable_logs()
        return _rows(cast(PartOfSource, partition).part, self._schema.fieldNames())

    def _read(self, offset: dict[str, Any]) -> dict[str, ServerOffset]:
        return read_offset(offset, self._options.kind.asked, self._options.kind.new_name)

    def _written(self, offset: dict[str, ServerOffset]) -> dict[str, Any]:
        return write_offset(offset, self._options.kind.asked)


class ShoalSource(DataSource):
    """The format "shoal"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "shoal"

    def schema(self) -> StructType:
        """The columns of the selected kind."""
        if _is_archive(self.options):
            from shoal.pipeline.source.archive_reader import ARCHIVE_SCHEMA

            archived: StructType = spark_schema(ARCHIVE_SCHEMA)
            return archived
        found: StructType = spark_schema(kind_of(known_options(self.options, READER_OPTIONS)).schema)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. A schema given by the user selects columns."""
        if _is_archive(self.options):
            from shoal.pipeline.source.archive_reader import ArchiveReader

            return ArchiveReader(self.options, schema)
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


def _is_archive(given: Mapping[str, str]) -> bool:
    """Whether the options select an archive."""
    return any(name.lower() == "kind" and value == ARCHIVE for name, value in given.items())


def _rows(part: Part, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The rows of a part, with these columns in this order; None: all columns."""
    rows = read_part(part)
    return rows if columns is None else (batch.select(columns) for batch in rows)


def _enable_logs() -> None:
    """Configures our logs in Spark's own processes, where the application has not done so."""
    if not logging.getLogger("shoal").handlers:
        logs.configure()
