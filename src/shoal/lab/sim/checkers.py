"""The checkers: given the record of a run, what was lost, doubled, reordered, invented or never settled.

Owns the meaning of the channels' promise, written down a second time, without any code of the router. Used on
simulated runs and on real ones (`shoal soak`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from shoal.lab.sim.history import History, Published, SubscriberRecord, number_of
from shoal.message import Gap, Message

FOREIGN_PUBLISHER: Final = 0
FOREIGN: Final = b"foreign "
"""How the payloads begin that scenarios publish by plain Redis clients."""

Key = tuple[str, int, int]
"""Channel, publisher, sequence number."""


@dataclass(slots=True)
class Verdict:
    """What the checkers found; `violations` is empty if every promise held."""

    messages: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0
    violations: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    """Figures of the protocol, printed beside the common ones."""

    def violate(self, kind: str, text: str) -> None:
        """Records a broken promise."""
        self.violations.append(f"{kind}: {text}")


@dataclass(frozen=True, slots=True)
class Expectations:
    """What this run allows.

    `healable`: no gap may be reported while its publisher lives: windows are large enough, and the faults end
    long before `gap_timeout_s` is over. `calm`: no fault struck, so a subscription must begin exactly at its
    baseline; after a fault, older messages may be delivered, or reported missing, rather than risk one that is
    owed. `finished`: the run ended in quiet, so everything owed must have arrived. `close_complete`: a publisher that
    closed its bus has left no gap; only a slow reader could have needed it after that.
    """

    healable: bool
    calm: bool
    finished: bool = True
    close_complete: bool = False


def judge(history: History, expect: Expectations) -> Verdict:
    """Checks every subscription of a run."""
    verdict = Verdict(messages=len(history.messages))
    by_key: dict[Key, Published] = {(m.channel, m.publisher, m.sequence): m for m in history.messages.values()}
    by_channel: dict[str, list[Published]] = defaultdict(list)
    for message in history.messages.values():
        by_channel[message.channel].append(message)
    for sub in history.subscribers:
        _Judge(history, by_key, by_channel, sub, expect, verdict).run()
    for split in history.splits:
        verdict.violate("split", split)
    return verdict


class _Judge:
    """Checks one subscription."""

    def __init__(
        self,
        history: History,
        by_key: dict[Key, Published],
        by_channel: dict[str, list[Published]],
        sub: SubscriberRecord,
        expect: Expectations,
        verdict: Verdict,
    ) -> None:
        self.history = history
        self.by_key = by_key
        self.by_channel = by_channel
        self.sub = sub
        self.expect = expect
        self.verdict = verdict
        self.got: dict[int, float] = {}
        self.gaps: list[tuple[float, Gap]] = []
        self.label = f"{'pattern ' if sub.pattern else ''}{sub.name} of {sub.client:x} from t={sub.called_at:.3f}"

    def run(self) -> None:
        last_of: dict[tuple[str, int], int] = {}
        for handed in self.sub.handed:
            if isinstance(handed.item, Gap):
                self.verdict.gaps_reported += 1
                self.gaps.append((handed.at, handed.item))
            else:
                self._message(handed.at, handed.item, last_of)
        for at, gap in self.gaps:
            self._gap(at, gap)
        self._completeness()
        if self.expect.finished and self.sub.in_force_at is None and self.sub.ended_at is None:
            self.verdict.violate("unsettled", f"{self.label} never came into force")

    def _message(self, at: float, message: Message, last_of: dict[tuple[str, int], int]) -> None:
        verdict = self.verdict
        verdict.deliveries += 1
        if message.foreign and message.payload.startswith(FOREIGN):
            verdict.seen["foreign message"] += 1
            return
        number = number_of(message)
        published = self.history.messages.get(number)
        if published is None or not self.sub.wants(published):
            verdict.violate("invented", f"{self.label} was handed {message.payload[:20]!r} at t={at:.3f}")
            return
        if (message.channel, message.publisher, message.sequence) != (
            published.channel, published.publisher, published.sequence,
        ):  # fmt: skip
            verdict.violate("mislabelled", f"{self.label} got message {number} as {message!r:.120}")
        if number in self.got:
            verdict.duplicated += 1
            verdict.violate("duplicated", f"{self.label} got message {number} again at t={at:.3f}")
        self.got[number] = at
        key = published.channel, published.publisher
        if published.sequence < last_of.get(key, 0):
            verdict.reordered += 1
            verdict.violate("reordered", f"{self.label} got {number} (seq {published.sequence}) after {last_of[key]}")
        last_of[key] = max(published.sequence, last_of.get(key, 0))
        if published.confirmed_at is not None and published.confirmed_at < self.sub.called_at:
            verdict.seen["early delivery"] += 1
            if self.expect.calm:
                when = f"confirmed at t={published.confirmed_at:.3f}"
                verdict.violate("early", f"{self.label} got {number}, {when}, before it subscribed")

    def _gap(self, at: float, gap: Gap) -> None:
        """A gap must stand for something: a closed one for messages that did not arrive, an open one for a
        death.
        """
        if gap.publisher == FOREIGN_PUBLISHER:
            self.verdict.seen["foreign gap"] += 1
            return
        if gap.publisher is None or gap.last is None:
            self.verdict.seen["open gap"] += 1
            since = self.sub.called_at
            if not any(death.began_at <= at and (death.ended_at or at) >= since for death in self.history.unwatched):
                self.verdict.violate("false gap", f"{self.label}: open gap at t={at:.3f}, but no server died: {gap}")
            return
        self.verdict.seen["closed gap"] += 1
        missing = 0
        for sequence in range(gap.first, gap.last + 1):
            message = self.by_key.get((gap.channel, gap.publisher, sequence))
            if message is None:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers {sequence}, which was never published")
                return
            if message.number in self.got:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers {sequence}, which was delivered")
                return
            missing += message.confirmed_at is None or message.confirmed_at >= self.sub.called_at
        if not missing:
            self.verdict.seen["early gap"] += 1
            if self.expect.calm:
                self.verdict.violate("false gap", f"{self.label}: {gap} covers nothing since it subscribed")
            return
        publisher = self.history.publishers[gap.publisher]
        if self.expect.healable and (publisher.ended_at is None or publisher.ended_at > at):
            self.verdict.violate(
                "unhealed", f"{self.label}: {gap} at t={at:.3f}, though its publisher lives and has them"
            )
        elif self.expect.close_complete and not publisher.crashed:
            self.verdict.violate("unhealed", f"{self.label}: {gap} at t={at:.3f}, though its publisher closed in order")

    def _covered(self, message: Published) -> bool:
        """Whether a reported gap accounts for a message. An open gap accounts only for what was published
        before it was reported, and one without a publisher only for publishers that have crashed or closed.
        """
        for at, gap in self.gaps:
            if gap.publisher is None:
                publisher = self.history.publishers[message.publisher]
                gone = publisher.crashed or (publisher.ended_at is not None and publisher.ended_at <= at)
                covered = gone and message.called_at <= at
            elif gap.channel != message.channel or gap.publisher != message.publisher or gap.first > message.sequence:
                covered = False
            else:
                covered = message.called_at <= at if gap.last is None else message.sequence <= gap.last
            if covered:
                return True
        return False

    def _completeness(self) -> None:
        """Everything owed has arrived or is in a gap. A subscription that ended is owed what comes before
        what it got.
        """
        sub, history = self.sub, self.history
        if sub.in_force_at is None:
            return
        highest: dict[tuple[str, int], int] = defaultdict(int)
        for number in self.got:
            message = history.messages[number]
            key = message.channel, message.publisher
            highest[key] = max(highest[key], message.sequence)
        for channel, messages in self.by_channel.items():
            if not sub.reads(channel):
                continue
            for message in messages:
                if message.number in self.got or message.called_at < sub.in_force_at or not sub.wants(message):
                    continue
                followed = highest[channel, message.publisher] > message.sequence
                due = self.expect.finished and sub.ended_at is None
                if due and history.publishers[message.publisher].crashed and message.confirmed_at is None:
                    due = False
                if (due or followed) and not self._covered(message):
                    self.verdict.lost += 1
                    self.verdict.violate(
                        "lost",
                        f"{self.label} (in force {sub.in_force_at:.3f}) never got message {message.number}: seq "
                        f"{message.sequence} of {message.publisher:x} on {channel}, at t={message.called_at:.3f}",
                    )
