"""Segments and the record buffer: what holds the records of a store, and which of their ids are dead.

Owns both classes, and the kernels that insert a record into the buffer, remove an id, and copy live records out of
segments. Never touches locks: `segment_store` calls these functions under its own.

The block of a segment is never written again (`segment_layout` describes it). A removed id stays in it; its positions
are added to the array of dead positions beside the block: how many there are, then the positions in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.hash_tables import close_gap, find_id_slot
from shoal.filters.index.intrinsics import i64, i64_at, u16_at, u32_at
from shoal.filters.index.kernel_context import (
    R_BUFFER_COUNT,
    R_BUFFER_ENDS,
    R_BUFFER_ROOM,
    R_BUFFER_WORD_COUNT,
    R_BUFFER_WORDS,
    R_FIRST_SEGMENT,
    R_SEGMENTS,
    SEGMENT_ROOTS,
    block_of,
    root,
)
from shoal.filters.index.postings import dead_at, first_dead, first_id
from shoal.filters.index.record_encoder import RECORD_WORDS_MAX, encode_filter
from shoal.filters.index.record_format import RecordSet
from shoal.filters.index.segment_layout import header_word, u32_part
from shoal.wire.raw_bytes import background_kernel, kernel

BUFFER_MAX: Final = 512
"""Records in a full buffer. They are tested one by one; then they become a segment."""
BUFFER_FIRST: Final = 32
"""Records that a new buffer has room for, so that bulk-loaded stores do not pay for a large one."""
BUFFER_WORDS_FIRST: Final = 1 << 7
"""Words that a new buffer has room for."""
BUFFER_FULL: Final = -7
"""Code: the buffer has no room for another record."""
ID_TAKEN: Final = -9
"""Code: the id is in use."""
DEAD_MIN: Final = 16
"""Smallest size of an array of dead positions, in words."""
ID_MISSING: Final = -1
"""Code: the id is not in use."""
DEAD_FULL: Final = -2
"""Code: the array of dead positions of segment 0 is full. `DEAD_FULL - n` says the same of segment n."""
STALE_SHARE: Final = 4
"""A segment is stale, and rebuilt, when more than one in this many of its positions is dead."""


def merge_positions(dead: npt.NDArray[np.uint32], positions: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The dead positions of an array and some more, which are sorted and may be dead already."""
    known = dead[1 : 1 + int(dead[0])]
    at = np.searchsorted(known, positions)
    new = (at == len(known)) | (np.append(known, np.uint32(0))[at] != positions)
    return np.insert(known, at[new], positions[new])


def dead_array(positions: npt.NDArray[np.uint32], words: int) -> npt.NDArray[np.uint32]:
    """An array of `words` words that lists dead positions: their number, then the positions."""
    dead = np.zeros(words, np.uint32)
    dead[0] = len(positions)
    dead[1 : 1 + len(positions)] = positions
    return dead


def _no_dead() -> npt.NDArray[np.uint32]:
    return np.zeros(DEAD_MIN, np.uint32)


