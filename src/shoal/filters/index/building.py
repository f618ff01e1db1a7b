"""Building: records and their subscribers become a segment.

Owns the making of a segment, from nothing but records and ids: identical records are merged, each is given its place
(`choosing`, `cells`), and all is sorted and laid out (`layout`). Runs without the interpreter's lock wherever it is
long, so that a segment of a million filters can be made in the background.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.filters.index import cells, choosing, layout
from shoal.filters.index.choosing import PARTS, S_PREFIX, S_SUFFIX
from shoal.filters.index.memory import whole
from shoal.wire.rawbytes import background_kernel, hash_pair, kernel, part

SMALL_CLUSTER: Final = 8
"""Clusters up to this size have no runs: all their records are tested."""
MANY: Final = 64
"""From so many filters in a SCAN run on they are filed by cells."""
GRID: Final = 5
"""A run that is filed by cells; the other types are those of `choosing`."""

_SKETCH: Final = 1 << 16
_SIGNATURES_FIRST: Final = 1024
_SLOTS_PER_CLUSTER: Final = 1.5
_LENGTHS: Final = 4097
"""Lengths of prefixes and suffixes that are told apart; longer ones are not allowed."""
_UNSEEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Records(NamedTuple):
    """Records and who wants them: record `i` is `words[ends[i]:ends[i+1]]`, for `ids[id_ends[i]:id_ends[i+1]]`."""

    words: npt.NDArray[np.uint16]
    ends: npt.NDArray[np.int64]
    ids: npt.NDArray[np.uint32]
    id_ends: npt.NDArray[np.int64]


@kernel
def _power_of_two(least: int) -> int:
    """The smallest power of two that is not below a number."""
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
def unite(words: Any, ends: Any, id_ends: Any, ids: Any, first: Any, united_ends: Any, united: Any) -> int:
    """Merges identical records: the first of each, and the ids of each together. How many are unique."""
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
        united_ends[owner[i] + 1] += id_ends[i + 1] - id_ends[i]
    for i in range(unique):
        united_ends[i + 1] += united_ends[i]
    at = united_ends[:unique].copy()
    for i in range(records):
        for j in range(id_ends[i], id_ends[i + 1]):
            united[at[owner[i]]] = ids[j]
            at[owner[i]] += 1
    return unique


@background_kernel
def count_listed(words: Any, ends: Any, chosen: Any) -> int:
    """Entries that records could have beyond one each, because of lists of values."""
    extra = 0
    for record in chosen:
        listed = choosing.best_list(words, ends[record], ends[record + 1])
        if listed >= 0:
            extra += whole(words[listed + 2]) - 1
    return extra


@kernel
def signature_number(signatures: Any, counts: Any, slots: Any, known: int, parts: Any, count: int) -> int:
    """The number of a signature in the list: `known` if it is new, then it has been added; -1 if there is no room."""
    value = np.uint64(count)
    for i in range(count):
        value = hash_pair(value, np.uint64(parts[i]))
    slot = whole(value % np.uint64(len(slots)))
    while slots[slot] != 0:
        number = slots[slot] - 1
        same = counts[number] == count
        for i in range(count):
            same = same and signatures[number, i] == parts[i]
        if same:
            return whole(number)
        slot = (slot + 1) % len(slots)
    if known == len(counts):
        return -1
    slots[slot] = known + 1
    counts[known] = count
    for i in range(count):
        signatures[known, i] = parts[i]
    return known


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
    repeated: npt.NDArray[np.bool_]


@background_kernel
def choose(
    words: Any, ends: Any, chosen: Any, texts: Any, values: Any, shapes: Any, popular: int, single: bool, seed: Any,
    signatures: Any, counts: Any, slots: Any, entries: Any,
) -> Any:  # fmt: skip
    """The entries of all records: (how many, how many signatures), or -1 for the second if those are too many."""
    found, parts = np.empty(PARTS, np.int64), np.empty(PARTS, np.int64)
    worth = np.empty(PARTS, np.uint64)
    known, to = 0, 0
    for record in chosen:
        at, end = ends[record], ends[record + 1]
        count, listed = choosing.signature_of(
            words, at, end, texts, values, shapes, popular, single, found, parts, worth
        )
        number = signature_number(signatures, counts, slots, known, parts, count)
        if number < 0:
            return to, -1
        known += number == known
        run, attribute, key = choosing.run_of(words, at, end, parts, count)
        for i in range(1 if listed < 0 else whole(words[listed + 2])):
            if listed >= 0:
                worth[0] = choosing.listed_value(words, listed, i)
            entries.record[to] = record
            entries.signature[to] = number
            entries.hash[to] = choosing.cluster_hash(seed, number, worth, count)
            entries.check[to] = choosing.cluster_hash(seed ^ _UNSEEN, number, worth, count)
            entries.sub[to] = (np.uint64(run) << np.uint64(60)) | (np.uint64(attribute) << np.uint64(40))
            entries.key[to] = key
            entries.repeated[to] = i > 0
            to += 1
    return to, known


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
            _lay_out_cluster(entries, order, at, end, runs, keys, blocks, groups, made)
        made[0] += 1
        at = end
    clusters[made[0]] = total
    runs[made[1], 1] = total
    blocks[made[3], 1] = made[4]
    counts[:] = made
    return True


@kernel
def _lay_out_cluster(
    entries: Any, order: Any, at: int, end: int, runs: Any, keys: Any, blocks: Any, groups: Any, made: Any
) -> None:
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
                if choosing.LOW <= kind <= choosing.NOT:
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


@background_kernel
def fill_entries(
    words: Any, ends: Any, first: Any, id_ends: Any, ids: Any, unique_of: Any, entries: Any, order: Any,
    out_words: Any, out_word_ends: Any, out_ids: Any, out_id_ends: Any,
) -> None:  # fmt: skip
    """Copies records and ids in the order of the entries."""
    word_at, id_at = 0, 0
    for position in range(len(order)):
        entry = order[position]
        record = entries.record[entry]
        out_word_ends[position] = word_at | (layout.REPEATED if entries.repeated[entry] else np.uint32(0))
        out_id_ends[position] = id_at
        for i in range(ends[record], ends[record + 1]):
            out_words[word_at] = words[i]
            word_at += 1
        unique = unique_of[record]
        for i in range(id_ends[unique], id_ends[unique + 1]):
            out_ids[id_at] = ids[i]
            id_at += 1
    out_word_ends[len(order)] = word_at
    out_id_ends[len(order)] = id_at


def build(given: Records, texts: tuple[Any, Any, Any], attributes: int) -> npt.NDArray[np.uint8]:
    """A segment of some records, which are not empty. `texts` are the arrays (data, ends, slots) of the strings' table,
    `attributes` says how many names there are."""
    words, ends = given.words, given.ends
    first = np.empty(len(ends) - 1, np.int64)
    id_ends = np.zeros(len(ends), np.int64)
    ids = np.empty(len(given.ids), np.uint32)
    unique = unite(words, ends, given.id_ends, given.ids, first, id_ends, ids)
    first = first[:unique]
    values, shapes = np.zeros(_SKETCH, np.uint32), np.zeros(_SKETCH, np.uint32)
    choosing.survey(words, ends, first, texts, values, shapes)
    popular = max(choosing.POPULAR_MIN, unique // choosing.POPULAR_SHARE)
    seed = 1
    while True:
        entries, signatures, counts = _entries(words, ends, first, texts, values, shapes, popular, seed)
        parts, header, order = _arranged(words, ends, entries, attributes)
        if order is not None:
            break
        seed += 1
    unique_of = np.empty(len(ends) - 1, np.int64)
    unique_of[first] = np.arange(unique)
    lengths = np.diff(ends)[entries.record]
    members = np.diff(id_ends)[unique_of[entries.record]]
    out_words = np.empty(int(lengths.sum()), np.uint16)
    out_ids = np.empty(int(members.sum()), np.uint32)
    word_ends, out_id_ends = np.empty(len(order) + 1, np.uint32), np.empty(len(order) + 1, np.uint32)
    fill_entries(
        words, ends, first, id_ends, ids, unique_of, entries, order, out_words, word_ends, out_ids, out_id_ends
    )
    parts["words"], parts["word_ends"], parts["ids"] = out_words, word_ends, out_ids
    parts["ids_ends"] = out_id_ends if len(out_ids) != len(order) else out_id_ends[:0]
    parts["order"] = np.argsort(out_ids, kind="stable").astype(np.uint32)
    owners = entries.signature[order[parts["clusters"][:-1] & layout.LOW_31]]
    parts["signatures"] = _signature_words(words, ends, entries, signatures, counts, owners, texts)
    header[layout.H_SEED], header[layout.H_UNIQUE] = seed, unique
    header[layout.H_ENTRIES], header[layout.H_IDS] = len(order), len(out_ids)
    header[layout.H_SIGNATURES], header[layout.H_ATTRIBUTES] = len(counts), attributes
    header[layout.H_WORDS] = len(out_words)
    return layout.assemble(header, parts)


def _entries(
    words: Any, ends: Any, first: Any, texts: Any, values: Any, shapes: Any, popular: int, seed: int
) -> tuple[Entries, Any, Any]:
    """The entries of all unique records and their signatures: pairs of equalities while those are few enough."""
    size = len(first) + count_listed(words, ends, first)
    entries = Entries(
        np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.uint64), np.empty(size, np.uint64),
        np.empty(size, np.uint64), np.empty(size, np.float64), np.empty(size, np.bool_),
    )  # fmt: skip
    room, single = _SIGNATURES_FIRST, False
    while True:
        signatures, counts = np.zeros((room, PARTS), np.int64), np.full(room, -1, np.int64)
        slots = np.zeros(2 * room, np.int64)
        made, known = choose(
            words, ends, first, texts, values, shapes, popular, single, np.uint64(seed), signatures, counts, slots,
            entries,
        )  # fmt: skip
        if known >= 0:
            return Entries._make(column[:made] for column in entries), signatures[:known], counts[:known]
        room, single = (room if not single else 4 * room), True


def _arranged(words: Any, ends: Any, entries: Entries, attributes: int) -> tuple[dict[str, Any], Any, Any]:
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
            counts = np.zeros((cells.SIDES, cells.KEYS), np.uint32)
            filing = words, ends, entries.record, many, edges, edge_starts, entries.hash, counts
            cells.count_keys(*filing)
            cells.file_by_cells(*filing, entries.sub, columns, further)
    order = np.lexsort((entries.key, entries.sub, entries.hash, entries.signature))
    size = len(order)
    clusters = np.empty(size + 1, np.uint32)
    runs, blocks, groups = (np.zeros((size + 1, width), np.uint32) for width in (4, 2, 4))
    keys, made = np.empty(size), np.zeros(6, np.int64)
    header = np.zeros(layout.HEADER_WORDS, np.int64)
    if not lay_out(entries, order, clusters, runs, keys, blocks, groups, made):
        return {}, header, None
    slot_count = max(8, int(made[0] * _SLOTS_PER_CLUSTER))
    tags, slots = np.zeros(slot_count, np.uint8), np.zeros(slot_count, np.uint32)
    fill_slots(entries, order, clusters, made[0], tags, slots)
    cells.tile(groups, int(made[4]), order, entries.sub, columns)
    filed = cells.pack_groups(groups, int(made[4]), order, columns, further)
    header[layout.H_CLUSTERS], header[layout.H_RUNS], header[layout.H_KEYS] = made[:3]
    header[layout.H_BLOCKS], header[layout.H_GROUPS], header[layout.H_GROUP_MOST] = made[3:]
    header[layout.H_SLOTS] = slot_count
    parts: dict[str, Any] = {
        "clusters": clusters[: made[0] + 1], "tags": tags, "slots": slots, "runs": runs[: made[1] + 1],
        "keys": keys[: made[2]], "blocks": blocks[: made[3] + 1], "groups": groups[: made[4]],
        "filed": filed, "edges": edges, "edge_starts": edge_starts,
    }  # fmt: skip
    return parts, header, order


@background_kernel
def collect_lengths(words: Any, ends: Any, record: Any, signature: Any, parts: Any, texts: Any, seen: Any) -> None:
    """Marks, for each signature whose last part is a prefix or suffix, the lengths in bytes that occur."""
    for entry in range(len(record)):
        wanted = parts[signature[entry]]
        if wanted < 0:
            continue
        at = ends[record[entry]]
        best = choosing.best_string(words, at, ends[record[entry] + 1], texts)
        seen[wanted, min(choosing.text_length(words, best, texts), seen.shape[1] - 1)] = True


def _signature_words(
    words: Any, ends: Any, entries: Entries, signatures: Any, counts: Any, owners: Any, texts: Any
) -> npt.NDArray[np.uint32]:
    """The signatures as the matching kernel reads them, one after the other: how many parts, how many lengths, the
    first cluster and one past the last, then the parts, then the lengths. `owners` are the signatures of the clusters,
    in order."""
    kinds = np.array([signatures[i, counts[i] - 1] >> 16 if counts[i] else 0 for i in range(len(counts))])
    textual = np.flatnonzero((kinds == S_PREFIX) | (kinds == S_SUFFIX))
    row_of = np.full(len(counts), -1, np.int64)
    row_of[textual] = np.arange(len(textual))
    seen = np.zeros((len(textual), _LENGTHS), np.bool_)
    collect_lengths(words, ends, entries.record, entries.signature, row_of, texts, seen)
    out: list[int] = []
    firsts = np.searchsorted(owners, np.arange(len(counts) + 1))
    for number, count in enumerate(counts):
        lengths = np.flatnonzero(seen[row_of[number]]) if row_of[number] >= 0 else ()
        bounds = int(firsts[number]), int(firsts[number + 1])
        out += [int(count), len(lengths), *bounds, *map(int, signatures[number, :count]), *map(int, lengths)]
    return np.array(out, np.uint32)
