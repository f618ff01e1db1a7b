"""The layout of a segment: one block of bytes.

Owns the parts of a block and where they start, how a block is assembled, and how kernels read it. Never touches what
the parts mean beyond their types.

A header of 64-bit words holds counts and the offset of each part. Parts start at multiples of 8 bytes, those that
vector instructions read at multiples of 64. A block is written to a file, and mapped from it, as it is. E entries of C
clusters hold N ids; an entry is a record in one of the places where it can be found.

    ids         uint32[N]     ids, in the order of the entries
    id_starts   uint32        where the ids of each 64 entries start (see `postings`) ...
    id_lists    uint32        ... and of each entry, where some of the 64 have several ids
    order       uint32[N]     positions in `ids`, sorted by id
    word_ends   uint32[E+1]   entry -> its record; the top bit marks an entry for a further value of a list
    words       uint16        records; for marked entries: which value, and the entry that has the record (32 bits)
    clusters    uint32[C+1]   cluster -> its entries; the top bit marks a cluster with runs
    tags        uint8[slots]  hash table of clusters: a byte of the hash ...
    slots       uint32[slots] ... and the cluster + 1
    runs        uint32[R+1,4] type | attribute << 8, first entry, first key or bucket, one past the last bucket
    keys        float64       keys of sorted runs, ascending within each run
    buckets     uint32[B+1,3] attribute, first group, where its boxes are in `chunk_boxes`, in units of 64 bytes
    groups      uint32[G,4]   second attribute | third << 16, first entry, number of entries, where its chunks are in
                              `chunks`, in units of 64 bytes
    chunk_boxes uint8         for each group of more than two chunks, a box around each chunk: low cells on the first
                              attribute, high cells, and so on, each padded to 32 bytes
    chunks      uint8         for each chunk the same for its 32 entries; then for each entry two 32-bit words: a
                              further attribute, its low cell << 16, its high cell << 24
    edges       float64, edge_starts uint32[A+1]
    signatures  uint32        each: number of parts, number of lengths, first cluster, one past the last, then the
                              parts, then the lengths of its prefixes or suffixes

The entries of a large cluster are in runs, by what the signature leaves to test:

    ALL         nothing                     the whole run matches
    LOW         one lower bound             sorted by it: a slice from the start matches
    HIGH        one upper bound             sorted by it: a slice to the end matches
    NOT         one excluded number         sorted by it: all but a slice match
    NOT_STRING  one excluded string         sorted by its code: all but a slice match
    SCAN        anything else               tested one by one
    GRID        many bounds on numbers      searched by cells (see `grid`)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index.intrinsics import UNBOUNDED, f64_at, i64, i64_at, u8_at, u16_at, u32_at
from shoal.wire.raw_bytes import part

MAGIC: Final = 0x31_4C_41_4F_48_53  # "SHOAL1"
VERSION: Final = 6
"""Version of the bytes of a segment and a snapshot. Snapshots of other versions are rejected."""
REPEATED: Final = np.uint32(1 << 31)
"""Marks an entry whose record is held by another entry."""
REPEATED_WORDS: Final = 3
"""Words of such an entry."""
WITH_RUNS: Final = np.uint32(1 << 31)
"""Marks a cluster that has runs."""
LOW_31: Final = np.uint32((1 << 31) - 1)

H_MAGIC: Final = 0
H_VERSION: Final = 1
H_BYTES: Final = 2
H_SEED: Final = 3
H_ENTRIES: Final = 4
H_IDS: Final = 5
H_CLUSTERS: Final = 6
H_SLOTS: Final = 7
H_RUNS: Final = 8
H_KEYS: Final = 9
H_BUCKETS: Final = 10
H_GROUPS: Final = 11
H_GROUP_MAX: Final = 12
"""Entries of the largest group."""
H_SIGNATURES: Final = 13
H_ATTRIBUTES: Final = 14
H_UNIQUE: Final = 15
H_WORDS: Final = 16
H_PARTS: Final = 20
"""From here on: the offset of each part."""
HEADER_WORDS: Final = 40

PARTS: Final = (
    ("ids", np.uint32),
    ("id_starts", np.uint32),
    ("id_lists", np.uint32),
    ("order", np.uint32),
    ("word_ends", np.uint32),
    ("words", np.uint16),
    ("clusters", np.uint32),
    ("tags", np.uint8),
    ("slots", np.uint32),
    ("runs", np.uint32),
    ("keys", np.float64),
    ("buckets", np.uint32),
    ("groups", np.uint32),
    ("chunk_boxes", np.uint8),
    ("chunks", np.uint8),
    ("edges", np.float64),
    ("edge_starts", np.uint32),
    ("signatures", np.uint32),
)
P_IDS, P_ID_STARTS, P_ID_LISTS, P_ORDER, P_WORD_ENDS, P_WORDS, P_CLUSTERS, P_TAGS, P_SLOTS, P_RUNS = range(10)
P_KEYS, P_BUCKETS, P_GROUPS, P_CHUNK_BOXES, P_CHUNKS, P_EDGES, P_EDGE_STARTS, P_SIGNATURES = range(10, 18)

_LINE: Final = 64
_IN_LINES: Final = ("chunk_boxes", "chunks")
"""Parts that start with a cache line; the others start with a word."""
_GUARD_BYTES: Final = 64
"""Bytes behind the last part, because vector loads may read past it."""
ORDERED_MIN: Final = 4096
"""A segment with fewer positions than this has no `order`; it is searched from start to end."""

RUN_ALL: Final = 0
RUN_LOW: Final = 1
RUN_HIGH: Final = 2
RUN_NOT: Final = 3
RUN_NOT_STRING: Final = 4
RUN_SORTED_LAST: Final = 4
"""The last type of run that has keys."""
RUN_SCAN: Final = 5
RUN_GRID: Final = 6

# What a part of a signature requires of its attribute.
S_EQUAL: Final = 1
S_EXISTS: Final = 2
S_KIND: Final = 3
S_ABSENT: Final = 4
S_FIXED_LAST: Final = 4
"""Up to here an event has at most one value for a part of a signature, beyond it several."""
S_PREFIX: Final = 5
S_SUFFIX: Final = 6
S_WINDOW: Final = 6
"""S_WINDOW + n: n bytes (1 to 4) anywhere in the string."""
S_HEADER: Final = 4
"""Words of a signature before its parts."""


def sorted_positions(ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The part `order`: positions sorted by id; empty if there are few."""
    if len(ids) < ORDERED_MIN:
        return np.empty(0, np.uint32)
    return np.argsort(ids, kind="stable").astype(np.uint32)


