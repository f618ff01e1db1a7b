"""Arranging: the entries of a segment in their order, and where everything in it begins.

Owns the order of the entries (by signature, cluster, run, and within runs that are filed by cells by group), and the
tables of clusters, runs, blocks and groups that are made of it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.filters.index import boxes, choosing
from shoal.filters.index import grid as cells
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import whole
from shoal.wire.rawbytes import background_kernel, kernel, part

SMALL_CLUSTER: Final = 8
"""Clusters up to this size have no runs: all their records are tested."""
MANY: Final = 64
"""From so many filters in a SCAN run on they are filed by cells."""
GRID: Final = 6
"""A run that is filed by cells; the other types are those of `choosing`."""

_SLOTS_PER_CLUSTER: Final = 1.5


class Entries(NamedTuple):
    """One row for each place in which a record waits."""

    record: npt.NDArray[np.int64]
    signature: npt.NDArray[np.int32]
    hash: npt.NDArray[np.uint64]
    check: npt.NDArray[np.uint64]
    """Another hash of the same, to notice collisions."""
    sub: npt.NDArray[np.uint64]
    """The order within a cluster: type of run << 60, attribute << 40, and more in runs that are filed by cells."""
    key: npt.NDArray[np.float64]
    place: npt.NDArray[np.uint16]
    """Which of the values of its list it waits for; 0 where there is no list."""


@background_kernel
def lay_out(
    entries: Any, order: Any, clusters: Any, runs: Any, keys: Any, blocks: Any, groups: Any, counts: Any
) -> bool:
    """Walks the sorted entries and writes down where clusters, runs, blocks and groups begin; False if two clusters
    have one hash. `counts` becomes how many there are of clusters, runs, keys, blocks and groups, and how many entries
    the largest group has."""
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
        if end - at > SMALL_CLUSTER:
            clusters[made[0]] = at | layout.WITH_RUNS
            lay_out_cluster(entries, order, at, end, runs, keys, blocks, groups, made)
        made[0] += 1
        at = end
    clusters[made[0]] = total
    runs[made[1], 1] = total
    blocks[made[3], 1] = made[4]
    counts[:] = made
    return True


@kernel
def lay_out_cluster(
    entries: Any, order: Any, at: int, end: int, runs: Any, keys: Any, blocks: Any, groups: Any, made: Any
) -> None:
    """The same for one large cluster, whose entries are those from `at` to `end`."""
    filed_bit = np.uint64(1) << np.uint64(59)
    while at < end:
        sub = entries.sub[order[at]]
        filed = (sub & filed_bit) != 0
        kind = whole(sub >> np.uint64(60))
        run = made[1]
        runs[run, 0] = (GRID if filed else kind) | (whole((sub >> np.uint64(40)) & np.uint64(0xFFFF)) << 8)
        runs[run, 1] = at
        runs[run, 2] = made[3] if filed else made[2]
        stop = at
        if filed:
            block, group = np.uint64(0), np.uint64(0)
            while stop < end and (entries.sub[order[stop]] & filed_bit) != 0:
                now = entries.sub[order[stop]]
                if stop == at or now >> np.uint64(32) != block:
                    block = now >> np.uint64(32)
                    blocks[made[3], 0] = block & cells.LOW_16
                    blocks[made[3], 1] = made[4]
                    made[3] += 1
                if stop == at or now != group:
                    group = now
                    groups[made[4], 0] = cells.second_and_third(group)
                    groups[made[4], 1] = stop
                    made[4] += 1
                groups[made[4] - 1, 2] += 1
                made[5] = max(made[5], whole(groups[made[4] - 1, 2]))
                stop += 1
        else:
            while stop < end and entries.sub[order[stop]] == sub:
                if choosing.LOW <= kind <= choosing.SORTED_LAST:
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


@part
def first_slot(value: np.uint64, slots: int) -> int:
    """Where a cluster with this hash is looked for first."""
    return whole(((value >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@part
def tag_of(value: np.uint64) -> np.uint8:
    """A byte of the hash, for slots that are taken by others."""
    return np.uint8(value & np.uint64(0xFF))


def arrange(words: Any, ends: Any, entries: Entries, attributes: int) -> tuple[dict[str, Any], Any, Any]:
    """The order of the entries and where everything begins; None for the order if two clusters have one hash."""
    columns, further = np.empty((0, cells.COLUMNS), np.uint8), np.empty((0, cells.FURTHER), np.uint32)
    edges, edge_starts = np.empty(0), np.zeros(attributes + 1, np.uint32)
    scan = np.flatnonzero(entries.sub >> np.uint64(60) == choosing.SCAN)
    if len(scan):
        _, inverse, sizes = np.unique(entries.hash[scan], return_inverse=True, return_counts=True)
        many = scan[sizes[inverse] >= MANY]
        if len(many):
            edges, edge_starts = cells.edges_of(words, ends, entries.record[many], attributes)
            columns = np.zeros((len(entries.record), cells.COLUMNS), np.uint8)
            further = np.zeros((len(entries.record), cells.FURTHER), np.uint32)
            counts = np.zeros((cells.SIDES, min(cells.KEYS_MAX, 8 * len(many))), np.uint32)
            measured = cells.measure(words, ends, entries.record[many], edges, edge_starts)
            cells.count_keys(measured, many, entries.hash, counts)
            cells.file_by_cells(measured, many, entries.hash, counts, entries.sub, columns, further)
    order = np.lexsort((entries.key, entries.sub, entries.hash, entries.signature))
    size = len(order)
    clusters = np.empty(size + 1, np.uint32)
    runs, blocks, groups = (np.zeros((size + 1, width), np.uint32) for width in (4, 3, 4))
    keys, made = np.empty(size), np.zeros(6, np.int64)
    header = np.zeros(layout.HEADER_WORDS, np.int64)
    if not lay_out(entries, order, clusters, runs, keys, blocks, groups, made):
        return {}, header, None
    slot_count = max(8, int(made[0] * _SLOTS_PER_CLUSTER))
    tags, slots = np.zeros(slot_count, np.uint8), np.zeros(slot_count, np.uint32)
    fill_slots(entries, order, clusters, made[0], tags, slots)
    boxes.tile(groups, int(made[4]), order, entries.sub, columns)
    filed, around, starts = boxes.pack_groups(groups, int(made[4]), order, columns, further)
    blocks[: made[3], 2] = starts[blocks[: made[3], 1]] // 64
    header[layout.H_CLUSTERS], header[layout.H_RUNS], header[layout.H_KEYS] = made[:3]
    header[layout.H_BLOCKS], header[layout.H_GROUPS], header[layout.H_GROUP_MOST] = made[3:]
    header[layout.H_SLOTS] = slot_count
    parts: dict[str, Any] = {
        "clusters": clusters[: made[0] + 1], "tags": tags, "slots": slots, "runs": runs[: made[1] + 1],
        "keys": keys[: made[2]], "blocks": blocks[: made[3] + 1], "groups": groups[: made[4]],
        "around": around, "filed": filed, "edges": edges, "edge_starts": edge_starts,
    }  # fmt: skip
    return parts, header, order
