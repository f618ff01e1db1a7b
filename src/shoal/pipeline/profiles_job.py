"""The job of profiles: samples an archive, matches the samples, and compares filters with each other, block by block.

Owns the order of the steps, the data sent to workers, and the limits. The arithmetic is in `profiles`. On Spark, tasks
sample, match and compare; the driver only combines bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import PipelineError
from shoal.pipeline import bulk_match, event_archive, profiles
from shoal.pipeline.event_archive import ALWAYS, TimeSpan
from shoal.pipeline.filter_sets import FilterSet, opened
from shoal.pipeline.job_folders import make_folder
from shoal.pipeline.profiles import Bits, Sample
from shoal.pipeline.spark.tasks import collect_numbers
from shoal.pipeline.spark.worker_files import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BITS_BYTES_MAX: Final = 2**30
"""Size of all filters' vectors together. The driver and each worker hold them in memory."""
PAIRS_MAX: Final = 20_000_000
"""Most overlaps that one job writes."""
SAMPLE_FILE: Final = "samples.parquet"
PROFILE_FILE: Final = "profiles.parquet"
OVERLAP_FILE: Final = "overlaps.parquet"

Ids = npt.NDArray[np.int64]


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the job."""

    samples: int = 2048
    seed: int = 1
    rate: float | None = None
    """Publications a second in total; None: the rate of the archive, if it has times."""
    span: TimeSpan = ALWAYS
    """The part of the archive that is sampled."""
    overlap_min: float = 0.1
    """Pairs with a lower Jaccard index are left out."""


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the job."""

    filters: int
    matching_filters: int
    samples: int
    publications: int
    rate: float | None
    pairs: int
    files: list[str]


def run(
    filters: FilterSet,
    ids: Iterable[int],
    path: str | Path,
    options: ProfileOptions,
    out: Path,
    spark: SparkSession | None = None,
) -> ProfileResult:
    """Runs the job; without `spark`, on one core of this process. `ids` are those of the filters."""
    numbers = np.array(sorted(ids), np.int64)
    if len(numbers) * options.samples // 8 > BITS_BYTES_MAX:
        raise PipelineError(
            f"{options.samples} samples of {len(numbers)} filters take more than {BITS_BYTES_MAX >> 20} MB",
            do="take fewer samples (--sample)",
        )
    make_folder(out)
    sample = _sample(filters, path, options, spark)
    if not sample.rows.num_rows:
        raise PipelineError(f"the archive {path} has no publications", do="name another one")
    pq.write_table(sample.rows, out / SAMPLE_FILE, row_group_size=profiles.BLOCK_SAMPLES)
    bits = _bits(filters, numbers, sample, out, spark)
    rate = sample.rate if options.rate is None else options.rate
    table = profiles.profile_table(numbers, bits, sample, rate)
    pq.write_table(table.replace_schema_metadata(_metadata(sample, options, rate)), out / PROFILE_FILE)
    pairs = _overlaps(numbers, bits, options, out, spark)
    return ProfileResult(
        filters=len(numbers),
        matching_filters=int((table["matched"].to_numpy() > 0).sum()),
        samples=sample.rows.num_rows,
        publications=sample.publications,
        rate=rate,
        pairs=pairs,
        files=[PROFILE_FILE, OVERLAP_FILE, SAMPLE_FILE],
    )


def _sample(filters: FilterSet, path: str | Path, options: ProfileOptions, spark: SparkSession | None) -> Sample:
    archive = event_archive.open_archive(path, options.span)
    query = bulk_match.query_of(archive.schema, "ids", filters.attributes)
    columns = [name for name in archive.schema.names if name in {*query.columns, profiles.PAYLOAD, "published_at"}]
    count, seed = options.samples, options.seed

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from profiles.sample_batches(batches, query, count, seed)

    if spark is None:
        return profiles.merge_samples(task(archive.read(columns, place=query.place)), count)
    found: pa.Table = archive.on_spark(spark, columns, task, profiles.SAMPLE_SCHEMA, place=query.place).toArrow()
    return profiles.merge_samples(found.cast(profiles.SAMPLE_SCHEMA).to_batches(), count)


