"""The checkers of the scenario `moves`, in addition to those of channels: moves end, plain Redis clients lose nothing,
and moves of idle channels send no notices.

Owns a second statement of what is promised about moves. Checks only the end of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import Published
from shoal.lab.sim.scenarios.channel_checkers import FOREIGN, FOREIGN_PUBLISHER
from shoal.lab.sim.scenarios.channel_run_history import Foreign, SubscriberRecord
from shoal.lab.sim.scenarios.moves_watch import kind_of
from shoal.message import Gap, Message
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import move_unit, moves_prefix

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.app import App
    from shoal.lab.sim.scenarios.moves import MovesRun

BEFORE_TROUBLE_S: Final = 3.0
"""Messages published at least this long before the first fault had enough time to arrive."""
SPOKEN_S: Final = 2.0
"""Without faults, all agents have an entry this long after it was written."""


class MovesCheck:
    """Judges one run at its end."""

    def __init__(self, run: MovesRun) -> None:
        self.run = run

    def judge(self, verdict: Verdict) -> None:
        """Adds violations to the verdict."""
        for text in self.unsettled():
            verdict.violate("unsettled move", text)
        for name, count in self.run.idle_notices.items():
            verdict.violate("idle", f"{count} notices about moves of {name}, which has no publisher")
        self._unfulfilled(verdict)
        self._plain(verdict)
        self._foreign(verdict)

    # Moves end

    def unsettled(self) -> list[str]:
        """The moves that should have ended in a healthy world and have not."""
        return [*self._entries(), *self._requests()]

    def _entries(self) -> Iterator[str]:
        for channel, entry in self.run.watch.entries.items():
            if entry.phase is Phase.END:
                continue
            if entry.phase is not Phase.NARROW:
                yield f"{channel.decode()} is still in phase {entry.phase.value}: {entry}"
            elif not self._excuses(entry):
                yield f"{channel.decode()} does not end, though all subscribers have followed: {entry}"

    def _requests(self) -> Iterator[str]:
        for key in self.run.coordinator.store.list(moves_prefix()):
            yield f"the request to move {move_unit(key)!r} was never answered"

    def _unfulfilled(self, verdict: Verdict) -> None:
        """In runs without faults and slow watches, every channel must be at its last requested placement."""
        operator, book = self.run.operator, self.run.book
        slow = self.run.hasty or self.run.network.options.spike_probability > 0
        if operator is None or slow or self.run.trouble_at < float("inf"):
            return
        for channel, kind in operator.asked.items():
            entry = book.entry(channel)
            if kind_of(entry.placement if entry is not None else book.placement(channel)) != kind:
                verdict.violate("unfulfilled", f"{channel.decode()} was requested to be {kind} and is {entry}")

    def _excuses(self, entry: Entry) -> bool:
        """Whether the only subscribers that have not followed are allowed not to: plain ones, or those of a channel on
        which nothing is published."""
        name = entry.unit.decode()
        if any(plain.channel == name for plain in self.run.plain):
            self.run.watch.seen["plain subscriber left behind by a move"] += 1
            return True
        if self._spoken_at(name) > self.run.watch.written_at[entry.unit] + SPOKEN_S:
            return False
        idle = any(self._is_behind(app, entry) for app in self.run.apps)
        self.run.watch.seen["idle subscriber at the end"] += idle
        return idle

    def _is_behind(self, app: App, entry: Entry) -> bool:
        """Whether an application subscribes to the channel and does not know the entry."""
        if app.router is None:
            return False
        known = app.router.book.revision(entry.unit)
        name = entry.unit.decode()
        return known < entry.newness and any(sub.text == name and not sub.record.pattern for sub in app.subs)

    def _spoken_at(self, name: str) -> float:
        """The time of the last message on a channel. Messages that a publisher took with it when it died may never
        have reached a server, so only confirmed ones count."""
        messages = self.run.history.messages.values()
        times = [message.called_at for message in messages if message.unit == name and message.confirmed_at is not None]
        times += [foreign.sent_at for foreign in self.run.history.foreign if foreign.channel == name]
        return max(times, default=0.0)

    # Plain clients

    def _plain(self, verdict: Verdict) -> None:
        """A plain subscriber receives every message that is published before the first fault, at least once."""
        history = self.run.history
        for plain in self.run.plain:
            if plain.in_force_at is None:
                verdict.violate("unsettled", f"{plain.node.name} never subscribed to {plain.channel}")
                continue
            until = min(self.run.trouble_at, plain.cut_at) - BEFORE_TROUBLE_S
            who = f"{plain.node.name} on {plain.servers} of {plain.channel} (in force {plain.in_force_at:.3f})"
            for message in history.messages.values():
                on_time = plain.in_force_at < message.called_at and self._published_at(message) < until
                if message.unit != plain.channel or not on_time:
                    continue
                verdict.seen["owed to a plain subscriber"] += 1
                if message.number not in plain.heard:
                    verdict.lost += 1
                    verdict.violate("lost", f"{who} never got message {message.number}, at t={message.called_at:.3f}")
            for foreign in history.foreign:
                if foreign.channel != plain.channel or not plain.in_force_at < foreign.sent_at < until:
                    continue
                verdict.seen["foreign message owed to a plain subscriber"] += 1
                if foreign.number not in plain.heard_foreign:
                    verdict.lost += 1
                    verdict.violate("lost", f"{who} never got {foreign}")

    def _published_at(self, message: Published) -> float:
        """The time of a message for comparison with the first fault. In runs with lapsing leases, publishers may find
        no usable server for seconds before the ring changes, so there the time of the confirmation counts. It also
        counts for a message that waits on a congested link until faults begin."""
        if self.run.shape.lapses:
            return float("inf") if message.confirmed_at is None else message.confirmed_at
        first_at, confirmed_at = self.run.faults.first_at, message.confirmed_at
        if first_at is not None and confirmed_at is not None and confirmed_at > first_at:
            return confirmed_at
        return message.called_at

    def _foreign(self, verdict: Verdict) -> None:
        """A message of a plain client before the first fault reaches every running subscriber, at least once. Exempt
        are subscribers that a server has disconnected: their output buffer was lost, and foreign messages have no
        numbers that would show it."""
        until = self.run.trouble_at - BEFORE_TROUBLE_S
        for sub in self.run.history.subscribers:
            if sub.in_force_at is None or sub.client in self.run.sleepers or self._misses_foreign(sub):
                continue
            if self.run.cut_off_at.get(sub.client, float("inf")) < self.run.trouble_at:
                continue
            heard = {
                handed.item.payload
                for handed in sub.handed
                if isinstance(handed.item, Message) and handed.item.payload.startswith(FOREIGN)
            }
            since = max(sub.in_force_at, self.run.began_at)
            ended_at = float("inf") if sub.ended_at is None else sub.ended_at - BEFORE_TROUBLE_S
            for foreign in filter(self._is_promised, self.run.history.foreign):
                if not sub.reads(foreign.channel) or not since < foreign.sent_at < min(until, ended_at):
                    continue
                verdict.seen["foreign message owed"] += 1
                if FOREIGN + b"%d" % foreign.number not in heard:
                    verdict.lost += 1
                    verdict.violate(
                        "lost", f"{sub.name} of {sub.client:x} (in force {sub.in_force_at:.3f}) never got {foreign}"
                    )

    def _is_promised(self, foreign: Foreign) -> bool:
        """Whether the server that a plain client published on belonged to the cluster."""
        return True

    def _misses_foreign(self, sub: SubscriberRecord) -> bool:
        """Whether a subscription was told that foreign messages did not fit its inbox."""
        return any(isinstance(handed.item, Gap) and handed.item.publisher == FOREIGN_PUBLISHER for handed in sub.handed)
