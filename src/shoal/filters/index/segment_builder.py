"""The segment builder: makes a segment from records and their ids.

Owns the steps: identical records are merged, each record gets its entries (`signatures`), the entries are sorted and
grouped (`grid`), and all of it becomes a block (`segment_layout`). Never touches a store. The long steps run without
the interpreter lock, so that a segment of a million filters can be built in the background.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.filters.index import grid
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import copy_bytes, i64, prefetch
from shoal.filters.index.postings import pack_id_starts
from shoal.filters.index.record_format import RecordSet, put_bits
from shoal.filters.index.segment_layout import S_PREFIX, S_SUFFIX, first_slot, tag_of
from shoal.filters.index.signatures import (
    AFFIX_BYTES_MAX,
    POPULAR_MIN,
    POPULAR_SHARE,
    SIGNATURE_PARTS_MAX,
    best_list_item,
    best_string_item,
    cluster_hash,
    count_values,
    listed_hash,
    run_of,
    signature_of,
    string_length,
)
from shoal.wire.raw_bytes import background_kernel, hash_pair, kernel

CLUSTER_SMALL_MAX: Final = 8
"""Clusters up to this size have no runs: all their records are tested."""
GRID_MIN: Final = 64
"""A SCAN run with at least this many entries becomes a grid."""
_SLOTS_PER_CLUSTER: Final = 1.5
_SKETCH_MAX: Final = 1 << 16
"""Counters of a sketch at most."""
_SIGNATURES_FIRST: Final = 1024
_LENGTHS: Final = AFFIX_BYTES_MAX + 1
"""Lengths of prefixes and suffixes in signatures, 0 included."""
_AHEAD: Final = 16
"""Records between the one that is copied and the one that is prefetched."""
_CHECK_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
"""Makes the second hash of a cluster differ from the first."""


@kernel
def _power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`, and at least 8."""
    size = 8
    while size < least:
        size *= 2
    return size


@kernel
def hash_record(words: Any, at: int, end: int) -> np.uint64:
    """A hash of a record."""
    value = np.uint64(end - at)
    for i in range(at, end):
        value = hash_pair(value, np.uint64(words[i]))
    return value


@kernel
def same_record(words: Any, at: int, end: int, other: int, other_end: int) -> bool:
    """Whether two records are equal."""
    if end - at != other_end - other:
        return False
    for i in range(end - at):  # noqa: SIM110 (numba knows no generator in all() or any())
        if words[at + i] != words[other + i]:
            return False
    return True


@background_kernel
def merge_duplicates(words: Any, ends: Any, id_ends: Any, ids: Any, first: Any, merged_ends: Any, merged: Any) -> int:
    """Merges identical records: the first of each, and the ids of all of them. Returns the number of unique records."""
    records = len(ends) - 1
    slots = np.zeros(_power_of_two(2 * records + 1), np.int64)
    mask = np.uint64(len(slots) - 1)
    owner = np.empty(records, np.int64)
    unique = 0
    for i in range(records):
        slot = hash_record(words, ends[i], ends[i + 1]) & mask
        while slots[slot] != 0:
            other = first[slots[slot] - 1]
            if same_record(words, ends[i], ends[i + 1], ends[other], ends[other + 1]):
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] == 0:
            first[unique] = i
            unique += 1
            slots[slot] = unique
        owner[i] = slots[slot] - 1
        merged_ends[owner[i] + 1] += id_ends[i + 1] - id_ends[i]
    for i in range(unique):
        merged_ends[i + 1] += merged_ends[i]
    at = merged_ends[:unique].copy()
    for i in range(records):
        for j in range(id_ends[i], id_ends[i + 1]):
            merged[at[owner[i]]] = ids[j]
            at[owner[i]] += 1
    return unique


@background_kernel
def count_listed(words: Any, ends: Any, chosen: Any, values: Any) -> int:
    """Number of entries that records may have beyond one each, because of lists."""
    extra = 0
    for record in chosen:
        listed = best_list_item(words, ends[record], ends[record + 1], values)
        if listed >= 0:
            extra += i64(words[listed + 2]) - 1
    return extra


