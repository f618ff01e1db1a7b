"""Taking in: filters in their wire form become records, and records leave segments again.

Owns the kernels that write: one filter into the records that are in no segment yet, a table of filters into arrays
for `building`, and what is alive in a segment into the same.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row as rows
from shoal.filters.index import record_encoder as transcribing
from shoal.filters.index import record_format as records
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.ids import find_slot
from shoal.filters.index.intrinsics import i64_at, u8_at, u16_at, u32_at, whole
from shoal.filters.index.kernel_context import (
    R_FIRST_SEGMENT,
    R_SCRATCH,
    R_SEGMENTS,
    R_YOUNG_COUNT,
    R_YOUNG_ENDS,
    R_YOUNG_ROOM,
    R_YOUNG_WORD_COUNT,
    R_YOUNG_WORDS,
    SEGMENT_ROOTS,
    root,
    u32_part,
)
from shoal.filters.index.members import first_id
from shoal.wire.rawbytes import PADDING_BYTES, background_kernel, kernel

YOUNG_MAX: Final = 512
"""Records that are tested one by one before they become a segment."""
YOUNG_FEW: Final = 32
"""Records that there is room for while nobody adds any one by one."""
YOUNG_WORDS: Final = 1 << 7
"""Words that there is room for at first; it grows."""
YOUNG_WORDS_MAX: Final = 1 << 16
"""Words that they may have together, so the most that one filter may have."""

SEVERAL: Final = -6
"""The filter has alternatives."""
NO_YOUNG: Final = -7
"""There is no room for a further record."""
NO_SCRATCH: Final = -8
THERE: Final = -9
"""There is a filter with this id."""
TOO_LARGE: Final = -10
"""The filter has more words than one may have."""


@kernel
def conjunction_start(data: int, end: int) -> int:
    """Where the only conjunction of the filter at an address starts; a negative code if it has several, or is none."""
    if end < 3 or rows.byte_at(data, 0) != 0x91:
        return records.BAD_FILTER
    if rows.byte_at(data, 1) != 0x91:
        return SEVERAL
    return 3 if rows.byte_at(data, 2) == 0x91 else records.BAD_FILTER


@kernel
def write_wire(context: int, wire: int, size: int, words: int, room: int, to: int) -> int:
    """Writes the record of the filter of `size` bytes at an address; where the next word goes, or a negative code."""
    if size + PADDING_BYTES > root(context, R_SCRATCH + 1):
        return NO_SCRATCH
    scratch, given = u8_at(root(context, R_SCRATCH), size), u8_at(wire, size)
    for i in range(size):
        scratch[i] = given[i]
    at = conjunction_start(root(context, R_SCRATCH), size)
    if at < 0:
        return whole(at)
    at, to = transcribing.write_record(context, at, size, words, room, to)
    if at < 0:
        return whole(at)
    return to if at == size else records.BAD_FILTER


@kernel
def take_in(context: int, wire: Any, number: int, ids: Any) -> int:
    """Adds a filter to the records that are in no segment, and its id to a table of ids that has room; how many they
    are then, or a negative code."""
    slot = find_slot(ids, number)
    if ids[slot] != 0:
        return THERE
    counter = u32_at(root(context, R_YOUNG_COUNT), 1)
    count = whole(counter[0])
    if count == root(context, R_YOUNG_ROOM):
        return NO_YOUNG
    ends = i64_at(root(context, R_YOUNG_ENDS), count + 2)
    words, room = root(context, R_YOUNG_WORDS), root(context, R_YOUNG_WORD_COUNT)
    to = write_wire(context, whole(wire.ctypes.data), len(wire), words, room, ends[count])
    if to < 0:
        return to
    block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * root(context, R_SEGMENTS))
    u32_part(block, layout.P_IDS)[count] = number
    ends[count + 1] = to
    counter[0] = count + 1
    ids[slot] = np.uint32(number + 1)
    return whole(count + 1)


@kernel
def take_table(context: int, data: Any, offsets: Any, first: int, words: Any, ends: Any) -> Any:
    """Writes the records of a table of filters from `first` on: (the next one, 0 or a negative code)."""
    wires, to_words, room = whole(data.ctypes.data), whole(words.ctypes.data), len(words)
    for item in range(first, len(offsets) - 1):
        size = whole(offsets[item + 1] - offsets[item])
        to = write_wire(context, wires + whole(offsets[item]), size, to_words, room, ends[item])
        if to < 0:
            return item, to
        if to - ends[item] > YOUNG_WORDS_MAX:
            return item, TOO_LARGE
        ends[item + 1] = to
    return len(offsets) - 1, 0


@background_kernel
def count_alive(block: int, dead: Any) -> Any:
    """How many records, words and ids of a segment are alive."""
    header = i64_at(block, layout.HEADER_WORDS)
    entries = header[layout.H_ENTRIES]
    word_ends = u32_at(block + header[layout.H_PARTS + layout.P_WORD_ENDS], entries + 1)
    made, words, ids, at = 0, 0, 0, 0
    for entry in range(entries):
        first, last = first_id(block, entry), first_id(block, entry + 1)
        gone = 0
        while at < len(dead) and dead[at] < last:
            gone += 1
            at += 1
        if gone < last - first and not word_ends[entry] & layout.REPEATED:
            made += 1
            words += whole(word_ends[entry + 1] & layout.LOW_31) - whole(word_ends[entry] & layout.LOW_31)
            ids += last - first - gone
    return made, words, ids


@background_kernel
def copy_alive(block: int, dead: Any, words: Any, ends: Any, ids: Any, id_ends: Any, record: int) -> int:
    """Copies what is alive in a segment behind `record` records that are there already; how many are there then."""
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
