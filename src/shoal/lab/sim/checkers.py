"""The verdict on a run, and the check of deliveries for all protocols: invented, duplicated, reordered, missing.

Owns what is the same for every protocol, and uses no code of the protocols. A protocol adds its own promises; those of
channels are in `shoal.lab.sim.scenarios.channel_checkers`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.lab.sim.history import History, Published, Receiver


@dataclass(slots=True)
class Verdict:
    """The result of the checkers; `violations` is empty if every promise was kept."""

    messages: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0
    violations: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    gaps_false: list[str] = field(default_factory=list)
    """Gaps about nothing that was missing, although a live participant could have proved that."""
    gaps_unprovable: int = 0
    """Gaps about nothing that was missing, which no live participant could know."""
    own: Counter[str] = field(default_factory=Counter)
    """The protocol's own figures, printed with the common ones."""

    def violate(self, kind: str, text: str) -> None:
        """Records a broken promise."""
        self.violations.append(f"{kind}: {text}")


class DeliveryCheck:
    """Checks what one receiver got: nothing invented, nothing twice, in order for each publisher of a unit."""

    def __init__(
        self, history: History, by_unit: Mapping[str, list[Published]], receiver: Receiver, verdict: Verdict
    ) -> None:
        self._messages = history.messages
        self._by_unit = by_unit
        self._receiver = receiver
        self._verdict = verdict
        self._last: dict[tuple[str, int, int], int] = defaultdict(int)
        """By unit, publisher and epoch: the highest sequence number delivered."""
        self._newest: dict[tuple[str, int], int] = defaultdict(int)
        """By unit and publisher: the highest epoch delivered."""
        self._skipped: dict[tuple[str, int], int] = {}
        """By unit and publisher: the last number that was reported missing, or the last one delivered behind it."""
        self.got: dict[int, float] = {}
        """When each message was delivered, by number."""
        self.displaced: set[tuple[str, int, int]] = set()
        """Unit, publisher and number of messages that may come late: a false one was taken back in their place."""
        self._began: dict[tuple[str, int], float] = {}
        """By unit and publisher: when the first true message was delivered."""
        self._misled: dict[tuple[str, int], int] = defaultdict(int)
        """By unit and publisher: up to which number messages may come late, because a false one was the first."""

    def taken_back(self, unit: str, publisher: int, sequence: int, delivered_at: float) -> None:
        """A false message was taken back. If it was the first of its publisher, the receiver began behind it, and the
        messages before it may come late too."""
        self.displaced.add((unit, publisher, sequence))
        if delivered_at <= self._began.get((unit, publisher), delivered_at):
            self._misled[unit, publisher] = max(sequence, self._misled[unit, publisher])

    def skipped(self, unit: str, publisher: int, last: int) -> None:
        """Messages up to this number are reported missing. What was held behind them may come now, also if the stream
        has ended meanwhile and messages of the publisher's next stream have come."""
        self._skipped[unit, publisher] = last

    def take(self, number: int, at: float, payload: bytes) -> Published | None:
        """The receiver got a message; returns it, or None if it was never owed."""
        verdict, receiver = self._verdict, self._receiver
        message = self._messages.get(number)
        if message is None or not receiver.wants(message):
            verdict.violate("invented", f"{receiver.label} got {payload[:20]!r}, which it was not owed, at t={at:.3f}")
            return None
        if number in self.got:
            verdict.duplicated += 1
            verdict.violate("duplicated", f"{receiver.label} got message {number} again at t={at:.3f}")
        self.got[number] = at
        stream = message.unit, message.publisher
        self._began.setdefault(stream, at)
        late = (*stream, message.sequence) in self.displaced or message.sequence < self._misled[stream]
        last = self._last[*stream, message.epoch]
        if self._skipped.get(stream) == message.sequence - 1:
            self._skipped[stream] = message.sequence
        elif message.epoch < self._newest[stream] and not late:
            verdict.reordered += 1
            verdict.violate("reordered", f"{receiver.label} got {number} after messages of a later stream")
        if message.sequence < last and not late:
            verdict.reordered += 1
            order = f"{number} (seq {message.sequence}) after {last}"
            verdict.violate("reordered", f"{receiver.label} got {order}")
        self._last[*stream, message.epoch] = max(message.sequence, last)
        self._newest[stream] = max(message.epoch, self._newest[stream])
        return message

    def missing(self) -> Iterator[tuple[Published, bool]]:
        """The messages that were owed and not delivered, each with whether a later message of the same publisher was
        delivered."""
        receiver = self._receiver
        if receiver.in_force_at is None:
            return
        for unit, messages in self._by_unit.items():
            if not receiver.reads(unit):
                continue
            for message in messages:
                if message.number in self.got or message.called_at < receiver.in_force_at:
                    continue
                if receiver.wants(message):
                    followed = self._last[unit, message.publisher, message.epoch] > message.sequence
                    yield message, followed or 0 < message.epoch < self._newest[unit, message.publisher]

    def lose(self, message: Published) -> None:
        """Reports a message that was owed."""
        self._verdict.lost += 1
        receiver = self._receiver
        what = f"{message.number}: seq {message.sequence} of {message.publisher:x} on {message.unit}"
        when = f"at t={message.called_at:.3f}"
        self._verdict.violate(
            "lost", f"{receiver.label} (in force {receiver.in_force_at:.3f}) never got message {what}, {when}"
        )
