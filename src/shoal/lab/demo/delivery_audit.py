"""The players' audit: updates that were lost, delivered twice or out of order.

Owns the comparison of the update numbers that players write into their payloads. It shares no code with the router and
does not ask it: only what players published and what their subscriptions delivered counts. Pure.

`SubscriptionCheck` looks at one subscription while it is read, so that a loss shows at once; it cannot see losses
before the first and after the last update. `audit` compares everything published with everything received, ends
included.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from shoal.lab.totals import Totals

TAIL_S: Final = 20.0
"""A subscription that has ended should have received what was published this long before its end: longer than the
longest wait for missing messages (`gap_timeout_s`). One that has not ended should have received everything."""

UNBOUNDED: Final = 1 << 60
"""The last number of a reported gap whose end is unknown."""

Publications: TypeAlias = dict[str, dict[int, list[float]]]
"""Channel to player to the times of its updates there; update number n is item n - 1."""


class Update(NamedTuple):
    """A player's update: its id, its position, and the numbers that reveal losses.

    `number` counts the player's updates on this channel from 1. `at` is when this one was published, `before_at` when
    the one before it was (0 for the first); both on the machine's monotonic clock.
    """

    player: int
    number: int
    at: float
    before_at: float
    x: float
    y: float

    def encode(self) -> bytes:
        """The payload."""
        return _UPDATE.pack(*self)

    @classmethod
    def decode(cls, payload: bytes) -> Update:
        """The update at the start of a payload; struct.error if there is none."""
        return cls(*_UPDATE.unpack_from(payload))


_UPDATE: Final = struct.Struct("<IIddff")


class PlayerReceipt(msgspec.Struct):
    """What one subscription has received from one player. `missing` holds numbers between `first` and `last` that were
    not delivered and not reported as a gap."""

    first: int
    last: int
    missing: set[int] = msgspec.field(default_factory=set)
    excused_to: int = 0
    """The last number of a reported gap after which no update has been delivered yet."""
    excused_head: bool = False
    """Whether a gap of unknown publishers was reported before the first update."""


class Receipt(msgspec.Struct):
    """What one subscription has received. It was in force from `since` to `until` (None: to the end)."""

    channel: str
    since: float
    until: float | None = None
    players: dict[int, PlayerReceipt] = msgspec.field(default_factory=dict)
    excused: bool = False
    """Whether a gap of unknown publishers was reported: players that were never received are not lost silently."""


class Tally(Totals):
    """What players have counted."""

    messages: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0


class SubscriptionCheck:
    """Checks one subscription while it is read, and counts into a tally."""

    def __init__(self, channel: str, since: float, tally: Tally) -> None:
        self.receipt = Receipt(channel, since)
        self._tally = tally

    def update(self, update: Update) -> None:
        """Takes an update that was delivered."""
        self._tally.deliveries += 1
        receipt = self.receipt
        received = receipt.players.get(update.player)
        due = update.before_at > receipt.since
        if received is None:
            receipt.players[update.player] = PlayerReceipt(update.number, update.number, excused_head=receipt.excused)
            self._tally.lost += due and not receipt.excused
        elif update.number == received.last + 1:
            received.last = update.number
        elif update.number > received.last:
            self._skip(received, range(received.last + 1, update.number), due)
        else:
            self._go_back(received, update.number)

    def gap(self, player: int, last: int | None) -> None:
        """Takes a gap: updates of a known player are missing, up to number `last` (None: the end is unknown)."""
        self._tally.gaps_reported += 1
        received = self.receipt.players[player]
        received.excused_to = max(received.excused_to, UNBOUNDED if last is None else last)

    def gap_of_strangers(self) -> None:
        """Takes a gap of unknown publishers, or of players that were not received here yet."""
        self._tally.gaps_reported += 1
        self.receipt.excused = True

    def _skip(self, received: PlayerReceipt, hole: range, due: bool) -> None:
        """Numbers were left out. Those that a gap has reported are not missing silently."""
        silent = range(max(hole.start, min(received.excused_to, hole.stop - 1) + 1), hole.stop)
        received.last = hole.stop
        received.excused_to = 0
        if due:
            received.missing.update(silent)
            self._tally.lost += len(silent)

    def _go_back(self, received: PlayerReceipt, number: int) -> None:
        """A number that is not above the last one was missing so far, or is a duplicate."""
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
    """How many deliveries are missing and were not reported as a gap."""
    return sum(
        _lost(times, receipt, receipt.players.get(player))
        for receipt in receipts
        for player, times in publications.get(receipt.channel, {}).items()
    )


def _lost(times: list[float], receipt: Receipt, received: PlayerReceipt | None) -> int:
    """How many updates of one player one subscription misses."""
    first_due = bisect_right(times, receipt.since) + 1
    last_due = len(times) if receipt.until is None else bisect_left(times, receipt.until - TAIL_S)
    if received is None:
        return 0 if receipt.excused else max(0, last_due - first_due + 1)
    head = 0 if received.excused_head else max(0, received.first - first_due)
    inside = sum(number >= first_due for number in received.missing)
    return head + inside + max(0, last_due - max(received.last, received.excused_to))
