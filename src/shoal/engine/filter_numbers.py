"""Which filter has which id: the numbers that clients give to their filters, in hash tables of plain arrays.

Owns the column of *names*: a seat and a number. A client has a *seat*, a small number. The table finds the id of a
filter by its name, and links the filters of each seat. Seat and number are beside each other, because a match reads
both, hundreds for an event, and mostly waits for memory. It takes 22 to 28 bytes for a filter, where a dictionary for
each client takes more than 100. Tables grow between kernel calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.engine.filter_arena import widened
from shoal.engine.messages import NUMBER_MAX
from shoal.wire.raw_bytes import kernel, part

Ints = npt.NDArray[np.int64]
Names = npt.NDArray[np.uint64]
"""Each is a seat << `SEAT_SHIFT` | a number."""

SEAT_SHIFT: Final = np.uint64(32)
NUMBER_MASK: Final = np.uint64(NUMBER_MAX)

_SLOTS_FIRST: Final = 64
_LOAD_MAX: Final = 0.75
"""The share of slots that are used at most."""
_GROWTH: Final = 1.5
_NONE: Final = np.uint32(0)
"""In columns of ids plus one: no filter."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class FilterNumbers:
    """The filters of all seats, by number."""

    def __init__(self) -> None:
        self._slots = np.zeros(_SLOTS_FIRST, np.uint32)
        """Ids plus one."""
        self.names = np.zeros(0, np.uint64)
        """By id."""
        self._before = np.zeros(0, np.uint32)
        self._after = np.zeros(0, np.uint32)
        """The filters of a seat are a list: by id, the ids before and after it, plus one."""
        self._first = np.zeros(0, np.uint32)
        """By seat: the first id of its list, plus one."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        columns = self.names, self._before, self._after, self._first
        return self._slots.nbytes + sum(column.nbytes for column in columns)

    def make_room(self, size: int, seats: int) -> None:
        """Ids are below `size` from now on, and seats below `seats`."""
        self.names = widened(self.names, size)
        self._before, self._after = widened(self._before, size), widened(self._after, size)
        self._first = widened(self._first, seats)

    def narrow(self, size: int) -> None:
        """Frees the memory of ids from `size` on."""
        self.names = self.names[:size].copy()
        self._before, self._after = self._before[:size].copy(), self._after[:size].copy()
        slots = np.zeros(max(_SLOTS_FIRST, int(_GROWTH * self._count)), np.uint32)
        _move_all(self._slots, slots, self.names)
        self._slots = slots

    def find(self, seat: int, numbers: Ints) -> Ints:
        """The ids of filters of a seat; -1 where there is none."""
        found = np.empty(len(numbers), np.int64)
        _find_all(self._slots, self.names, seat, numbers, found)
        return found

    def add(self, seat: int, ids: Ints, numbers: Ints) -> None:
        """Adds filters. Ids and numbers are free."""
        self._count += len(ids)
        self.names[ids] = _names(seat, numbers)
        if self._count > _LOAD_MAX * len(self._slots):
            slots = np.zeros(int(_GROWTH * max(self._count, len(self._slots))), np.uint32)
            _move_all(self._slots, slots, self.names)
            self._slots = slots
        _add_all(self._slots, self.names, self._before, self._after, self._first, ids)

    def take_out(self, seat: int, numbers: Ints) -> Ints:
        """Removes those filters of a seat that are here; returns their ids."""
        ids = np.empty(len(numbers), np.int64)
        columns = self._slots, self.names, self._before, self._after, self._first
        taken = _take_all(*columns, seat, numbers, ids)
        self._count -= taken
        return ids[:taken]

    def seats_and_numbers(self, ids: Ints) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The seats and the numbers of some filters."""
        names = self.names[ids]
        return (names >> SEAT_SHIFT).astype(np.int64), (names & NUMBER_MASK).tolist()

    def numbers(self, seat: int, count: int) -> Ints:
        """The numbers of all filters of a seat, which are `count`."""
        found = np.empty(count, np.int64)
        _list_all(self.names, self._after, self._first, seat, found)
        return found


def as_numbers(numbers: Iterable[int]) -> Ints:
    """Numbers of a client as an array. Those that no filter can have are left out."""
    return np.array([number for number in numbers if is_number(number)], np.int64)


