"""The context: everything that a matching kernel needs, by one number.

Owns what stands where in `roots`, the array of addresses that a store hands to its kernels, and how a kernel gets at
it. Compiled functions pass the address of `roots` on, not arrays: each array that is handed to a function costs two
counted references, and a match would hand over dozens.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import f64_at, i64_at, u8_at, u16_at, u32_at, whole
from shoal.wire.rawbytes import part

# Of each table of texts: data, its length, ends, their length, slots, their length, counters.
R_NAMES: Final = 0
R_STRINGS: Final = 7
R_ATTRIBUTES: Final = 14
R_KINDS: Final = 15
R_NUMBERS: Final = 16
R_AUX: Final = 17
R_PRESENT: Final = 18
R_CELLS: Final = 19
R_SCRATCH: Final = 20
R_VISITED: Final = 23
R_SPANS: Final = 24
R_SPAN_WORDS: Final = 25
R_YOUNG_WORDS: Final = 26
R_YOUNG_WORD_COUNT: Final = 27
R_YOUNG_ENDS: Final = 28
R_YOUNG_COUNT: Final = 29
R_FOUND: Final = 30
"""How many attributes of the event are present; written by the kernel that reads it."""
R_SEGMENTS: Final = 31
R_WAITING: Final = 32
R_PLAIN: Final = 33
"""The event's numbers once more: NaN for whatever is no number that a float64 equals."""
R_CANDIDATES: Final = 34
"""Entries that boxes leave (see `candidates`), and ids that were found for the events of a batch."""
R_ITEMS: Final = 35
R_ROWS: Final = 36
"""Where the rows of the events of a batch are (see `reading`)."""
R_BATCH: Final = 37
"""How many events there are rows for."""
R_NEXT_ITEM: Final = 38
"""Where the next run that has to wait is written down; 0 while runs are matched at once."""
R_EVENT: Final = 39
"""The number of the event in its batch."""
R_MATCH_CLUSTER: Final = 40
"""The address of the function that matches a cluster, and of the one that matches a segment."""
R_MATCH_SEGMENT: Final = 41
R_YOUNG_ROOM: Final = 42
R_FIRST_SEGMENT: Final = 43
"""From here on, of each segment: its block, its dead positions, and how many words there are for them. Last come the
records that are in no segment."""
SEGMENT_ROOTS: Final = 3

FAR: Final = 1 << 40
"""Stands for a length that nobody asks for."""


@part
def root(context: int, index: int) -> Any:
    """One word of `roots`."""
    return i64_at(context, FAR)[index]


@part
def kind_of(context: int, attribute: int) -> Any:
    """The kind of the event's attribute (see `rows`)."""
    return whole(u8_at(root(context, R_KINDS), FAR)[attribute])


@part
def floor_of(context: int, attribute: int) -> Any:
    """The event's number, or the nearest float64 below it."""
    return f64_at(root(context, R_NUMBERS), FAR)[2 * attribute]


@part
def ceil_of(context: int, attribute: int) -> Any:
    """The event's number, or the nearest float64 above it."""
    return f64_at(root(context, R_NUMBERS), FAR)[2 * attribute + 1]


@part
def aux_of(context: int, attribute: int, field: int) -> Any:
    """Another field of the event's attribute (see `rows`)."""
    return i64_at(root(context, R_AUX), FAR)[4 * attribute + field]


@part
def cells_at(context: int, row: int) -> Any:
    """A row of cells, by attribute."""
    return u8_at(root(context, R_CELLS) + row * root(context, R_ATTRIBUTES), FAR)


@part
def block_of(context: int, segment: int) -> Any:
    """Where a segment stands."""
    return root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment)


@part
def count_of(block: int, index: int) -> Any:
    """A word of a segment's header."""
    return i64_at(block, FAR)[index]


@part
def u8_part(block: int, number: int) -> Any:
    """A part of a segment, as bytes."""
    return u8_at(block + count_of(block, layout.H_PARTS + number), FAR)


@part
def u16_part(block: int, number: int) -> Any:
    """A part of a segment, as 16-bit words."""
    return u16_at(block + count_of(block, layout.H_PARTS + number), FAR)


@part
def u32_part(block: int, number: int) -> Any:
    """A part of a segment, as 32-bit words."""
    return u32_at(block + count_of(block, layout.H_PARTS + number), FAR)


@part
def f64_part(block: int, number: int) -> Any:
    """A part of a segment, as floats."""
    return f64_at(block + count_of(block, layout.H_PARTS + number), FAR)


@part
def address_of(block: int, number: int) -> Any:
    """Where a part of a segment stands."""
    return block + count_of(block, layout.H_PARTS + number)
