"""Building: records and their subscribers become a segment.

Owns the making of a segment, from nothing but records and ids: identical records are merged (`uniting`), each is given
its place (`choosing`, `cells`), and all is sorted (`arranging`) and laid out (`layout`). Runs without the interpreter's
lock wherever it is long, so that a segment of a million filters can be made in the background.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import choosing, standing
from shoal.filters.index import segment_layout as layout
from shoal.filters.index import signatures as weighing
from shoal.filters.index.arranging import Entries, arrange
from shoal.filters.index.intrinsics import copy_bytes, whole
from shoal.filters.index.members import pack_members
from shoal.filters.index.record_format import put_bits
from shoal.filters.index.signatures import PARTS, S_PREFIX, S_SUFFIX
from shoal.filters.index.uniting import Records, unite
from shoal.filters.index.vectors import prefetch
from shoal.wire.rawbytes import background_kernel, hash_pair, kernel

_SKETCH_MAX: Final = 1 << 16
"""Counters of values, and of shapes of records."""
_SIGNATURES_FIRST: Final = 1024
_LENGTHS: Final = weighing.LENGTH_MAX + 1
"""Lengths of prefixes and suffixes that are told apart; longer ones are not allowed."""
_AHEAD: Final = 16
"""Records that are asked for before they are copied."""
_UNSEEN: Final = np.uint64(0x9E3779B97F4A7C15)


@background_kernel
def count_listed(words: Any, ends: Any, chosen: Any, values: Any) -> int:
    """Entries that records could have beyond one each, because of lists of values."""
    extra = 0
    for record in chosen:
        listed = weighing.best_list(words, ends[record], ends[record + 1], values)
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
                worth[0] = standing.listed_value(words, listed, i)
            entries.record[to] = record
            entries.signature[to] = number
            entries.hash[to] = choosing.cluster_hash(seed, number, worth, count)
            entries.check[to] = choosing.cluster_hash(seed ^ _UNSEEN, number, worth, count)
            entries.sub[to] = (np.uint64(run) << np.uint64(60)) | (np.uint64(attribute) << np.uint64(40))
            entries.key[to] = key
            entries.place[to] = i
            to += 1
    return to, known


@background_kernel
def fill_entries(
    words: Any, ends: Any, id_ends: Any, ids: Any, unique_of: Any, entries: Any, order: Any, out_words: Any,
    out_word_ends: Any, out_ids: Any, out_id_ends: Any,
) -> None:  # fmt: skip
    """Copies records and ids in the order of the entries. A record that has several is written once. Records lie far
    apart in that order: each is asked for some time before it is copied."""
    word_at, id_at, count = 0, 0, len(order)
    held_by = np.zeros(len(ends) - 1, np.uint32)
    records, places = np.empty(count, np.int64), np.empty(count, np.uint16)
    for position in range(count):
        records[position], places[position] = entries.record[order[position]], entries.place[order[position]]
    for position in range(count):
        if places[position] == 0:
            held_by[records[position]] = position
    source, to = whole(words.ctypes.data), whole(out_words.ctypes.data)
    for position in range(count):
        record = records[position]
        ahead = records[min(position + _AHEAD, count - 1)]
        prefetch(source + 2 * whole(ends[ahead]))
        prefetch(whole(ids.ctypes.data) + 4 * whole(id_ends[unique_of[ahead]]))
        out_id_ends[position] = id_at
        if places[position] == 0:
            out_word_ends[position] = word_at
            size = whole(ends[record + 1] - ends[record])
            copy_bytes(to + 2 * word_at, source + 2 * whole(ends[record]), 2 * size)
            word_at += size
        else:
            out_word_ends[position] = word_at | layout.REPEATED
            out_words[word_at] = places[position]
            put_bits(out_words, word_at + 1, np.uint64(held_by[record]), 2)
            word_at += layout.REPEATED_WORDS
        unique = unique_of[record]
        for i in range(id_ends[unique], id_ends[unique + 1]):
            out_ids[id_at] = ids[i]
            id_at += 1
    out_word_ends[count] = word_at
    out_id_ends[count] = id_at


def build(given: Records, texts: tuple[Any, Any, Any], attributes: int) -> npt.NDArray[np.uint8]:
    """A segment of some records, which are not empty. `texts` are the arrays (data, ends, slots) of the strings' table,
    `attributes` says how many names there are."""
    words, ends = given.words, given.ends
    first = np.empty(len(ends) - 1, np.int64)
    id_ends = np.zeros(len(ends), np.int64)
    ids = np.empty(len(given.ids), np.uint32)
    unique = unite(words, ends, given.id_ends, given.ids, first, id_ends, ids)
    first = first[:unique]
    values, shapes = (np.zeros(min(_SKETCH_MAX, 16 * unique), np.uint32) for _ in range(2))
    weighing.survey(words, ends, first, texts, values, shapes)
    popular = max(choosing.POPULAR_MIN, unique // choosing.POPULAR_SHARE)
    seed = 1
    while True:
        entries, signatures, counts = _entries(words, ends, first, texts, values, shapes, popular, seed)
        parts, header, order = arrange(words, ends, entries, attributes)
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
    parts["id_starts"], parts["id_lists"] = pack_members(out_id_ends)
    parts["order"] = layout.order_of(out_ids)
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
    size = len(first) + count_listed(words, ends, first, values)
    entries = Entries(
        np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.uint64), np.empty(size, np.uint64),
        np.empty(size, np.uint64), np.empty(size, np.float64), np.empty(size, np.uint16),
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


@background_kernel
def collect_lengths(words: Any, ends: Any, record: Any, signature: Any, parts: Any, texts: Any, seen: Any) -> None:
    """Marks, for each signature whose last part is a prefix or suffix, the lengths in bytes that occur."""
    for entry in range(len(record)):
        wanted = parts[signature[entry]]
        if wanted < 0:
            continue
        at = ends[record[entry]]
        best = weighing.best_string(words, at, ends[record[entry] + 1], texts)
        seen[wanted, weighing.text_length(words, best, texts)] = True


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
