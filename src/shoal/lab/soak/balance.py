"""The report on the balancer in a round: when it reacted to the raised load, when that helped, and repeated moves.

Owns the sums. It reads the logged lines about the balancer's decisions, the plan's entries, the ring and the servers'
load. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec

from shoal.balance.settings import DEFAULT_SETTINGS
from shoal.lab.soak import round_log
from shoal.lab.soak.move_ledger import Target, target_of
from shoal.plan.entry import Phase

MEAN_S: Final = 2
"""Seconds over which a server's load is averaged, as in a load window."""
SILENT_S_MAX: Final = 4
"""A server that has not reported for this many seconds is left out."""
LAST_S: Final = 5
"""The final figures are averages over this many seconds at the end of the load."""
_SWITCHED: Final = (Phase.SWITCH, Phase.NARROW, Phase.END)


class Balance(msgspec.Struct):
    """The balancer's reaction to the raised load. Times are seconds since it was raised; None: never."""

    decisions: int = 0
    """Decisions since then that changed something."""
    detected_s: float | None = None
    """Until the balancer decided to replicate the hot channel."""
    replicated_s: float | None = None
    """Until its publishers were notified to use several servers."""
    replicated_on: tuple[str, ...] = ()
    """The servers of the hot channel at the end."""
    relieved_s: float | None = None
    """Until no server was above the high ratio any more, up to the end."""
    joined_s: float | None = None
    """Until as many servers were in the ring as the load needs."""
    moved: int = 0
    """Channels that were moved since then."""
    moved_twice: tuple[str, ...] = ()
    servers: int = 0
    """In the ring at the end of the load."""
    highest_ratio: float = 0.0
    """Highest load ratio of any server since then."""
    busiest_ratio: float = 0.0
    """Load ratio of the busiest server at the end."""
    mean_ratio: float = 0.0
    """Average load ratio at the end."""
    server_cpu_share: float = 0.0
    """Share of one core that the busiest server used, averaged over the raised load."""

    @property
    def balanced_s(self) -> float | None:
        """Until all servers were in the ring, and none of them above the high ratio any more."""
        return None if self.joined_s is None or self.relieved_s is None else max(self.joined_s, self.relieved_s)


class BalanceLogReader:
    """Takes the lines of a round in the order of their log, and sums them up."""

    def __init__(self) -> None:
        self._raised: round_log.LoadRaised | None = None
        self._ended_at = float("inf")
        self._decided: list[round_log.DecisionMade] = []
        self._entries: list[round_log.EntryChanged] = []
        self._loaded: list[round_log.LoadLine] = []
        self._members: list[round_log.RingMembers] = []
        self._places: dict[str, Target] = {}
        """The placement of each channel when the load was raised."""

    def take(self, record: round_log.Record) -> None:
        """The next line."""
        match record:
            case round_log.LoadRaised():
                self._raised = record
            case round_log.LoadEnded(at):
                self._ended_at = at
            case round_log.DecisionMade():
                self._decided.append(record)
            case round_log.LoadLine():
                self._loaded.append(record)
            case round_log.RingMembers():
                self._members.append(record)
            case round_log.EntryChanged():
                if self._raised is None:
                    self._places[record.channel] = target_of(record)
                elif record.at <= self._ended_at:
                    self._entries.append(record)

    def sum_up(self) -> Balance:
        """The report; empty if the load was never raised."""
        raised = self._raised
        if raised is None:
            return Balance()
        found = Balance(decisions=sum(raised.at <= decided.at <= self._ended_at for decided in self._decided))
        self._judge_hot(found, raised)
        self._judge_moves(found)
        self._judge_members(found, raised)
        self._judge_load(found, raised)
        return found

    def _judge_hot(self, found: Balance, raised: round_log.LoadRaised) -> None:
        """When the hot channel was replicated."""
        for decided in self._decided:
            wanted = [len(servers) for channel, _, servers, _ in decided.moves if channel == raised.channel]
            if decided.at >= raised.at and max(wanted, default=1) > 1:
                found.detected_s = decided.at - raised.at
                break
        for entry in self._entries:
            if entry.channel == raised.channel and entry.phase in _SWITCHED:
                found.replicated_on = entry.servers
                if found.replicated_s is None and len(entry.servers) > 1:
                    found.replicated_s = entry.at - raised.at

    def _judge_moves(self, found: Balance) -> None:
        """How often each channel was moved; undoing a move counts as another one."""
        times: defaultdict[str, int] = defaultdict(int)
        places = dict(self._places)
        for entry in self._entries:
            target = target_of(entry)
            if places.get(entry.channel, target) != target:
                times[entry.channel] += 1
            places[entry.channel] = target
        found.moved = len(times)
        found.moved_twice = tuple(sorted(channel for channel, count in times.items() if count > 1))

    def _judge_members(self, found: Balance, raised: round_log.LoadRaised) -> None:
        """When enough servers were in the ring, up to the end."""
        for members in self._members:
            if members.at > self._ended_at:
                break
            found.servers = len(members.servers)
            if found.servers < raised.servers:
                found.joined_s = None
            elif found.joined_s is None:
                found.joined_s = max(0.0, members.at - raised.at)

    def _judge_load(self, found: Balance, raised: round_log.LoadRaised) -> None:
        """When no server was above the high ratio any more, and the figures at the end."""
        seconds = [(at, ratios) for at, ratios in self._means() if raised.at < at <= self._ended_at]
        for at, ratios in seconds:
            busiest = max(ratios.values())
            found.highest_ratio = max(found.highest_ratio, busiest)
            if busiest > DEFAULT_SETTINGS.high_ratio:
                found.relieved_s = None
            elif found.relieved_s is None and found.highest_ratio > DEFAULT_SETTINGS.high_ratio:
                found.relieved_s = at - raised.at
        last = [ratios for _, ratios in seconds[-LAST_S:]]
        if last:
            found.busiest_ratio = sum(max(ratios.values()) for ratios in last) / len(last)
            found.mean_ratio = sum(sum(ratios.values()) / len(ratios) for ratios in last) / len(last)
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for loaded in self._loaded:
            if raised.at < loaded.at <= self._ended_at:
                shares[loaded.server].append(loaded.cpu_share)
        found.server_cpu_share = max((sum(one) / len(one) for one in shares.values()), default=0.0)

    def _means(self) -> Iterator[tuple[float, dict[str, float]]]:
        """The load ratio of each server, second by second, averaged over the last seconds. A second without a report
        repeats the one before; a server that stays silent is left out."""
        by_second: defaultdict[int, dict[str, float]] = defaultdict(dict)
        ends: dict[int, float] = {}
        for loaded in self._loaded:
            second = round(loaded.at - self._loaded[0].at)
            by_second[second][loaded.server] = loaded.ratio
            ends[second] = loaded.at
        past: dict[str, list[float]] = {}
        seen: dict[str, int] = {}
        for second, at in sorted(ends.items()):
            seen.update(dict.fromkeys(by_second[second], second))
            past = {server: past.get(server, []) for server, last in seen.items() if second - last <= SILENT_S_MAX}
            for server, before in past.items():
                before.append(by_second[second].get(server, before[-1] if before else 0.0))
            yield at, {server: sum(ratios[-MEAN_S:]) / len(ratios[-MEAN_S:]) for server, ratios in past.items()}