@dataclass(slots=True, eq=False)
class Segment:
    """An immutable block and its dead positions."""

    block: npt.NDArray[np.uint8]
    dead: npt.NDArray[np.uint32] = field(default_factory=_no_dead)
    positions: int = field(init=False)
    """Positions in `ids`, dead ones included."""

    def __post_init__(self) -> None:
        self.positions = int(self.header[layout.H_IDS])

    @property
    def header(self) -> npt.NDArray[np.int64]:
        """Counts and offsets, see `segment_layout`."""
        return self.block[: 8 * layout.HEADER_WORDS].view(np.int64)

    @property
    def dead_count(self) -> int:
        """Number of dead positions."""
        return int(self.dead[0])

    @property
    def live_count(self) -> int:
        """Number of different live ids."""
        ids = np.delete(self.ids(), self.dead_positions()) if self.dead_count else self.ids()
        repeats = int(self.header[layout.H_ENTRIES]) != int(self.header[layout.H_UNIQUE])
        return len(np.unique(ids)) if repeats else len(ids)

    @property
    def tier(self) -> int:
        """Segments of one tier are of similar size: each tier is eight times as large as the one below."""
        return max(0, (max(1, self.positions // BUFFER_MAX).bit_length() - 1) // 3)

    def dead_positions(self) -> npt.NDArray[np.uint32]:
        """A copy of the dead positions."""
        return self.dead[1 : 1 + self.dead_count].copy()

    def ids(self) -> npt.NDArray[np.uint32]:
        """The ids by position."""
        return layout.part_view(self.block, layout.P_IDS, self.positions)

    @property
    def is_stale(self) -> bool:
        """Whether enough positions are dead to rebuild it."""
        return STALE_SHARE * self.dead_count > self.positions

    def grow_dead(self) -> None:
        """Doubles the room for dead positions. The caller refreshes the view."""
        self.dead = np.concatenate([self.dead, np.zeros(len(self.dead), np.uint32)])

    def mark_dead(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Marks all positions of some ids as dead. The ids are different and sorted. The caller refreshes the view."""
        ids = self.ids()
        if self.positions < layout.ORDERED_MIN:
            positions = np.flatnonzero(np.isin(ids, numbers)).astype(np.uint32)
        else:
            positions = np.sort(find_all_positions(ids, self._order(), numbers))
        if len(positions):
            dead = merge_positions(self.dead, positions)
            self.dead = dead_array(dead, 2 * len(dead) + DEAD_MIN)

    def _order(self) -> npt.NDArray[np.uint32]:
        """The positions sorted by id."""
        return layout.part_view(self.block, layout.P_ORDER, self.positions)


class RecordBuffer:
    """Records that are not in a segment yet. Kernels write to it, and test its records one by one."""

    def __init__(self, room: int = BUFFER_FIRST, words: int = BUFFER_WORDS_FIRST) -> None:
        self.room = room
        self.words = np.zeros(words, np.uint16)
        self.ends = np.zeros(room + 1, np.int64)
        self.count = np.zeros(1, np.uint32)
        self.dead = np.zeros(room + 1, np.uint32)
        self.block = np.zeros(8 * layout.HEADER_WORDS + 4 * room, np.uint8)
        self.block[: 8 * layout.HEADER_WORDS].view(np.int64)[layout.H_PARTS + layout.P_IDS] = 8 * layout.HEADER_WORDS

    def __len__(self) -> int:
        return int(self.count[0])

    @property
    def is_full(self) -> bool:
        """Whether another record needs more words than the buffer may have."""
        return len(self.words) == RECORD_WORDS_MAX and len(self) > 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.words.nbytes + self.ends.nbytes + self.dead.nbytes + self.block.nbytes

    def ids(self) -> npt.NDArray[np.uint32]:
        """The ids by position."""
        return self.block[8 * layout.HEADER_WORDS :].view(np.uint32)[: len(self)]

    def live(self) -> RecordSet:
        """The records whose ids are live."""
        count = len(self)
        lengths, live = np.diff(self.ends[: count + 1]), np.ones(count, np.bool_)
        live[self.dead[1 : 1 + int(self.dead[0])]] = False
        ends = np.zeros(int(live.sum()) + 1, np.int64)
        np.cumsum(lengths[live], out=ends[1:])
        words = self.words[: self.ends[count]][np.repeat(live, lengths)]
        return RecordSet(words, ends, self.ids()[live], np.arange(len(ends)))

    def mark_dead(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Marks the positions of some ids as dead. The caller refreshes the view."""
        positions = np.flatnonzero(np.isin(self.ids(), numbers)).astype(np.uint32)
        self.dead = dead_array(merge_positions(self.dead, positions), len(self.dead))

    def grown(self, room: int, words: int) -> RecordBuffer:
        """A copy with room for more records and words."""
        grown = RecordBuffer(room, words)
        for mine, its in (
            (self.words, grown.words),
            (self.ends, grown.ends),
            (self.count, grown.count),
            (self.dead, grown.dead),
            (self.block, grown.block),
        ):
            its[: len(mine)] = mine
        return grown


@kernel
def insert_record(context: int, wire: Any, number: int, ids: Any) -> int:
    """Adds a filter to the buffer and its id to an id table, which has room. Returns the number of records then in the
    buffer, or a negative code."""
    slot = find_id_slot(ids, number)
    if ids[slot] != 0:
        return ID_TAKEN
    counter = u32_at(root(context, R_BUFFER_COUNT), 1)
    count = i64(counter[0])
    if count == root(context, R_BUFFER_ROOM):
        return BUFFER_FULL
    ends = i64_at(root(context, R_BUFFER_ENDS), count + 2)
    words, room = root(context, R_BUFFER_WORDS), root(context, R_BUFFER_WORD_COUNT)
    to = encode_filter(context, i64(wire.ctypes.data), len(wire), words, room, ends[count])
    if to < 0:
        return to
    block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * root(context, R_SEGMENTS))
    u32_part(block, layout.P_IDS)[count] = number
    ends[count + 1] = to
    counter[0] = count + 1
    ids[slot] = np.uint32(number + 1)
    return i64(count + 1)


@kernel
def find_positions(ids: Any, order: Any, count: int, number: int) -> Any:
    """The range of an id among the `count` positions of `order`: (first, one past the last)."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if ids[order[middle]] < number:
            low = middle + 1
        else:
            high = middle
    last = low
    while last < count and ids[order[last]] == number:
        last += 1
    return low, last


@background_kernel
def find_all_positions(ids: Any, order: Any, numbers: Any) -> Any:
    """The positions of some ids, grouped by id."""
    found = np.empty(0, np.uint32)
    made = 0
    for turn in range(2):  # the first pass counts
        made = 0
        for number in numbers:
            first, last = find_positions(ids, order, len(order), number)
            for i in range(first, last):
                if turn == 1:
                    found[made] = order[i]
                made += 1
        if turn == 0:
            found = np.empty(made, np.uint32)
    return found


@kernel
def is_dead(dead: Any, position: int) -> bool:
    """Whether a position is dead."""
    at = first_dead(dead, position)
    return bool(at <= i64(dead[0]) and i64(dead[at]) == position)


@kernel
def add_dead(dead: Any, position: int) -> None:
    """Inserts a position into an array of dead positions. It is not there yet, and there is room."""
    count, at = i64(dead[0]), first_dead(dead, position)
    for i in range(count + 1, at, -1):
        dead[i] = dead[i - 1]
    dead[at] = position
    dead[0] = count + 1


@kernel
def mark_id_dead(context: int, segment: int, number: int) -> int:
    """Marks all positions of an id in a segment as dead. Returns the number of the segment, or a negative code with
    nothing changed."""
    block, dead = block_of(context, segment), dead_at(context, segment)
    ids, order = u32_part(block, layout.P_IDS), u32_part(block, layout.P_ORDER)
    in_buffer = segment == root(context, R_SEGMENTS)
    count = i64(u32_at(root(context, R_BUFFER_COUNT), 1)[0]) if in_buffer else header_word(block, layout.H_IDS)
    ordered = count >= layout.ORDERED_MIN and not in_buffer
    first, last = find_positions(ids, order, count, number) if ordered else (0, count)
    live = 0
    for i in range(first, last):
        position = i64(order[i]) if ordered else i
        live += ids[position] == number and not is_dead(dead, position)
    if live == 0:
        return ID_MISSING
    if i64(dead[0]) + live >= root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment + 2):
        return DEAD_FULL - segment
    for i in range(first, last):
        position = i64(order[i]) if ordered else i
        if ids[position] == number and not is_dead(dead, position):
            add_dead(dead, position)
    return segment


@kernel
def remove_id(context: int, number: int, ids: Any) -> int:
    """Removes an id from an id table and marks its positions as dead. Returns the number of the segment that held it
    (the buffer counts as the last one), or a negative code with nothing changed."""
    slot = find_id_slot(ids, number)
    if ids[slot] == 0:
        return ID_MISSING
    for segment in range(root(context, R_SEGMENTS) + 1):
        code = mark_id_dead(context, segment, number)
        if code != ID_MISSING:
            if code >= 0:
                close_gap(ids, slot)
            return code
    return ID_MISSING


@background_kernel
def count_live(block: int, dead: Any) -> Any:
    """Number of records, words and ids of a segment that are live."""
    header = i64_at(block, layout.HEADER_WORDS)
    entries = header[layout.H_ENTRIES]
    word_ends = u32_at(block + header[layout.H_PARTS + layout.P_WORD_ENDS], entries + 1)
    made, words, ids, at = 0, 0, 0, 0
    for entry in range(entries):
        first, last = first_id(block, entry), first_id(block, entry + 1)
        dead_count = 0
        while at < len(dead) and dead[at] < last:
            dead_count += 1
            at += 1
        if dead_count < last - first and not word_ends[entry] & layout.REPEATED:
            made += 1
            words += i64(word_ends[entry + 1] & layout.LOW_31) - i64(word_ends[entry] & layout.LOW_31)
            ids += last - first - dead_count
    return made, words, ids


@background_kernel
def copy_live(block: int, dead: Any, words: Any, ends: Any, ids: Any, id_ends: Any, record: int) -> int:
    """Appends the live records of a segment to arrays that hold `record` records. Returns the number of records then in
    them."""
    header = i64_at(block, layout.HEADER_WORDS)
    entries = header[layout.H_ENTRIES]
    start = header[layout.H_PARTS :]
    word_ends = u32_at(block + start[layout.P_WORD_ENDS], entries + 1)
    own_words = u16_at(block + start[layout.P_WORDS], header[layout.H_WORDS])
    own_ids = u32_at(block + start[layout.P_IDS], header[layout.H_IDS])
    at = 0
    for entry in range(entries):
        first, last = first_id(block, entry), first_id(block, entry + 1)
        repeated = (word_ends[entry] & layout.REPEATED) != 0
        to = id_ends[record]
        for position in range(first, last):
            if at < len(dead) and dead[at] == position:
                at += 1
            elif not repeated:
                ids[to] = own_ids[position]
                to += 1
        if to > id_ends[record]:
            word = ends[record]
            for i in range(word_ends[entry] & layout.LOW_31, word_ends[entry + 1] & layout.LOW_31):
                words[word] = own_words[i]
                word += 1
            record += 1
            ends[record], id_ends[record] = word, to
    return record


def live_records(segments: Sequence[Segment], dead: Sequence[npt.NDArray[np.uint32]]) -> RecordSet:
    """The live records of some segments, given the dead positions of each."""
    sizes = [count_live(segment.block.ctypes.data, own_dead) for segment, own_dead in zip(segments, dead, strict=True)]
    total, words, ids = (sum(size[i] for size in sizes) for i in range(3))
    given = RecordSet(
        np.empty(words, np.uint16),
        np.zeros(total + 1, np.int64),
        np.empty(ids, np.uint32),
        np.zeros(total + 1, np.int64),
    )
    made = 0
    for segment, own_dead in zip(segments, dead, strict=True):
        made = copy_live(segment.block.ctypes.data, own_dead, given.words, given.ends, given.ids, given.id_ends, made)
    return given
