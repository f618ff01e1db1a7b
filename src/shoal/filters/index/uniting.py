"""Uniting: identical records become one, with the subscribers of all.

Owns the form in which records and their subscribers are handed over, and the finding of equal ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.wire.rawbytes import background_kernel, hash_pair, kernel


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