@kernel
def signature_number(signatures: Any, counts: Any, slots: Any, known: int, parts: Any, count: int) -> int:
    """The number of a signature. A new one is added and gets the number `known`; -1 if there is no room."""
    value = np.uint64(count)
    for i in range(count):
        value = hash_pair(value, np.uint64(parts[i]))
    slot = i64(value % np.uint64(len(slots)))
    while slots[slot] != 0:
        number = slots[slot] - 1
        same = counts[number] == count
        for i in range(count):
            same = same and signatures[number, i] == parts[i]
        if same:
            return i64(number)
        slot = (slot + 1) % len(slots)
    if known == len(counts):
        return -1
    slots[slot] = known + 1
    counts[known] = count
    for i in range(count):
        signatures[known, i] = parts[i]
    return known


@background_kernel
def choose_entries(
    words: Any, ends: Any, chosen: Any, strings: Any, values: Any, shapes: Any, popular: int, single: bool, seed: Any,
    signatures: Any, counts: Any, slots: Any, entries: Any,
) -> Any:  # fmt: skip
    """Chooses the entries of all records. Returns (number of entries, number of signatures, or -1 if there are too
    many)."""
    found, parts = np.empty(SIGNATURE_PARTS_MAX, np.int64), np.empty(SIGNATURE_PARTS_MAX, np.int64)
    hashes = np.empty(SIGNATURE_PARTS_MAX, np.uint64)
    known, to = 0, 0
    for record in chosen:
        at, end = ends[record], ends[record + 1]
        count, listed = signature_of(words, at, end, strings, values, shapes, popular, single, found, parts, hashes)
        number = signature_number(signatures, counts, slots, known, parts, count)
        if number < 0:
            return to, -1
        known += number == known
        run, attribute, key = run_of(words, at, end, parts, count)
        for i in range(1 if listed < 0 else i64(words[listed + 2])):
            if listed >= 0:
                hashes[0] = listed_hash(words, listed, i)
            entries.record[to] = record
            entries.signature[to] = number
            entries.hash[to] = cluster_hash(seed, number, hashes, count)
            entries.check[to] = cluster_hash(seed ^ _CHECK_SEED, number, hashes, count)
            entries.sub[to] = (np.uint64(run) << np.uint64(60)) | (np.uint64(attribute) << np.uint64(40))
            entries.key[to] = key
            entries.place[to] = i
            to += 1
    return to, known


class Entries(NamedTuple):
    """One row for each place where a record can be found."""

    record: npt.NDArray[np.int64]
    signature: npt.NDArray[np.int32]
    hash: npt.NDArray[np.uint64]
    check: npt.NDArray[np.uint64]
    """A second hash of the same, to detect collisions."""
    sub: npt.NDArray[np.uint64]
    """The order within a cluster: type of run << 60, attribute << 40, and the group in grid runs."""
    key: npt.NDArray[np.float64]
    place: npt.NDArray[np.uint16]
    """The index of the value in its list that the entry stands for; 0 if there is no list."""


@background_kernel
def lay_out(
    entries: Any, order: Any, clusters: Any, runs: Any, keys: Any, buckets: Any, groups: Any, counts: Any
) -> bool:
    """Walks the sorted entries and writes where clusters, runs, buckets and groups begin. Returns False if two clusters
    have the same hash. `counts` gets the numbers of clusters, runs, keys, buckets and groups, and the size of the
    largest group."""
    made = np.zeros(6, np.int64)
    total = len(order)
    at = 0
    while at < total:
        value = entries.hash[order[at]]
        end = at
        signature = entries.signature[order[at]]
        while end < total and entries.hash[order[end]] == value and entries.signature[order[end]] == signature:
            if entries.check[order[end]] != entries.check[order[at]]:
                return False
            end += 1
        clusters[made[0]] = at
        if end - at > CLUSTER_SMALL_MAX:
            clusters[made[0]] = at | layout.WITH_RUNS
            lay_out_cluster(entries, order, at, end, runs, keys, buckets, groups, made)
        made[0] += 1
        at = end
    clusters[made[0]] = total
    runs[made[1], 1] = total
    buckets[made[3], 1] = made[4]
    counts[:] = made
    return True