def assemble(header: npt.NDArray[np.int64], parts: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """The block of a header and its parts."""
    at = 8 * HEADER_WORDS
    for number, (name, kind) in enumerate(PARTS):
        at += -at % (_LINE if name in _IN_LINES else 8)
        header[H_PARTS + number] = at
        at += parts[name].size * np.dtype(kind).itemsize
    at += -at % 8 + _GUARD_BYTES
    header[H_MAGIC], header[H_VERSION], header[H_BYTES] = MAGIC, VERSION, at
    room = np.zeros(at + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    block = room[first : first + at]
    block[: 8 * HEADER_WORDS] = header.view(np.uint8)
    for number, (name, kind) in enumerate(PARTS):
        raw = np.ascontiguousarray(parts[name], kind).reshape(-1).view(np.uint8)
        start = header[H_PARTS + number]
        block[start : start + len(raw)] = raw
    return block


def part_view(block: npt.NDArray[np.uint8], number: int, length: int) -> npt.NDArray[Any]:
    """A part of a block as an array."""
    kind = np.dtype(PARTS[number][1])
    start = int(block[: 8 * HEADER_WORDS].view(np.int64)[H_PARTS + number])
    return block[start : start + length * kind.itemsize].view(kind)


@part
def header_word(block: int, index: int) -> Any:
    """A word of a block's header."""
    return i64_at(block, UNBOUNDED)[index]


@part
def u8_part(block: int, number: int) -> Any:
    """A part of a block, as bytes."""
    return u8_at(block + header_word(block, H_PARTS + number), UNBOUNDED)


@part
def u16_part(block: int, number: int) -> Any:
    """A part of a block, as 16-bit words."""
    return u16_at(block + header_word(block, H_PARTS + number), UNBOUNDED)


@part
def u32_part(block: int, number: int) -> Any:
    """A part of a block, as 32-bit words."""
    return u32_at(block + header_word(block, H_PARTS + number), UNBOUNDED)


@part
def f64_part(block: int, number: int) -> Any:
    """A part of a block, as floats."""
    return f64_at(block + header_word(block, H_PARTS + number), UNBOUNDED)


@part
def part_address(block: int, number: int) -> Any:
    """The address of a part of a block."""
    return block + header_word(block, H_PARTS + number)


@part
def first_slot(value: np.uint64, slots: int) -> int:
    """The slot where a search for the cluster with this hash begins."""
    return i64(((value >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32))


@part
def tag_of(value: np.uint64) -> np.uint8:
    """The byte of a hash that `tags` holds."""
    return np.uint8(value & np.uint64(0xFF))
