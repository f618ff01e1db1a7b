"""Layout: a segment is one block of bytes.

Owns where the parts of a segment stand in it. A header of 64-bit words holds counts and, for each part, where it
starts; every part starts at a multiple of 64 bytes. So a segment is written to a file and mapped from it as it is.

    ids        uint32[N]     subscribers, in the order of the entries
    id_starts  uint32        where the ids of entries start, of 64 each (see `members`) ...
    id_lists   uint32        ... and of each one, where some of the 64 have several
    order      uint32[N]     positions in `ids`, sorted by id
    word_ends  uint32[E+1]   entry -> its record; the top bit marks an entry that waits for a further value of a list
    words      uint16        records; of marked entries: which value, and the entry that has the record (32 bits)
    clusters   uint32[C+1]   cluster -> its entries; the top bit marks a cluster with runs
    tags       uint8[slots]  hash table of clusters: a byte of the hash ...
    slots      uint32[slots] ... and the cluster + 1
    runs       uint32[R+1,4] type | attribute << 8, first entry, first key or block, last block
    keys       float64       of runs that are sorted, within each
    blocks     uint32[B+1,3] attribute, first group, where its boxes are in `around`, in units of 64 bytes
    groups     uint32[G,4]   second attribute | third << 16, first entry, how many, where its cells are in `filed`, in
                             units of 64 bytes
    around     uint8         of each group, if it has several chunks, boxes around them: low cells on the first
                             attribute, high ones, and so on, each padded to 32 bytes
    filed      uint8         of each chunk: the same for its 32 entries; then for each entry two 32-bit words: a
                             further attribute, its low cell << 16, its high cell << 24
    edges      float64, edge_starts uint32[A+1]
    signatures uint32        of each: parts, lengths, then the parts, then the lengths of its prefixes or suffixes
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = 0x31_4C_41_4F_48_53  # "SHOAL1"
VERSION: Final = 5
"""Of the bytes of a segment and of a snapshot. A snapshot of another version is refused."""

REPEATED: Final = np.uint32(1 << 31)
REPEATED_WORDS: Final = 3
WITH_RUNS: Final = np.uint32(1 << 31)
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
H_BLOCKS: Final = 10
H_GROUPS: Final = 11
H_GROUP_MOST: Final = 12
"""Entries of the largest group."""
H_SIGNATURES: Final = 13
H_ATTRIBUTES: Final = 14
H_UNIQUE: Final = 15
H_WORDS: Final = 16
H_PARTS: Final = 20
"""From here on: where each part starts."""
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
    ("blocks", np.uint32),
    ("groups", np.uint32),
    ("around", np.uint8),
    ("filed", np.uint8),
    ("edges", np.float64),
    ("edge_starts", np.uint32),
    ("signatures", np.uint32),
)
P_IDS, P_ID_STARTS, P_ID_LISTS, P_ORDER, P_WORD_ENDS, P_WORDS, P_CLUSTERS, P_TAGS, P_SLOTS, P_RUNS = range(10)
P_KEYS, P_BLOCKS, P_GROUPS, P_AROUND, P_FILED, P_EDGES, P_EDGE_STARTS, P_SIGNATURES = range(10, 18)

_LINE: Final = 64
_IN_LINES: Final = ("around", "filed")
"""Parts that begin with a line of the processor's cache; the others begin with a word."""
_GUARD_BYTES: Final = 64
"""Behind the last part: vector loads may look this far."""


ORDERED_MIN: Final = 4096
"""Positions from which on a segment says how they are sorted by subscriber; fewer are looked through."""


def order_of(ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The part `order`: positions sorted by subscriber, or nothing if they are few."""
    if len(ids) < ORDERED_MIN:
        return np.empty(0, np.uint32)
    return np.argsort(ids, kind="stable").astype(np.uint32)


def assemble(header: npt.NDArray[np.int64], parts: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """One block of bytes of a header and all parts."""
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


def part(block: npt.NDArray[np.uint8], number: int, length: int) -> npt.NDArray[Any]:
    """A view of one part."""
    kind = np.dtype(PARTS[number][1])
    start = int(block[: 8 * HEADER_WORDS].view(np.int64)[H_PARTS + number])
    return block[start : start + length * kind.itemsize].view(kind)