@kernel
def lay_out_cluster(
    entries: Any, order: Any, at: int, end: int, runs: Any, keys: Any, buckets: Any, groups: Any, made: Any
) -> None:
    """The same for one large cluster, the entries from `at` to `end`."""
    grid_bit = np.uint64(1) << np.uint64(59)
    while at < end:
        sub = entries.sub[order[at]]
        in_grid = (sub & grid_bit) != 0
        kind = i64(sub >> np.uint64(60))
        run = made[1]
        runs[run, 0] = (layout.RUN_GRID if in_grid else kind) | (i64((sub >> np.uint64(40)) & np.uint64(0xFFFF)) << 8)
        runs[run, 1] = at
        runs[run, 2] = made[3] if in_grid else made[2]
        stop = at
        if in_grid:
            bucket, group = np.uint64(0), np.uint64(0)
            while stop < end and (entries.sub[order[stop]] & grid_bit) != 0:
                now = entries.sub[order[stop]]
                if stop == at or now >> np.uint64(32) != bucket:
                    bucket = now >> np.uint64(32)
                    buckets[made[3], 0] = bucket & grid.LOW_16
                    buckets[made[3], 1] = made[4]
                    made[3] += 1
                if stop == at or now != group:
                    group = now
                    groups[made[4], 0] = grid.other_attributes(group)
                    groups[made[4], 1] = stop
                    made[4] += 1
                groups[made[4] - 1, 2] += 1
                made[5] = max(made[5], i64(groups[made[4] - 1, 2]))
                stop += 1
        else:
            while stop < end and entries.sub[order[stop]] == sub:
                if layout.RUN_LOW <= kind <= layout.RUN_SORTED_LAST:
                    keys[made[2]] = entries.key[order[stop]]
                    made[2] += 1
                stop += 1
        runs[run, 3] = made[3]
        made[1] += 1
        at = stop


@background_kernel
def fill_slots(entries: Any, order: Any, clusters: Any, count: int, tags: Any, slots: Any) -> None:
    """Enters all clusters into their hash table."""
    for cluster in range(count):
        value = entries.hash[order[clusters[cluster] & layout.LOW_31]]
        slot = first_slot(value, len(slots))
        while slots[slot] != 0:
            slot = slot + 1 if slot + 1 < len(slots) else 0
        slots[slot] = cluster + 1
        tags[slot] = tag_of(value)


def arrange_entries(words: Any, ends: Any, entries: Entries, attributes: int) -> tuple[dict[str, Any], Any, Any]:
    """Sorts the entries and lays them out. Returns the parts, the header and the order; the order is None if two
    clusters have the same hash."""
    columns, further = np.empty((0, grid.COLUMNS), np.uint8), np.empty((0, grid.FURTHER), np.uint32)
    edges, edge_starts = np.empty(0), np.zeros(attributes + 1, np.uint32)
    scan = np.flatnonzero(entries.sub >> np.uint64(60) == layout.RUN_SCAN)
    if len(scan):
        _, inverse, sizes = np.unique(entries.hash[scan], return_inverse=True, return_counts=True)
        many = scan[sizes[inverse] >= GRID_MIN]
        if len(many):
            edges, edge_starts = grid.edges_of(words, ends, entries.record[many], attributes)
            columns = np.zeros((len(entries.record), grid.COLUMNS), np.uint8)
            further = np.zeros((len(entries.record), grid.FURTHER), np.uint32)
            counts = np.zeros((grid.SIDES, min(grid.KEYS_MAX, 8 * len(many))), np.uint32)
            measured = grid.measure_bounds(words, ends, entries.record[many], edges, edge_starts)
            grid.count_keys(measured, many, entries.hash, counts)
            grid.assign_groups(measured, many, entries.hash, counts, entries.sub, columns, further)
    order = np.lexsort((entries.key, entries.sub, entries.hash, entries.signature))
    size = len(order)
    clusters = np.empty(size + 1, np.uint32)
    runs, buckets, groups = (np.zeros((size + 1, width), np.uint32) for width in (4, 3, 4))
    keys, made = np.empty(size), np.zeros(6, np.int64)
    header = np.zeros(layout.HEADER_WORDS, np.int64)
    if not lay_out(entries, order, clusters, runs, keys, buckets, groups, made):
        return {}, header, None
    slot_count = max(8, int(made[0] * _SLOTS_PER_CLUSTER))
    tags, slots = np.zeros(slot_count, np.uint8), np.zeros(slot_count, np.uint32)
    fill_slots(entries, order, clusters, made[0], tags, slots)
    grid.tile(groups, int(made[4]), order, entries.sub, columns)
    chunks, chunk_boxes, starts = grid.pack_groups(groups, int(made[4]), order, columns, further)
    buckets[: made[3], 2] = starts[buckets[: made[3], 1]] // 64
    header[layout.H_CLUSTERS], header[layout.H_RUNS], header[layout.H_KEYS] = made[:3]
    header[layout.H_BUCKETS], header[layout.H_GROUPS], header[layout.H_GROUP_MAX] = made[3:]
    header[layout.H_SLOTS] = slot_count
    parts: dict[str, Any] = {
        "clusters": clusters[: made[0] + 1], "tags": tags, "slots": slots, "runs": runs[: made[1] + 1],
        "keys": keys[: made[2]], "buckets": buckets[: made[3] + 1], "groups": groups[: made[4]],
        "chunk_boxes": chunk_boxes, "chunks": chunks, "edges": edges, "edge_starts": edge_starts,
    }  # fmt: skip
    return parts, header, order