def _bits(filters: FilterSet, numbers: Ids, sample: Sample, out: Path, spark: SparkSession | None) -> Bits:
    """The vectors of all filters, with one task for each block of samples."""
    blocks = -(-sample.rows.num_rows // profiles.BLOCK_SAMPLES)
    index = opened(filters.path, filters.version)

    def here(block: int) -> pa.RecordBatch:
        return profiles.block_bits(_block(out / SAMPLE_FILE, block), block, index)

    if spark is None:
        return profiles.combine_blocks(map(here, range(blocks)), numbers, sample.rows.num_rows)
    here(0)  # compiles the matching loops, which workers then find on disk
    spark.sparkContext.addFile(filters.path)
    name, version = Path(filters.path).name, filters.version
    samples = send(spark, "samples", ".parquet", partial(shutil.copyfile, out / SAMPLE_FILE))

    def in_worker(block: int) -> list[pa.RecordBatch]:
        from pyspark import SparkFiles

        events = _block(Path(SparkFiles.get(samples)), block)
        return [profiles.block_bits(events, block, opened(SparkFiles.get(name), version))]

    found = collect_numbers(spark, blocks, in_worker, profiles.BITS_SCHEMA)
    return profiles.combine_blocks(found.combine_chunks().to_batches(), numbers, sample.rows.num_rows)


def _overlaps(numbers: Ids, bits: Bits, options: ProfileOptions, out: Path, spark: SparkSession | None) -> int:
    """Writes the overlaps of all filters that match a sample, with one task for each pair of blocks."""
    active = np.flatnonzero(bits.any(axis=1))
    ids, vectors, least = numbers[active], bits[active], options.overlap_min
    blocks = -(-len(ids) // profiles.BLOCK_FILTERS)
    pairs = [(first, second) for first in range(blocks) for second in range(first, blocks)]

    def here(place: int) -> pa.RecordBatch:
        return profiles.overlap_block(ids, vectors, *pairs[place], least)

    if spark is None:
        parts: Iterable[pa.RecordBatch] = map(here, range(len(pairs)))
    else:
        sent = send(spark, "bits", ".npy", lambda path: np.save(path, vectors))

        def in_worker(place: int) -> list[pa.RecordBatch]:
            from pyspark import SparkFiles

            mapped = np.load(SparkFiles.get(sent), mmap_mode="r")
            return [profiles.overlap_block(ids, mapped, *pairs[place], least)]

        parts = collect_numbers(spark, len(pairs), in_worker, profiles.OVERLAP_SCHEMA).to_batches()
    count = 0
    with pq.ParquetWriter(out / OVERLAP_FILE, profiles.OVERLAP_SCHEMA) as writer:
        for part in parts:
            count += part.num_rows
            if count > PAIRS_MAX:
                raise PipelineError(f"more than {PAIRS_MAX} pairs of filters overlap", do="raise --overlap-min")
            writer.write_batch(part)
    return count


def _block(path: Path, block: int) -> pa.Array:
    """The events of one block of samples."""
    with pq.ParquetFile(path) as file:
        return file.read_row_group(block, columns=["event"], use_threads=False)["event"].combine_chunks()


def _metadata(sample: Sample, options: ProfileOptions, rate: float | None) -> dict[str, str]:
    """The metadata of the table of profiles."""
    return {
        "shoal.profiles.version": profiles.PROFILES_VERSION,
        "shoal.profiles.samples": str(sample.rows.num_rows),
        "shoal.profiles.publications": str(sample.publications),
        "shoal.profiles.seed": str(options.seed),
        "shoal.profiles.rate": "" if rate is None else repr(rate),
    }
