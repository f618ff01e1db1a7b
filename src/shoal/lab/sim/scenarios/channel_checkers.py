"""The checkers of channels: they find what a run lost, duplicated, reordered or invented, and what never settled.

Owns a second statement of the channels' promise, without any code of the router. Used on simulated runs and on real
ones (`shoal soak`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shoal.lab.sim.checkers import DeliveryCheck, Verdict
from shoal.lab.sim.history import Published
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory, Lie, SubscriberRecord, number_of
from shoal.message import Gap, Message, Retraction

FOREIGN_PUBLISHER: Final = 0
NO_ROOM: Final = "no room for all publishers"
"""What a gap says if an agent's tables were full."""
FORGOTTEN: Final = "away for longer than agents remember"
"""What a gap says if a subscriber was away for longer than `publisher_idle_s`."""
ROUNDING_S: Final = 2.0
"""Agents know to the second when a stream was heard, and a client to about a second until when it was there."""
FOREIGN: Final = b"foreign "
"""Prefix of the payloads that plain Redis clients of a scenario publish."""

BEFORE_LIE_S: Final = 10.0
AFTER_LIE_S: Final = 10.0
"""A connection that ended this long before a false message was sent, or after it was delivered, excuses that it was not
taken back."""
GAPS_FALSE_MAX: Final = 2
"""False gaps in one run that are no violation yet: rare ones are left where faults overlap, see docs/simulator.md."""

Key = tuple[str, int, int, int]
"""Channel, publisher, epoch of the stream, sequence number."""
DRIFT_FACTOR: Final = 1.1
"""Clocks of two processes differ in rate by less than this."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the checkers expect of a run.

    `healable`: no gap may be reported while its publisher runs, because resend windows are large enough and faults end
    long before `gap_timeout_s`. `calm`: there was no fault, so a subscription must begin exactly at its baseline; after
    a fault, older messages may be delivered or reported missing, because that is better than missing an owed one.
    `finished`: the run ended quietly, so everything owed must have arrived. `close_complete`: publishers that closed
    their bus left no gaps, because no reader was slow enough to need them afterwards. `full`: agents have no room for
    all publishers, so an open gap needs no crash, and one that says so covers the messages of any publisher. `idle_s`:
    streams end when their publishers were silent for half of it, and agents forget them after it. Then a client has
    several streams on a channel, each with numbers from 1 on.
    """

    healable: bool
    calm: bool
    finished: bool = True
    close_complete: bool = False
    full: bool = False
    idle_s: float | None = None


def judge(history: ChannelRunHistory, expect: Expectations) -> Verdict:
    """Checks every subscription of a run."""
    verdict = Verdict(messages=len(history.messages))
    by_key: dict[Key, Published] = {(m.unit, m.publisher, m.epoch, m.sequence): m for m in history.messages.values()}
    by_unit = history.by_unit()
    for sub in history.subscribers:
        _Judge(history, by_key, DeliveryCheck(history, by_unit, sub, verdict), sub, expect, verdict).run()
    for split in history.splits:
        verdict.violate("split", split)
    if len(verdict.gaps_false) > GAPS_FALSE_MAX:
        for text in verdict.gaps_false:
            verdict.violate("false gap", text)
    return verdict