@background_kernel
def fill_entries(
    words: Any, ends: Any, id_ends: Any, ids: Any, unique_of: Any, entries: Any, order: Any, out_words: Any,
    out_word_ends: Any, out_ids: Any, out_id_ends: Any,
) -> None:  # fmt: skip
    """Copies records and ids in the order of the entries. A record with several entries is copied once. Records are far
    apart in that order, so each is prefetched before it is copied."""
    word_at, id_at, count = 0, 0, len(order)
    holder = np.zeros(len(ends) - 1, np.uint32)
    records, places = np.empty(count, np.int64), np.empty(count, np.uint16)
    for position in range(count):
        records[position], places[position] = entries.record[order[position]], entries.place[order[position]]
    for position in range(count):
        if places[position] == 0:
            holder[records[position]] = position
    source, to = i64(words.ctypes.data), i64(out_words.ctypes.data)
    for position in range(count):
        record = records[position]
        ahead = records[min(position + _AHEAD, count - 1)]
        prefetch(source + 2 * i64(ends[ahead]))
        prefetch(i64(ids.ctypes.data) + 4 * i64(id_ends[unique_of[ahead]]))
        out_id_ends[position] = id_at
        if places[position] == 0:
            out_word_ends[position] = word_at
            size = i64(ends[record + 1] - ends[record])
            copy_bytes(to + 2 * word_at, source + 2 * i64(ends[record]), 2 * size)
            word_at += size
        else:
            out_word_ends[position] = word_at | layout.REPEATED
            out_words[word_at] = places[position]
            put_bits(out_words, word_at + 1, np.uint64(holder[record]), 2)
            word_at += layout.REPEATED_WORDS
        unique = unique_of[record]
        for i in range(id_ends[unique], id_ends[unique + 1]):
            out_ids[id_at] = ids[i]
            id_at += 1
    out_word_ends[count] = word_at
    out_id_ends[count] = id_at


@background_kernel
def collect_lengths(words: Any, ends: Any, record: Any, signature: Any, parts: Any, strings: Any, seen: Any) -> None:
    """Marks, for each signature whose last part is a prefix or suffix, the lengths in bytes that occur."""
    for entry in range(len(record)):
        wanted = parts[signature[entry]]
        if wanted < 0:
            continue
        at = ends[record[entry]]
        best = best_string_item(words, at, ends[record[entry] + 1], strings)
        seen[wanted, string_length(words, best, strings)] = True


def _signature_words(
    words: Any, ends: Any, entries: Entries, signatures: Any, counts: Any, owners: Any, strings: Any
) -> npt.NDArray[np.uint32]:
    """The part `signatures`. `owners` are the signatures of the clusters, in order."""
    kinds = np.array([signatures[i, counts[i] - 1] >> 16 if counts[i] else 0 for i in range(len(counts))])
    textual = np.flatnonzero((kinds == S_PREFIX) | (kinds == S_SUFFIX))
    row_of = np.full(len(counts), -1, np.int64)
    row_of[textual] = np.arange(len(textual))
    seen = np.zeros((len(textual), _LENGTHS), np.bool_)
    collect_lengths(words, ends, entries.record, entries.signature, row_of, strings, seen)
    out: list[int] = []
    firsts = np.searchsorted(owners, np.arange(len(counts) + 1))
    for number, count in enumerate(counts):
        lengths = np.flatnonzero(seen[row_of[number]]) if row_of[number] >= 0 else ()
        bounds = int(firsts[number]), int(firsts[number + 1])
        out += [int(count), len(lengths), *bounds, *map(int, signatures[number, :count]), *map(int, lengths)]
    return np.array(out, np.uint32)


