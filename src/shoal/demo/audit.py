"""Who should have received what, and who did: the demo's own count of losses, doubles and disorder.

Owns the comparison of update numbers that players wrote into their payloads. Shares no code with the router
and asks it nothing: what counts is what players published and what came out of their subscriptions. Pure.

Two counts, one rule. `Reading` checks one subscription as items come, so that a loss shows at once, except at
the two ends of what it received. `audit` compares all publications with all readings, ends included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from shoal.demo.game import Update

TAIL_S: Final = 20.0
"""What was published this long before a subscription ended should have come; longer than the longest wait
for a hole (`gap_timeout_s`). To a subscription that did not end, everything should have."""

UNBOUNDED: Final = 1 << 60
"""Stands for the end of a reported gap that nobody knows."""

Publications: TypeAlias = dict[str, dict[int, list[float]]]
"""Channel to player to the times of its updates there; update number n is item n - 1."""


class Received(msgspec.Struct):
    """What one subscription has received from one player. `missing` holds numbers between `first` and `last`
    that did not come and that no reported gap speaks of."""

    first: int
    last: int
    missing: set[int] = msgspec.field(default_factory=set)
    excused_to: int = 0
    """The last number of a reported gap that nothing has followed yet."""
    excused_head: bool = False
    """Whether a gap of unknown publishers was reported before the first update came."""


class Receipt(msgspec.Struct):
    """The account of one subscription: in force from `since` to `until` (None: to the end)."""

    channel: str
    since: float
    until: float | None = None
    players: dict[int, Received] = msgspec.field(default_factory=dict)
    excused: bool = False
    """Whether a gap of unknown publishers was reported: players unheard of may be missing, and not silently."""


class Tally(msgspec.Struct):
    """What players have counted."""

    messages: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0

    def add(self, other: Tally) -> None:
        """Adds another count to this one."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Reading:
    """Checks one subscription while it is read, and counts into a tally."""

    def __init__(self, channel: str, since: float, tally: Tally) -> None:
        self.receipt = Receipt(channel, since)
        self._tally = tally

    def update(self, update: Update) -> None:
        """An update has been delivered."""
        self._tally.deliveries += 1
        receipt = self.receipt
        received = receipt.players.get(update.player)
        due = update.before_at > receipt.since
        if received is None:
            receipt.players[update.player] = Received(update.number, update.number, excused_head=receipt.excused)
            self._tally.lost += due and not receipt.excused
        elif update.number == received.last + 1:
            received.last = update.number
        elif update.number > received.last:
            self._hole(received, range(received.last + 1, update.number), due)
        else:
            self._late(received, update.number)

    def gap(self, player: int, last: int | None) -> None:
        """A gap has been reported: updates of a player that was heard here are missing, up to number `last`
        (None: nobody knows the end)."""
        self._tally.gaps_reported += 1
        received = self.receipt.players[player]
        received.excused_to = max(received.excused_to, UNBOUNDED if last is None else last)

    def gap_of_strangers(self) -> None:
        """A gap has been reported of publishers that nobody knows, or that were not heard here."""
        self._tally.gaps_reported += 1
        self.receipt.excused = True

    def _hole(self, received: Received, hole: range, due: bool) -> None:
        """Numbers were jumped over; what a gap has spoken of is not missing silently."""
        silent = range(max(hole.start, min(received.excused_to, hole.stop - 1) + 1), hole.stop)
        received.last = hole.stop
        received.excused_to = 0
        if due:
            received.missing.update(silent)
            self._tally.lost += len(silent)

    def _late(self, received: Received, number: int) -> None:
        """A number that is not above the last one: it was missing, or it comes twice."""
        if number in received.missing:
            received.missing.remove(number)
            self._tally.reordered += 1
            self._tally.lost -= 1
        elif number < received.first:
            received.missing.update(range(number + 1, received.first))
            received.first = number
            self._tally.reordered += 1
        else:
            self._tally.duplicated += 1


def audit(publications: Publications, receipts: Iterable[Receipt]) -> int:
    """How many deliveries are missing in all, and were not reported as a gap."""
    return sum(
        _lost(times, receipt, receipt.players.get(player))
        for receipt in receipts
        for player, times in publications.get(receipt.channel, {}).items()
    )


def _lost(times: list[float], receipt: Receipt, received: Received | None) -> int:
    """How many of one player's updates one subscription misses."""
    first_due = bisect_right(times, receipt.since) + 1
    last_due = len(times) if receipt.until is None else bisect_left(times, receipt.until - TAIL_S)
    if received is None:
        return 0 if receipt.excused else max(0, last_due - first_due + 1)
    head = 0 if received.excused_head else max(0, received.first - first_due)
    inside = sum(number >= first_due for number in received.missing)
    return head + inside + max(0, last_due - max(received.last, received.excused_to))
