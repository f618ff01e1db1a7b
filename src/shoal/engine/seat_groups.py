"""Matches by client: the ids that events matched, turned into clients with the numbers of their filters.

Owns the kernel and its scratch space. A seat counts only if it bears the stamp of the event, so nothing is cleared
between events, and the cost is that of the matches, without a sort.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.engine.filter_arena import widened
from shoal.engine.filter_numbers import NUMBER_MASK, SEAT_SHIFT, Names
from shoal.engine.links import Found
from shoal.engine.messages import NUMBER_BYTES
from shoal.wire.raw_bytes import kernel

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint32]

NUMBERS: Final = np.dtype("<u4")
"""The numbers of filters, as they are packed."""


class SeatGroups:
    """Groups the matches of a batch of events."""

    def __init__(self) -> None:
        self._stamp_of = np.zeros(1, np.int64)
        self._row_of = np.zeros(1, np.int64)
        """By seat: the last event that it matched, and its row for that."""
        self._stamps = 0

    def group(self, offsets: Ints, ids: Ids, names: Names, client_of: Ints) -> list[Found]:
        """The clients of each event, with the numbers of their filters. `offsets` tells where the matches of an event
        begin and end in `ids`; the columns tell the seat and the number of an id, and the client of a seat."""
        count = len(ids)
        if not count:
            return []
        self._stamp_of = widened(self._stamp_of, len(client_of))
        self._row_of = widened(self._row_of, len(client_of))
        places, clients = np.empty(count, np.int64), np.empty(count, np.int64)
        starts, grouped = np.empty(count + 1, np.int64), np.empty(count, NUMBERS)
        own = np.empty(int(np.diff(offsets).max()), np.uint64)
        scratch = self._stamp_of, self._row_of, self._stamps, own
        used = _group(offsets, ids, names, client_of, *scratch, places, clients, starts, grouped)
        self._stamps += len(offsets) - 1
        numbers = grouped.tobytes()
        bounds = (starts[: used + 1] * NUMBER_BYTES).tolist()
        rows = zip(places[:used].tolist(), clients[:used].tolist(), bounds, bounds[1:], strict=False)
        return [(place, client, numbers[first:last]) for place, client, first, last in rows]


def warm_up() -> None:
    """Compiles the kernel, or loads it from the cache."""
    one = np.zeros(1, np.int64)
    ids = np.zeros(1, np.uint32)
    SeatGroups().group(np.array([0, 1], np.int64), ids, np.zeros(1, np.uint64), one)


@kernel
def _group(
    offsets: Any,
    ids: Any,
    names: Any,
    client_of: Any,
    stamp_of: Any,
    row_of: Any,
    stamp: int,
    own: Any,
    places: Any,
    clients: Any,
    starts: Any,
    grouped: Any,
) -> int:
    """Fills rows with places of events and clients, and `grouped` with their numbers; returns the number of rows. `own`
    has room for the names of an event's matches: they are read from all over memory, so all at once, once."""
    used = 0
    starts[0] = 0
    for event in range(len(offsets) - 1):
        stamp += 1
        first_row, first, count = used, offsets[event], offsets[event + 1] - offsets[event]
        for at in range(count):
            own[at] = names[ids[first + at]]
        for at in range(count):
            seat = own[at] >> SEAT_SHIFT
            if stamp_of[seat] != stamp:
                stamp_of[seat], row_of[seat] = stamp, used
                places[used], clients[used] = event, client_of[seat]
                starts[used + 1] = 0
                used += 1
            starts[row_of[seat] + 1] += 1
        for row in range(first_row, used):
            starts[row + 1] += starts[row]
        for at in range(count - 1, -1, -1):  # from the back: `starts` of the row is where the next one goes
            row = row_of[own[at] >> SEAT_SHIFT]
            starts[row + 1] -= 1
            grouped[starts[row + 1]] = own[at] & NUMBER_MASK
        # Now `starts[row + 1]` is the begin of a row, and the begin of the next one is its end.
        for row in range(first_row, used - 1):
            starts[row + 1] = starts[row + 2]
        if used > first_row:
            starts[used] = first + count
    return used
