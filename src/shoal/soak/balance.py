"""What a round shows of the balancer: when it noticed that the load rose, when that helped, and whom it moved twice.

Owns the sums. It reads the lines that the run wrote about the balancer's decisions, the plan's entries, the ring and
the servers' load. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec

from shoal.balance.settings import DEFAULT_SETTINGS
from shoal.plan.entry import Phase
from shoal.soak import records
from shoal.soak.ledger import Target, target_of

MEAN_S: Final = 2
"""Seconds over which a server's load is averaged, as in a load window."""
SILENT_S_MAX: Final = 4
"""Seconds after which a server that does not report any more is not there."""
LAST_S: Final = 5
"""Seconds at the end of the load of which the final figures are the average."""
_SWITCHED: Final = (Phase.SWITCH, Phase.NARROW, Phase.END)


class Balance(msgspec.Struct):
    """What the balancer did about a load that rose. Times are seconds since it did; None: never."""

    decisions: int = 0
    """Decisions after the rise that changed something."""
    detected_s: float | None = None
    """Until the balancer decided to give the hot channel several servers."""
    replicated_s: float | None = None
    """Until publishers of the hot channel were told to use them."""
    replicated_on: tuple[str, ...] = ()
    """The servers of the hot channel at the end."""
    relieved_s: float | None = None
    """Until no server was above the high ratio any more, for good."""
    joined_s: float | None = None
    """Until as many servers were there as are wanted."""
    moved: int = 0
    """Channels that were placed anew after the rise."""
    moved_twice: tuple[str, ...] = ()
    servers: int = 0
    """In the ring at the end of the load."""
    highest_ratio: float = 0.0
    """Of the busiest server after the rise."""
    busiest_ratio: float = 0.0
    """At the end."""
    mean_ratio: float = 0.0
    """At the end, of all servers."""
    server_cpu_share: float = 0.0
    """The most that a server took of one core, on the average of the load that had risen."""

    @property
    def balanced_s(self) -> float | None:
        """Until all servers were there, and none of them above the high ratio any more."""
        return None if self.joined_s is None or self.relieved_s is None else max(self.joined_s, self.relieved_s)


class BalanceReader:
    """Takes the lines of a round in the order of their log, and sums them up."""

    def __init__(self) -> None:
        self._rose: records.Rose | None = None
        self._eased_at = float("inf")
        self._decided: list[records.Decided] = []
        self._phased: list[records.Phased] = []
        self._loaded: list[records.Loaded] = []
        self._members: list[records.Members] = []
        self._places: dict[str, Target] = {}
        """Where each channel was when the load rose."""

    def take(self, record: records.Record) -> None:
        """The next line."""
        match record:
            case records.Rose():
                self._rose = record
            case records.Eased(at):
                self._eased_at = at
            case records.Decided():
                self._decided.append(record)
            case records.Loaded():
                self._loaded.append(record)
            case records.Members():
                self._members.append(record)
            case records.Phased():
                if self._rose is None:
                    self._places[record.channel] = target_of(record)
                elif record.at <= self._eased_at:
                    self._phased.append(record)

    def sum_up(self) -> Balance:
        """The sums; nothing if the load never rose."""
        rose = self._rose
        if rose is None:
            return Balance()
        found = Balance(decisions=sum(rose.at <= decided.at <= self._eased_at for decided in self._decided))
        self._judge_hot(found, rose)
        self._judge_moves(found)
        self._judge_members(found, rose)
        self._judge_load(found, rose)
        return found

    def _judge_hot(self, found: Balance, rose: records.Rose) -> None:
        """When the hot channel got several servers."""
        for decided in self._decided:
            wanted = [len(servers) for channel, _, servers, _ in decided.moves if channel == rose.channel]
            if decided.at >= rose.at and max(wanted, default=1) > 1:
                found.detected_s = decided.at - rose.at
                break
        for phased in self._phased:
            if phased.channel == rose.channel and phased.phase in _SWITCHED:
                found.replicated_on = phased.servers
                if found.replicated_s is None and len(phased.servers) > 1:
                    found.replicated_s = phased.at - rose.at

    def _judge_moves(self, found: Balance) -> None:
        """How often each channel was placed anew; a move that is undone is one more."""
        times: defaultdict[str, int] = defaultdict(int)
        places = dict(self._places)
        for phased in self._phased:
            target = target_of(phased)
            if places.get(phased.channel, target) != target:
                times[phased.channel] += 1
            places[phased.channel] = target
        found.moved = len(times)
        found.moved_twice = tuple(sorted(channel for channel, count in times.items() if count > 1))

    def _judge_members(self, found: Balance, rose: records.Rose) -> None:
        """When enough servers were there, for good."""
        for members in self._members:
            if members.at > self._eased_at:
                break
            found.servers = len(members.servers)
            if found.servers < rose.servers:
                found.joined_s = None
            elif found.joined_s is None:
                found.joined_s = max(0.0, members.at - rose.at)

    def _judge_load(self, found: Balance, rose: records.Rose) -> None:
        """When no server was above the high ratio any more, and how it was at the end."""
        seconds = [(at, ratios) for at, ratios in self._means() if rose.at < at <= self._eased_at]
        for at, ratios in seconds:
            busiest = max(ratios.values())
            found.highest_ratio = max(found.highest_ratio, busiest)
            if busiest > DEFAULT_SETTINGS.high_ratio:
                found.relieved_s = None
            elif found.relieved_s is None and found.highest_ratio > DEFAULT_SETTINGS.high_ratio:
                found.relieved_s = at - rose.at
        last = [ratios for _, ratios in seconds[-LAST_S:]]
        if last:
            found.busiest_ratio = sum(max(ratios.values()) for ratios in last) / len(last)
            found.mean_ratio = sum(sum(ratios.values()) / len(ratios) for ratios in last) / len(last)
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for loaded in self._loaded:
            if rose.at < loaded.at <= self._eased_at:
                shares[loaded.server].append(loaded.cpu_share)
        found.server_cpu_share = max((sum(one) / len(one) for one in shares.values()), default=0.0)

    def _means(self) -> Iterator[tuple[float, dict[str, float]]]:
        """Second by second what each server carries, on the average of the last seconds. A second of which a server has
        not reported is like the one before; one that stays silent is left out."""
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
