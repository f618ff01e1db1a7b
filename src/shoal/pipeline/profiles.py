"""Profiles of filters after PRESS (PADRES paper, 4.1): bit vectors over sampled publications, loads, and overlaps.

Owns the sample, the bits and the arithmetic, as functions from Arrow to Arrow or on packed bits. Reads no archive and
starts no Spark; that is `profiles_job`.

A sample consists of the `count` publications of an archive with the lowest hashes (of their keys and a seed). It is the
same however the archive is split, and every part can be sampled by itself. Bit `i` of a filter's vector is set if the
filter matches sample `i`; samples are ordered by publication time. With `ir` publications a second in total and `N`
samples:

    rate(filter)                 ir * bits set / N                                 equation 6
    more_rate(filter, covered)   ir * bits set in (filter and not covered) / N     equations 6 and 7

`covered` is the union (bitwise or) of the vectors that a broker already has, for example of its covering subscriptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.filters.index import Index
from shoal.pipeline.bulk_match import Query, events_of, wire_table

PROFILES_VERSION: Final = "1"
BLOCK_SAMPLES: Final = 1024
"""Samples that one task matches. A multiple of 64, so that blocks of bits can be concatenated as words."""
BLOCK_FILTERS: Final = 1024
"""Filters on each side of a block of overlaps."""
PAYLOAD: Final = "payload"
PUBLISHED_AT: Final = "published_at"

SAMPLE_SCHEMA: Final = pa.schema(
    [
        ("priority", pa.int64()),  # the hash; null in the row of totals, of which each part has one
        ("event", pa.binary()),  # in the wire format, with the attributes that the filters use
        ("bytes", pa.int64()),  # size of payload and attributes
        ("published_us", pa.int64()),  # since 1970; null if unknown
        # Only in the row of totals:
        ("publications", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
    ]
)
BITS_SCHEMA: Final = pa.schema([("filter", pa.int64()), ("block", pa.int32()), ("bits", pa.binary())])

PROFILE_SCHEMA: Final = pa.schema(
    [
        ("filter", pa.int64()),
        ("matched", pa.int64()),  # number of samples, n_BS in the paper
        ("share", pa.float64()),  # share of the samples
        ("rate", pa.float64()),  # publications a second, equation 6; null if the total rate is unknown
        ("bytes_per_s", pa.float64()),  # traffic of one subscriber; null as above
        ("bits", pa.binary()),  # the vector: sample i is bit i % 8 (0 is the lowest) of byte i // 8
    ]
)
OVERLAP_SCHEMA: Final = pa.schema(
    [
        ("a", pa.int64()),  # filters, a < b
        ("b", pa.int64()),
        ("both", pa.int64()),  # samples that both match
        ("only_a", pa.int64()),  # equation 7: a and not b
        ("only_b", pa.int64()),
        ("jaccard", pa.float64()),  # both / samples that at least one of them matches
    ]
)

Bits = npt.NDArray[np.uint64]
"""Vectors packed into words, one row for each filter."""
Hashes = npt.NDArray[np.uint64]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The samples in order of publication, and totals of the archive."""

    rows: pa.Table
    """The columns `event`, `bytes` and `published_us` of `SAMPLE_SCHEMA`."""
    publications: int
    """Publications in the whole archive."""
    span_s: float | None
    """Time from the first to the last of them; None if unknown."""

    @property
    def rate(self) -> float | None:
        """Publications a second in the archive."""
        return self.publications / self.span_s if self.span_s else None


# -- sampling


