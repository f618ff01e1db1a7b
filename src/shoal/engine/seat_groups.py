"""Matches by client: the ids that events matched, turned into clients with the numbers of their filters.

Owns the kernel and its scratch space. Clients are found with a hash table that is not cleared between events: a slot
counts only if it bears the stamp of the event. So the cost is that of the matches, without a sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.wire.raw_bytes import kernel

Ints: TypeAlias = npt.NDArray[np.int64]
Seats: TypeAlias = list[tuple[int, list[int]]]
"""Clients, each with the numbers of its filters that an event matches."""

SLOTS_FIRST: Final = 1024
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)


class SeatGroups:
    """Groups the matches of a batch of events."""

    def __init__(self) -> None:
        self._make_slots(SLOTS_FIRST)

    def _make_slots(self, slots: int) -> None:
        self._client = np.zeros(slots, np.int64)
        self._stamp = np.zeros(slots, np.int64)
        self._row = np.zeros(slots, np.int64)
        self._stamps = 0

    def group(self, offsets: Ints, clients: Ints, numbers: Ints, client_count: int) -> Iterator[Seats]:
        """The seats of each event. `offsets` tells where the matches of an event begin and end in `clients` and
        `numbers`, and `client_count` how many clients there are."""
        if 2 * client_count > len(self._client):
            self._make_slots(1 << (2 * client_count).bit_length())
        rows = np.empty(len(clients) + 1, np.int64)
        starts = np.empty(len(clients) + 1, np.int64)
        grouped = np.empty(len(clients), np.int64)
        row_ends = np.empty(len(offsets) - 1, np.int64)
        slots = self._client, self._stamp, self._row
        used = _group(offsets, clients, numbers, *slots, self._stamps, rows, starts, grouped, row_ends)
        self._stamps += len(offsets) - 1
        return _seats(row_ends.tolist(), rows[:used].tolist(), starts[: used + 1].tolist(), grouped.tolist())


def warm_up() -> None:
    """Compiles the kernel, or loads it from the cache."""
    none = np.zeros(0, np.int64)
    SeatGroups().group(np.zeros(1, np.int64), none, none, 0)


def _seats(row_ends: list[int], rows: list[int], starts: list[int], grouped: list[int]) -> Iterator[Seats]:
    first = 0
    for last in row_ends:
        yield [(rows[row], grouped[starts[row] : starts[row + 1]]) for row in range(first, last)]
        first = last


@kernel
def _group(
    offsets: Any,
    clients: Any,
    numbers: Any,
    slot_client: Any,
    slot_stamp: Any,
    slot_row: Any,
    stamp: int,
    rows: Any,
    starts: Any,
    grouped: Any,
    row_ends: Any,
) -> int:
    """Fills rows with clients, and `grouped` with their numbers; returns the number of rows."""
    mask = len(slot_client) - 1
    row_of = np.empty(len(clients), np.int64)
    used = 0
    starts[0] = 0
    for event in range(len(offsets) - 1):
        stamp += 1
        first_row, first, last = used, offsets[event], offsets[event + 1]
        for at in range(first, last):
            client = clients[at]
            slot = np.int64((np.uint64(client) * _HASH) >> np.uint64(32)) & mask
            while slot_stamp[slot] == stamp and slot_client[slot] != client:
                slot = (slot + 1) & mask
            if slot_stamp[slot] != stamp:
                slot_stamp[slot], slot_client[slot], slot_row[slot] = stamp, client, used
                rows[used] = client
                starts[used + 1] = 0
                used += 1
            row_of[at] = slot_row[slot]
            starts[slot_row[slot] + 1] += 1
        for row in range(first_row, used):
            starts[row + 1] += starts[row]
        for at in range(last - 1, first - 1, -1):  # from the back: `starts` of the row is where the next one goes
            row = row_of[at]
            starts[row + 1] -= 1
            grouped[starts[row + 1]] = numbers[at]
        # Now `starts[row + 1]` is the begin of a row, and the begin of the next one is its end.
        for row in range(first_row, used - 1):
            starts[row + 1] = starts[row + 2]
        if used > first_row:
            starts[used] = last
        row_ends[event] = used
    return used