class _Judge:
    """Checks one subscription."""

    def __init__(
        self,
        history: ChannelRunHistory,
        by_key: dict[Key, Published],
        deliveries: DeliveryCheck,
        sub: SubscriberRecord,
        expect: Expectations,
        verdict: Verdict,
    ) -> None:
        self.history = history
        self.by_key = by_key
        self.deliveries = deliveries
        self.sub = sub
        self.expect = expect
        self.verdict = verdict
        self.gaps: list[tuple[float, Gap, int]] = []
        """When each gap was reported, and the epoch of the stream that it is about."""
        self.reported: set[int] = set()
        """Messages in closed gaps."""
        self.believed: dict[Key, list[tuple[float, Lie]]] = {}
        """Lies that were delivered and not taken back, and when."""
        self.label = sub.label

    def run(self) -> None:
        for handed in self.sub.handed:
            if isinstance(handed.item, Gap):
                self.verdict.gaps_reported += 1
                if handed.item.publisher and handed.item.last is not None:
                    self.deliveries.skipped(handed.item.channel, handed.item.publisher, handed.item.last)
            elif isinstance(handed.item, Retraction):
                self._retraction(handed.at, handed.item)
            else:
                self._message(handed.at, handed.item)
        for handed in self.sub.handed:
            if isinstance(handed.item, Gap):
                epoch = self._epoch(handed.at, handed.item)
                self.gaps.append((handed.at, handed.item, epoch))
                self._gap(handed.at, handed.item, epoch)
                self._judge_truth(handed.at, handed.item, epoch, handed.witnesses)
        self._lies()
        self._completeness()
        if self.expect.finished and self.sub.in_force_at is None and self.sub.ended_at is None:
            self.verdict.violate("unsettled", f"{self.label} never came into force")

    def _message(self, at: float, message: Message) -> None:
        verdict = self.verdict
        verdict.deliveries += 1
        if message.foreign and message.payload.startswith(FOREIGN):
            verdict.seen["foreign message"] += 1
            return
        lie = self.history.lies.get(message.payload)
        if lie is not None:
            verdict.seen["false message delivered"] += 1
            self.believed.setdefault((lie.channel, lie.publisher, 0, lie.sequence), []).append((at, lie))
            return
        number = number_of(message)
        published = self.deliveries.take(number, at, message.payload)
        if published is None:
            return
        if (message.channel, message.publisher, message.sequence) != (
            published.unit, published.publisher, published.sequence,
        ):  # fmt: skip
            verdict.violate("mislabelled", f"{self.label} got message {number} as {message!r:.120}")
        if published.confirmed_at is not None and published.confirmed_at < self.sub.called_at:
            verdict.seen["early delivery"] += 1
            if self.expect.calm:
                when = f"confirmed at t={published.confirmed_at:.3f}"
                verdict.violate("early", f"{self.label} got {number}, {when}, before it subscribed")

    def _retraction(self, at: float, retraction: Retraction) -> None:
        """Checks that a retraction takes back a lie."""
        self.verdict.seen["false message retracted"] += 1
        key = retraction.channel, retraction.publisher, 0, retraction.sequence
        lies = self.believed.get(key)
        if not lies:
            self.verdict.violate("false retraction", f"{self.label}: {retraction} at t={at:.3f} of no false message")
            return
        delivered_at, _ = lies.pop()
        self.deliveries.taken_back(retraction.channel, retraction.publisher, retraction.sequence, delivered_at)

    def _lies(self) -> None:
        """Checks that every lie was taken back. A lie that the agent did not hear, or whose refutation the subscriber
        missed, may stay, and the message that it displaced may be missing."""
        for key, lies in self.believed.items():
            for at, lie in lies:
                if self._is_excused(lie, at):
                    self.verdict.seen["false message unnoticed"] += 1
                    message = self.by_key.get(key)
                    if message is not None:
                        self.deliveries.got.setdefault(message.number, at)
                elif self.expect.finished and self.sub.ended_at is None:
                    self.verdict.violate("invented", f"{self.label} got {lie.payload!r} at t={at:.3f}: {lie}")

    def _is_excused(self, lie: Lie, at: float) -> bool:
        """Whether the agent, or this subscriber, lost its connection to the server at about that time. A subscriber
        that was away must not take an altered message all the same. If the publisher has ended, no process knows a
        true message that the agent heard before it lost its connection."""
        losers = (None,) if lie.altered else (None, self.sub.client)
        since = lie.sent_at - BEFORE_LIE_S
        altered = self.by_key.get((lie.channel, lie.publisher, 0, lie.sequence)) if lie.altered else None
        if altered is not None:
            left_at = self.history.publishers[lie.publisher].ended_at
            since = min(since, altered.called_at) if left_at is not None and left_at <= at else since
        return any(
            server == lie.server and client in losers
            and since <= ended_at <= at + AFTER_LIE_S
            for server, client, ended_at in self.history.links_ended
        )  # fmt: skip

    def _is_claimed(self, gap: Gap, at: float) -> bool:
        """Whether a gap ends with a number that a lie has claimed which the agent may not have heard, or is open and
        begins behind it: the stream may be made up."""
        return any(
            (lie.channel, lie.publisher) == (gap.channel, gap.publisher)
            and (gap.last in (lie.sequence, lie.sequence - 1) or (gap.last is None and gap.first == lie.sequence + 1))
            and self._is_excused(lie, at)
            for lie in self.history.claims
        )

    def _epoch(self, at: float, gap: Gap) -> int:
        """The epoch of the stream that a gap is about; 0 where a client has one stream on a channel. A gap does not
        name it. So it is one that has all numbers of the gap, of which none was delivered or is in a closed gap: first
        one with messages that are owed, then one that continues with the number behind the gap, then one that ends with
        the gap."""
        if self.expect.idle_s is None or not gap.publisher:
            return 0
        streams: dict[int, list[Published]] = {}
        for message in self.history.of(gap.channel, gap.publisher):
            if message.called_at <= at:
                streams.setdefault(message.epoch, []).append(message)
        last = math.inf if gap.last is None else gap.last
        got = self.deliveries.got
        found: list[tuple[bool, bool, bool, int]] = []
        for epoch, messages in streams.items():
            covered = [message for message in messages if gap.first <= message.sequence <= last]
            known = gap.last is None or len(covered) == gap.last - gap.first + 1
            if not known or any(message.number in got or message.number in self.reported for message in covered):
                continue
            goes_on = any(message.sequence == last + 1 and message.number in got for message in messages)
            owed = any(self._may_be_owed(message) for message in covered)
            found.append((not owed, not goes_on, messages[-1].sequence != last, epoch))
        return min(found)[-1] if found else max(streams, default=0)

    def _gap(self, at: float, gap: Gap, epoch: int) -> None:
        """Checks a gap: a closed one must cover messages that did not arrive, an open one must follow a crash."""
        if gap.publisher == FOREIGN_PUBLISHER:
            self.verdict.seen["foreign gap"] += 1
            return
        if gap.publisher is None or gap.last is None:
            self.verdict.seen["open gap"] += 1
            since = self.sub.called_at
            if self.expect.idle_s is not None and FORGOTTEN in gap.reason:
                self._forgotten(at, gap, self.expect.idle_s)
                return
            if not self.expect.full and not any(
                death.began_at <= at and (death.ended_at or at) >= since for death in self.history.unwatched
            ):
                self.verdict.violate("false gap", f"{self.label}: open gap at t={at:.3f}, but no process died: {gap}")
            return
        self.verdict.seen["closed gap"] += 1
        if self._is_claimed(gap, at):
            self.verdict.seen["gap by an unnoticed claim"] += 1
            return
        missing = 0
        if self.expect.idle_s is not None:
            self.reported.update(
                message.number
                for message in self.history.of(gap.channel, gap.publisher)
                if message.epoch == epoch and gap.first <= message.sequence <= gap.last
            )
        for sequence in range(gap.first, gap.last + 1):
            message = self.by_key.get((gap.channel, gap.publisher, epoch, sequence))
            if message is None:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers {sequence}, which was never published")
                return
            if message.number in self.deliveries.got:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers {sequence}, which was delivered")
                return
            missing += self._may_be_owed(message)
        if not missing:
            self.verdict.seen["early gap"] += 1
            if self.expect.calm:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers nothing since it subscribed")
            return
        publisher = self.history.publishers[gap.publisher]
        if self.expect.healable and (publisher.ended_at is None or publisher.ended_at > at):
            self.verdict.violate(
                "unhealed", f"{self.label}: {gap} at t={at:.3f}, though its publisher runs and has the messages"
            )
        elif self.expect.close_complete and not publisher.crashed:
            self.verdict.violate(
                "unhealed", f"{self.label}: {gap} at t={at:.3f}, though its publisher closed its bus in order"
            )

    def _forgotten(self, at: float, gap: Gap, idle_s: float) -> None:
        """Checks a gap that says that the subscriber was away for long: it had lost a connection, and had subscribed
        that long ago."""
        self.verdict.seen["gap after a long absence"] += 1
        since = self.sub.called_at
        if not any(client == self.sub.client and since <= end <= at for _, client, end in self.history.links_ended):
            self.verdict.violate("false gap", f"{self.label}: {gap} at t={at:.3f}, but it lost no connection")
        elif at < since + idle_s / DRIFT_FACTOR - ROUNDING_S:
            self.verdict.violate("false gap", f"{self.label}: {gap} at t={at:.3f}, but it was not away for {idle_s} s")

    def _judge_truth(self, at: float, gap: Gap, epoch: int, witnesses: tuple[str, ...]) -> None:
        """Counts gaps about messages that all arrived or were never owed."""
        if self._is_claimed(gap, at):
            return
        if gap.publisher == FOREIGN_PUBLISHER or any(
            self._is_covered_by(message, at, gap, epoch) and self._may_be_owed(message)
            for message in self.history.messages.values()
            if message.number not in self.deliveries.got and self.sub.reads(message.unit)
        ):
            return
        if witnesses:
            known = ", ".join(witnesses)
            self.verdict.gaps_false.append(
                f"{self.label}: {gap} at t={at:.3f}, though {known} knew that nothing is missing"
            )
        else:
            self.verdict.gaps_unprovable += 1

    def _may_be_owed(self, message: Published) -> bool:
        """Whether a message may have been sent after the subscription began."""
        return message.confirmed_at is None or message.confirmed_at >= self.sub.called_at

    def _covered(self, message: Published) -> bool:
        """Whether a reported gap covers a message. An open gap covers only messages that were published before it was
        reported, and one without a publisher only those of publishers that had closed by then, or that ended, then or
        later, before subscribers could have everything, and those of streams that had ended by then."""
        return any(self._is_covered_by(message, at, gap, epoch) for at, gap, epoch in self.gaps)

    def _is_covered_by(self, message: Published, at: float, gap: Gap, epoch: int) -> bool:
        if gap.publisher is None:
            publisher = self.history.publishers[message.publisher]
            left = publisher.crashed or publisher.gave_up
            left = left or (publisher.ended_at is not None and publisher.ended_at <= at)
            left = left or self._is_over(message, at, FORGOTTEN in gap.reason)
            unlisted = self.expect.full and NO_ROOM in gap.reason
            return (left or unlisted) and message.called_at <= at
        if gap.channel != message.unit or gap.publisher != message.publisher or gap.first > message.sequence:
            return False
        if epoch != message.epoch:
            return False
        return message.called_at <= at if gap.last is None else message.sequence <= gap.last

    def _is_over(self, message: Published, at: float, forgotten: bool) -> bool:
        """Whether the stream of a message had ended because its publisher was silent or, with `forgotten`, had been
        silent for so long that no agent remembers it."""
        if self.expect.idle_s is None or not message.epoch:
            return False
        idle_s = self.expect.idle_s / (1 if forgotten else 2) / DRIFT_FACTOR - ROUNDING_S * forgotten
        others = self.history.of(message.unit, message.publisher)
        return max(other.called_at for other in others if other.epoch == message.epoch) <= at - idle_s

    def _completeness(self) -> None:
        """Checks that everything owed has arrived or is in a gap. A subscription that ended is owed only the messages
        before the last one it got, and none that a lie had displaced when it ended."""
        for message, followed in self.deliveries.missing():
            key = message.unit, message.publisher, message.epoch, message.sequence
            displaced = (message.unit, message.publisher, message.sequence) in self.deliveries.displaced
            if self.sub.ended_at is not None and (key in self.believed or displaced):
                continue
            due = self.expect.finished and self.sub.ended_at is None
            if due and self.history.publishers[message.publisher].crashed and message.confirmed_at is None:
                due = False
            if (due or (followed and self._is_followed(message))) and not self._covered(message):
                self.deliveries.lose(message)

    def _is_followed(self, message: Published) -> bool:
        """Whether a later message of the same stream was delivered. A new stream of a publisher does not wait for the
        holes of one that ended by silence."""
        return any(
            other.epoch == message.epoch and other.sequence > message.sequence and other.number in self.deliveries.got
            for other in self.history.of(message.unit, message.publisher)
        )