def _entries(
    words: Any, ends: Any, first: Any, strings: Any, values: Any, shapes: Any, popular: int, seed: int
) -> tuple[Entries, Any, Any]:
    """The entries of all unique records, and their signatures. Signatures have pairs of equalities, or single ones if
    pairs make too many signatures."""
    size = len(first) + count_listed(words, ends, first, values)
    entries = Entries(
        np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.uint64), np.empty(size, np.uint64),
        np.empty(size, np.uint64), np.empty(size, np.float64), np.empty(size, np.uint16),
    )  # fmt: skip
    room, single = _SIGNATURES_FIRST, False
    while True:
        signatures, counts = np.zeros((room, SIGNATURE_PARTS_MAX), np.int64), np.full(room, -1, np.int64)
        slots = np.zeros(2 * room, np.int64)
        made, known = choose_entries(
            words, ends, first, strings, values, shapes, popular, single, np.uint64(seed), signatures, counts, slots,
            entries,
        )  # fmt: skip
        if known >= 0:
            return Entries._make(column[:made] for column in entries), signatures[:known], counts[:known]
        room, single = (room if not single else 4 * room), True


def build(given: RecordSet, strings: tuple[Any, Any, Any], attributes: int) -> npt.NDArray[np.uint8]:
    """A segment of some records, of which there is at least one. `strings` are the arrays (data, ends, slots) of the
    string table, `attributes` is the number of attribute names."""
    words, ends = given.words, given.ends
    first = np.empty(len(ends) - 1, np.int64)
    id_ends = np.zeros(len(ends), np.int64)
    ids = np.empty(len(given.ids), np.uint32)
    unique = merge_duplicates(words, ends, given.id_ends, given.ids, first, id_ends, ids)
    first = first[:unique]
    values, shapes = (np.zeros(min(_SKETCH_MAX, 16 * unique), np.uint32) for _ in range(2))
    count_values(words, ends, first, strings, values, shapes)
    popular = max(POPULAR_MIN, unique // POPULAR_SHARE)
    seed = 1
    while True:
        entries, signatures, counts = _entries(words, ends, first, strings, values, shapes, popular, seed)
        parts, header, order = arrange_entries(words, ends, entries, attributes)
        if order is not None:
            break
        seed += 1
    unique_of = np.empty(len(ends) - 1, np.int64)
    unique_of[first] = np.arange(unique)
    lengths = np.where(entries.place == 0, np.diff(ends)[entries.record], layout.REPEATED_WORDS)
    members = np.diff(id_ends)[unique_of[entries.record]]
    out_words = np.empty(int(lengths.sum()), np.uint16)
    out_ids = np.empty(int(members.sum()), np.uint32)
    word_ends, out_id_ends = np.empty(len(order) + 1, np.uint32), np.empty(len(order) + 1, np.uint32)
    fill_entries(words, ends, id_ends, ids, unique_of, entries, order, out_words, word_ends, out_ids, out_id_ends)
    parts["words"], parts["word_ends"], parts["ids"] = out_words, word_ends, out_ids
    parts["id_starts"], parts["id_lists"] = pack_id_starts(out_id_ends)
    parts["order"] = layout.sorted_positions(out_ids)
    owners = entries.signature[order[parts["clusters"][:-1] & layout.LOW_31]]
    parts["signatures"] = _signature_words(words, ends, entries, signatures, counts, owners, strings)
    header[layout.H_SEED], header[layout.H_UNIQUE] = seed, unique
    header[layout.H_ENTRIES], header[layout.H_IDS] = len(order), len(out_ids)
    header[layout.H_SIGNATURES], header[layout.H_ATTRIBUTES] = len(counts), attributes
    header[layout.H_WORDS] = len(out_words)
    return layout.assemble(header, parts)
