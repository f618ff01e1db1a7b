"""Candidates: entries that boxes leave, of one event or of a batch of them.

Owns what is written down about each, and about the runs that events of a batch wait for: an *item* is an event with a
run, and a row of the event's cells in the run's segment. Item 0 is that of an event that is matched alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.evaluator import holds
from shoal.filters.index.intrinsics import i64_at, u32_at, u64_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_ATTRIBUTES,
    R_CANDIDATES,
    R_EVENT,
    R_ITEMS,
    R_NEXT_ITEM,
    address_of,
    cells_at,
    root,
    u16_part,
    u32_part,
)
from shoal.filters.index.members import first_id
from shoal.filters.index.postings import dead_at, emit_entries, first_dead
from shoal.filters.index.reading import select_row
from shoal.filters.index.record_format import get_bits
from shoal.filters.index.vectors import prefetch
from shoal.wire.rawbytes import kernel, part

ITEMS_MAX: Final = 256
"""Rows of cells, that of the event included."""
ITEM_WORDS: Final = 3
"""Words of an item: segment, run, the event's number in its batch."""
AT_ONCE: Final = 1024
"""Candidates that are looked at together."""
FOUND_MAX: Final = 1 << 17
"""Words of what may be found for the events of a batch."""
STRETCH: Final = np.uint64(1 << 63)
"""Marks the word before an address, and says how many ids are there, instead of an id."""
OVERFLOW: Final = -12
"""There are more runs or ids than room for them."""
ACCEPTED: Final = np.uint64(1 << 32)
"""Marks an entry that needs no test."""
ITEM_SHIFT: Final = 40
_AHEAD: Final = 8
"""Entries that are tested before one whose record is asked for."""
_ENTRY: Final = np.uint64(0xFFFFFFFF)


@part
def candidates_at(context: int) -> Any:
    """The candidates."""
    return u64_at(root(context, R_CANDIDATES), FAR)


@part
def found_at(context: int) -> Any:
    """What was found for the events of a batch: an id | the event << 32, or `STRETCH` | how many ids | the event << 32
    and where they are."""
    return u64_at(root(context, R_CANDIDATES) + 8 * AT_ONCE, FAR)


@part
def items_at(context: int) -> Any:
    """The items."""
    return i64_at(root(context, R_ITEMS), FAR)


@part
def item_of(candidate: np.uint64) -> int:
    """The item of a candidate."""
    return whole(candidate >> np.uint64(ITEM_SHIFT))


@kernel
def queue(context: int, segment: int, run: int) -> bool:
    """Writes down that the event waits for a run; False if there is no room."""
    item = root(context, R_NEXT_ITEM)
    if item == ITEMS_MAX:
        return False
    items = items_at(context)
    items[ITEM_WORDS * item], items[ITEM_WORDS * item + 1] = segment, run
    items[ITEM_WORDS * item + 2] = root(context, R_EVENT)
    own, kept = cells_at(context, 0), cells_at(context, item)
    for attribute in range(root(context, R_ATTRIBUTES)):
        kept[attribute] = own[attribute]
    i64_at(context, FAR)[R_NEXT_ITEM] = item + 1
    return True


@part
def holder_of(block: int, entry: int) -> Any:
    """(The entry where the record of an entry stands, which value of its list the entry waits for)."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    if ends[entry] & layout.REPEATED == 0:
        return entry, 0
    words, at = u16_part(block, layout.P_WORDS), whole(ends[entry] & layout.LOW_31)
    return whole(get_bits(words, at + 1, 2)), whole(words[at])


@part
def record_of(block: int, entry: int) -> Any:
    """The record of an entry: (its first word, one past its last, which value of its list the entry waits for)."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    entry, place = holder_of(block, entry)
    return whole(ends[entry] & layout.LOW_31), whole(ends[entry + 1] & layout.LOW_31), place


@part
def ask_ahead(block: int, entry: int, last: int) -> None:
    """Asks for the records of entries that are tested soon, one after the other: where a record stands that several
    have, and after that for the record."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    if entry + 2 * _AHEAD < last:
        holder, _ = holder_of(block, entry + 2 * _AHEAD)
        prefetch(address_of(block, layout.P_WORD_ENDS) + 4 * holder)
        holder, _ = holder_of(block, entry + _AHEAD)
        prefetch(address_of(block, layout.P_WORDS) + 2 * whole(ends[holder] & layout.LOW_31))


@part
def entry_holds(context: int, block: int, entry: int) -> bool:
    """Whether the record of an entry holds for the event."""
    at, end, _ = record_of(block, entry)
    return holds(context, address_of(block, layout.P_WORDS), at, end)


@part
def ask_for_records(block: int, given: Any, count: int) -> None:
    """Asks for the records of those candidates that have to be tested."""
    ends, words = u32_part(block, layout.P_WORD_ENDS), address_of(block, layout.P_WORDS)
    for i in range(count):
        if given[i] & ACCEPTED == 0:
            prefetch(words + 2 * whole(ends[given[i] & _ENTRY] & layout.LOW_31))


@kernel
def add_entries(context: int, block: int, count: int, used: int, segment: int) -> int:
    """Adds those of the first candidates, which are all of one event and segment, that cells have accepted, and those
    that hold when they are tested."""
    given = candidates_at(context)
    ask_for_records(block, given, count)
    for i in range(count):
        entry = whole(given[i] & _ENTRY)
        if given[i] & ACCEPTED != 0 or entry_holds(context, block, entry):
            used = emit_entries(context, block, used, segment, entry, entry + 1)
            if used < 0:
                break
    return used


@part
def add_found(found: Any, to: int, event: np.uint64, ids: int, count: int) -> int:
    """Adds some ids, which are at an address; how many words are used then."""
    if count == 1:
        found[to] = np.uint64(u32_at(ids, 1)[0]) | event
        return to + 1
    if count == 0:
        return to
    found[to], found[to + 1] = STRETCH | np.uint64(count) | event, ids
    return to + 2


@kernel
def find_ids(context: int, block: int, count: int, to: int) -> int:
    """Finds the ids of the first candidates, which are all of one segment; how many words of what was found are used
    then, or `OVERFLOW`."""
    given, found, items = candidates_at(context), found_at(context), items_at(context)
    ask_for_records(block, given, count)
    ids = address_of(block, layout.P_IDS)
    for i in range(count):
        item, entry = item_of(given[i]), whole(given[i] & _ENTRY)
        event = items[ITEM_WORDS * item + 2]
        if given[i] & ACCEPTED == 0:
            select_row(context, event)
            if not entry_holds(context, block, entry):
                continue
        first, last = first_id(block, entry), first_id(block, entry + 1)
        dead = dead_at(context, items[ITEM_WORDS * item])
        gone, count_gone = (first_dead(dead, first), whole(dead[0])) if dead[0] != 0 else (1, 0)
        while first < last:
            stop = min(whole(dead[gone]), last) if gone <= count_gone else last
            if to + 2 > FOUND_MAX:
                return OVERFLOW
            to = add_found(found, to, np.uint64(event) << np.uint64(32), ids + 4 * first, stop - first)
            first = stop + 1
            gone += 1
    return to