def sample_batches(batches: Iterable[pa.RecordBatch], query: Query, count: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The samples of one part of an archive: at most `count` rows, and a row of totals."""
    kept = SAMPLE_SCHEMA.empty_table()
    publications, times = 0, [(2**63 - 1, -(2**63))]
    limit = np.uint64(2**64 - 1)
    for batch in batches:
        publications += batch.num_rows
        published = _published(batch)
        if published is not None and published.null_count < len(published):  # rows may lack a time
            times.append((pc.min(published).as_py(), pc.max(published).as_py()))
        hashes = hashes_of(batch, query.keys, seed)
        chosen = np.flatnonzero(hashes <= limit)
        if not len(chosen):
            continue
        kept = _lowest(pa.concat_tables([kept, _sampled(batch.take(pa.array(chosen)), hashes[chosen], query)]), count)
        if kept.num_rows == count:
            limit = _unsigned(kept["priority"][-1].as_py())
    known = len(times) > 1
    totals = {"publications": publications}
    if known:
        totals |= {"first_us": min(first for first, _ in times), "last_us": max(last for _, last in times)}
    yield from pa.concat_tables([kept, pa.Table.from_pylist([totals], SAMPLE_SCHEMA)]).combine_chunks().to_batches()


def merge_samples(parts: Iterable[pa.RecordBatch], count: int) -> Sample:
    """The sample of an archive from the samples of its parts."""
    table = pa.Table.from_batches(parts, SAMPLE_SCHEMA)
    totals = table.filter(pc.is_null(table["priority"]))
    rows = _lowest(table.filter(pc.is_valid(table["priority"])), count)
    first, last = pc.min(totals["first_us"]).as_py(), pc.max(totals["last_us"]).as_py()
    order = [("published_us", "ascending"), ("priority", "ascending")]
    return Sample(
        rows=rows.sort_by(order).select(["event", "bytes", "published_us"]).combine_chunks(),
        publications=pc.sum(totals["publications"]).as_py() or 0,
        span_s=None if first is None or last <= first else (last - first) / 1e6,
    )


def hashes_of(batch: pa.RecordBatch, keys: tuple[str, ...], seed: int) -> Hashes:
    """A pseudo-random number for each row, which depends only on the row's key and the seed."""
    mixed = np.full(batch.num_rows, np.uint64(seed), np.uint64)
    for name in keys:
        mixed = _mixed(mixed ^ _numbers(batch.column(batch.schema.get_field_index(name))))
    return mixed


def _numbers(column: pa.Array) -> Hashes:
    """A column as numbers: hashes of strings and bytes, other values unchanged."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
        coded = column.dictionary_encode()
        words = [
            _of_bytes(value if isinstance(value, bytes) else value.encode()) for value in coded.dictionary.to_pylist()
        ]
        values = np.array([*words, 0], np.uint64)
        return np.asarray(values[pc.fill_null(coded.indices, len(words)).to_numpy(zero_copy_only=False)])
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return np.array(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)).view(np.uint64)


def _of_bytes(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _mixed(value: Hashes) -> Hashes:
    """SplitMix64."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _signed(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Maps unsigned numbers to signed ones, which Spark has, in the same order."""
    return (hashes ^ np.uint64(1 << 63)).view(np.int64)


def _unsigned(priority: int) -> np.uint64:
    return np.uint64(priority + 2**63)


def _lowest(table: pa.Table, count: int) -> pa.Table:
    return table.sort_by("priority").slice(0, count).combine_chunks()


def _sampled(batch: pa.RecordBatch, hashes: Hashes, query: Query) -> pa.Table:
    wire = events_of(batch, query)
    sizes = np.diff(wire.offsets)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    held = b"".join(wire[row] for row in range(len(wire)))
    events = pa.Array.from_buffers(
        pa.binary(), len(wire), [None, pa.py_buffer(starts.astype(np.int32).tobytes()), pa.py_buffer(held)]
    )
    if PAYLOAD in batch.schema.names:
        payload = pc.binary_length(batch.column(batch.schema.get_field_index(PAYLOAD)))
        sizes = sizes + pc.fill_null(payload, 0).to_numpy(zero_copy_only=False)
    published = _published(batch)
    nothing = pa.nulls(len(wire), pa.int64())
    times = nothing if published is None else published
    columns = [pa.array(_signed(hashes)), events, pa.array(sizes), times, nothing, nothing, nothing]
    return pa.table(columns, schema=SAMPLE_SCHEMA)


def _published(batch: pa.RecordBatch) -> pa.Array | None:
    """When each row was published, in microseconds; None if the archive has no such column."""
    at = batch.schema.get_field_index(PUBLISHED_AT)
    if at < 0 or not pa.types.is_timestamp(batch.schema.field(at).type):
        return None
    kind = batch.schema.field(at).type
    return batch.column(at).cast(pa.timestamp("us", kind.tz)).cast(pa.int64())


# -- bits


def block_bits(events: pa.Array, block: int, index: Index) -> pa.RecordBatch:
    """The bits of one block of samples, for every filter that matches any of them."""
    matches = index.match_many(wire_table(events))
    numbers, rows = np.unique(matches.ids, return_inverse=True)
    samples = np.repeat(np.arange(len(events)), np.diff(matches.offsets))
    bits = np.zeros((len(numbers), BLOCK_SAMPLES // 8), np.uint8)
    np.bitwise_or.at(bits, (rows, samples >> 3), np.left_shift(1, samples & 7).astype(np.uint8))
    width = bits.shape[1]
    starts = np.arange(len(numbers) + 1, dtype=np.int32) * width
    vectors = pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(starts.tobytes()), pa.py_buffer(bits.tobytes())]
    )
    blocks = pa.array(np.full(len(numbers), block, np.int32))
    return pa.RecordBatch.from_arrays([pa.array(numbers.astype(np.int64)), blocks, vectors], schema=BITS_SCHEMA)


def combine_blocks(parts: Iterable[pa.RecordBatch], filters: npt.NDArray[np.int64], samples: int) -> Bits:
    """The vectors of all filters (`filters` is sorted), from the bits of blocks."""
    blocks = -(-samples // BLOCK_SAMPLES)
    bits = np.zeros((len(filters), blocks, BLOCK_SAMPLES // 8), np.uint8)
    for part in parts:
        rows = np.searchsorted(filters, part.column(0).to_numpy())
        held = part.column(2)
        _, _, data = held.buffers()
        width = BLOCK_SAMPLES // 8
        vectors = np.frombuffer(data, np.uint8)[held.offset * width :][: len(held) * width] if len(held) else None
        if vectors is not None:
            bits[rows, part.column(1).to_numpy()] = vectors.reshape(-1, width)
    return bits.reshape(len(filters), -1).view(np.uint64)


def profile_table(filters: npt.NDArray[np.int64], bits: Bits, sample: Sample, rate: float | None) -> pa.Table:
    """The table of profiles. `rate` is that of all publications together."""
    count = sample.rows.num_rows
    matched = np.bitwise_count(bits).sum(axis=1, dtype=np.int64)
    weights = np.zeros(bits.shape[1] * 64)
    weights[:count] = sample.rows["bytes"].to_numpy()
    carried = np.array([float(weights @ _unpacked(row)) for row in bits])
    share = matched / max(count, 1)
    unknown = pa.nulls(len(filters), pa.float64())
    packed = bits.view(np.uint8)[:, : -(-count // 8)]
    columns = [
        filters,
        matched,
        share,
        unknown if rate is None else pa.array(rate * share),
        unknown if rate is None else pa.array(rate * carried / max(count, 1)),
        pa.array([row.tobytes() for row in packed], pa.binary()),
    ]
    return pa.table(columns, schema=PROFILE_SCHEMA)


def _unpacked(row: Bits) -> npt.NDArray[np.uint8]:
    return np.unpackbits(row.view(np.uint8), bitorder="little")


def more(bits: Bits, covered: Bits) -> npt.NDArray[np.int64]:
    """Equation 7: the number of samples in each vector that are not covered."""
    return np.asarray(np.bitwise_count(bits & ~covered).sum(axis=-1, dtype=np.int64))


def more_rate(bits: Bits, covered: Bits, samples: int, rate: float) -> npt.NDArray[np.float64]:
    """The publications a second that each filter would add to a broker that already receives the covered samples."""
    return rate * more(bits, covered) / samples


# -- overlaps


def overlap_block(filters: npt.NDArray[np.int64], bits: Bits, first: int, second: int, least: float) -> pa.RecordBatch:
    """The pairs between two blocks of filters (or within one) with a Jaccard index of `least` or more."""
    rows = np.arange(first * BLOCK_FILTERS, min((first + 1) * BLOCK_FILTERS, len(filters)))
    others = np.arange(second * BLOCK_FILTERS, min((second + 1) * BLOCK_FILTERS, len(filters)))
    counts = np.bitwise_count(bits[rows]).sum(axis=1, dtype=np.int64)
    other_counts = np.bitwise_count(bits[others]).sum(axis=1, dtype=np.int64)
    block = bits[others]
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for place, row in enumerate(rows):
        both = np.bitwise_count(bits[row] & block).sum(axis=1, dtype=np.int64)
        either = counts[place] + other_counts - both
        near = np.flatnonzero((both > 0) & (both >= least * either) & (others > row))
        if len(near):
            found.append((np.full(len(near), row), others[near], both[near]))
    if not found:
        return pa.RecordBatch.from_pylist([], OVERLAP_SCHEMA)
    a, b, both = (np.concatenate(column) for column in zip(*found, strict=True))
    only_a, only_b = counts[a - rows[0]] - both, other_counts[b - others[0]] - both
    columns = [filters[a], filters[b], both, only_a, only_b, both / (both + only_a + only_b)]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=OVERLAP_SCHEMA)