def is_number(number: int) -> bool:
    """Whether a filter can have this number."""
    return 0 <= number <= NUMBER_MAX


def warm_up() -> None:
    """Compiles the kernels, or loads them from the cache."""
    table = FilterNumbers()
    table.make_room(1, 1)
    one = np.zeros(1, np.int64)
    table.add(0, one, one)
    table.find(0, one)
    table.numbers(0, 1)
    table.take_out(0, one)
    _move_all(table._slots, table._slots.copy(), table.names)


def _names(seat: int, numbers: Ints) -> Names:
    names: Names = numbers.astype(np.uint64) | np.uint64(seat) << SEAT_SHIFT
    return names


@part
def _home(name: Any, slots: int) -> Any:
    seat, number = name >> SEAT_SHIFT, name & NUMBER_MASK
    mixed = (number ^ (seat << np.uint64(40))) * _MIX
    mixed = ((mixed ^ (mixed >> np.uint64(29))) * _MIX) >> np.uint64(32)
    return np.int64((mixed * np.uint64(slots)) >> np.uint64(32))


@part
def _slot_of(slots: Any, names: Any, seat: int, number: int) -> Any:
    """The slot of a filter, or the free one where it belongs."""
    name = (np.uint64(seat) << SEAT_SHIFT) | np.uint64(number)
    slot = _home(name, len(slots))
    while slots[slot] != _NONE:
        if names[np.int64(slots[slot]) - 1] == name:
            break
        slot = slot + 1 if slot + 1 < len(slots) else 0
    return slot


@part
def _put(slots: Any, names: Any, id: Any) -> None:
    slot = _home(names[id], len(slots))
    while slots[slot] != _NONE:
        slot = slot + 1 if slot + 1 < len(slots) else 0
    slots[slot] = np.uint32(id + 1)


@kernel
def _find_all(slots: Any, names: Any, seat: int, numbers: Any, found: Any) -> None:
    for at in range(len(numbers)):
        found[at] = np.int64(slots[_slot_of(slots, names, seat, numbers[at])]) - 1


@kernel
def _move_all(old: Any, new: Any, names: Any) -> None:
    for slot in range(len(old)):
        if old[slot] != _NONE:
            _put(new, names, np.int64(old[slot]) - 1)


@kernel
def _add_all(slots: Any, names: Any, before: Any, after: Any, first: Any, ids: Any) -> None:
    for id in ids:
        _put(slots, names, id)
        seat = np.int64(names[id] >> SEAT_SHIFT)
        follower = first[seat]
        before[id], after[id] = _NONE, follower
        if follower != _NONE:
            before[np.int64(follower) - 1] = np.uint32(id + 1)
        first[seat] = np.uint32(id + 1)


@kernel
def _take_all(slots: Any, names: Any, before: Any, after: Any, first: Any, seat: int, numbers: Any, ids: Any) -> int:
    """Removes filters, and closes the gaps in the hash table. Returns how many were here."""
    size = len(slots)
    taken = 0
    for at in range(len(numbers)):
        gap = _slot_of(slots, names, seat, numbers[at])
        if slots[gap] == _NONE:
            continue
        id = np.int64(slots[gap]) - 1
        ids[taken] = id
        taken += 1
        slot = gap
        while True:
            slot = slot + 1 if slot + 1 < size else 0
            if slots[slot] == _NONE:
                break
            other = np.int64(slots[slot]) - 1
            if (slot - _home(names[other], size)) % size >= (slot - gap) % size:
                slots[gap] = slots[slot]
                gap = slot
        slots[gap] = _NONE
        if before[id] != _NONE:
            after[np.int64(before[id]) - 1] = after[id]
        else:
            first[seat] = after[id]
        if after[id] != _NONE:
            before[np.int64(after[id]) - 1] = before[id]
    return taken


@kernel
def _list_all(names: Any, after: Any, first: Any, seat: int, found: Any) -> None:
    id = np.int64(first[seat]) - 1
    for at in range(len(found)):
        found[at] = np.int64(names[id] & NUMBER_MASK)
        id = np.int64(after[id]) - 1
