"""Soaks with a balancer: the load of a real cluster is raised, and the balancer must react.

Owns the course of such a round, the goals of the balancer, and the facts that are printed. The load is in
`surges`, the log of the balancer in `balancer_follower`, and the report on it in `balance`.

    hot-channel   one channel becomes too large for a server: it must be replicated within seconds
    scale-out     all channels become too busy for the servers: servers must be added, and the load balanced
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.cluster.local import LocalCluster
from shoal.lab.harness import Stop
from shoal.lab.soak.balance import Balance
from shoal.lab.soak.balancer_follower import BalancerFollower, start_following
from shoal.lab.soak.channel_capacity import Carried, measure_carried
from shoal.lab.soak.checker import RoundReport, Severity
from shoal.lab.soak.load_orders import RaiseLoad
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.rounds import BaseRound, RoundProgress, Tell
from shoal.lab.soak.run import round_directory
from shoal.lab.soak.surges import Surge, hot_channel, scale_out
from shoal.limits import Limits

POLICY: Final = "shoal"
WARM_S_MAX: Final = 12.0
"""Longest time with even load at the start, from which the balancer learns the usual load."""
WARM_SHARE: Final = 0.3
"""The share of a shorter soak with even load."""
REPLICATED_S_MAX: Final = 5.0
"""A hot channel must be replicated within this time."""
BALANCED_S_MAX: Final = 30.0
"""After the load was raised, all servers must carry it evenly within this time."""
CARRIED_SHARE_MIN: Final = 0.7
"""Each of several servers must carry this share of what one server carries of the channel alone."""


class SurgeScenario(enum.StrEnum):
    """The load that the balancer must handle."""

    HOT_CHANNEL = "hot-channel"
    SCALE_OUT = "scale-out"


_ALWAYS: Final = (
    "paced message",
    "late joiner",
    "subscriber left",
    "pattern",
    "channel",
    "router beacons",
    "router handshakes",
    "move asked lazily",
)
_CORNERS: Final = {
    SurgeScenario.HOT_CHANNEL: (*_ALWAYS, "decided replicate to all_subscribers", "move single to all_subscribers"),
    SurgeScenario.SCALE_OUT: (*_ALWAYS, "servers added", "move single to single"),
}


class BalancedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a soak. `servers_max` is how many servers there may be at the end."""

    scenario: SurgeScenario
    servers: int
    servers_max: int
    seconds: float
    seed: int
    limits: Limits

    @property
    def warm_s(self) -> float:
        """How long the load is even at the start."""
        return min(WARM_S_MAX, WARM_SHARE * self.seconds)

    def surge(self) -> Surge:
        """The load."""
        if self.scenario is SurgeScenario.HOT_CHANNEL:
            return hot_channel(self.seed, self.seconds, self.servers, self.limits)
        return scale_out(self.seed, self.seconds, self.servers, self.servers_max, self.limits)


def run_balanced(options: BalancedOptions, tell: Tell) -> BalancedOutcome:
    """Runs the round. For a hot channel it also measures how much one channel carries on several servers."""
    outcome = BalancedOutcome(options)
    began = time.monotonic()
    with round_directory(outcome) as directory:
        outcome.add(asyncio.run(BalancedRound(options.surge(), options.warm_s, directory, tell).execute()), 0)
    if options.scenario is SurgeScenario.HOT_CHANNEL:
        outcome.add_carried(measure_carried(options.servers, lambda phase: tell(RoundProgress(phase))))
    outcome.seconds = time.monotonic() - began
    return outcome


class BalancedRound(BaseRound):
    """A round in which the load is raised. It ends after its time, or when `is_shown` returns true."""

    def __init__(
        self,
        surge: Surge,
        warm_s: float,
        directory: Path,
        tell: Tell,
        is_shown: Callable[[BalancerFollower], bool] | None = None,
    ) -> None:
        super().__init__(surge.shape, Severity.CALM, directory, tell)
        self._surge = surge
        self._warm_s = warm_s
        self._is_shown = is_shown
        self._observing: BalancerFollower | None = None

    def make_cluster(self, directory: Path) -> LocalCluster:
        """A cluster with a balancer that applies its decisions."""
        surge = self._surge
        return LocalCluster(
            surge.servers,
            directory,
            limits=self.shape.limits,
            balancers=1,
            policy=POLICY,
            servers_min=surge.servers,
            servers_max=surge.servers_max,
            max_out_bytes_per_s=surge.capacity_bytes_per_s,
        )

    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """Follows the balancer."""
        observing = start_following(cluster, self.shape, self.directory)
        self.follower = self._observing = await stack.enter_async_context(observing)

    async def load(self, cluster: LocalCluster) -> None:
        """The load is even, then it is raised."""
        observing, is_shown = self._observing, self._is_shown
        assert observing is not None
        await self.until_load(self._warm_s, "even load")
        await self.end_moves()
        observing.log_raise(self._surge.channel, self._surge.servers_max)
        self.send(RaiseLoad(), "publish")
        await self.until_load(self.shape.seconds, "raised load", lambda: bool(is_shown and is_shown(observing)))
        observing.log_end()
        await self.end_moves()
        self.send(Stop(), "publish")

    async def finish(self, cluster: LocalCluster) -> None:
        """Ends the log of moves."""
        assert self._observing is not None
        await self._observing.finish()


class BalancedOutcome(BaseOutcome):
    """The outcome of a soak with a balancer."""

    def __init__(self, options: BalancedOptions) -> None:
        super().__init__(options.scenario.value, list(_CORNERS[options.scenario]))
        self.options = options
        self.carried: Carried | None = None

    def add(self, report: RoundReport, faults: int, forwarded: int = 0) -> None:
        """Adds the round, and a violation for everything that the balancer failed to achieve."""
        self.report.balance = report.balance
        broken = list(_broken(self.options, report.balance))
        report = msgspec.structs.replace(
            report,
            violations=[*broken, *report.violations],
            violation_count=report.violation_count + len(broken),
        )
        super().add(report, faults, forwarded)

    def add_carried(self, carried: Carried) -> None:
        """Adds how much one channel carries on several servers. No minimum applies if processors are the limit."""
        self.carried = carried
        least = CARRIED_SHARE_MIN * carried.servers
        if carried.vs_one_server < least and carried.limited_by != "cores":
            self.report.violation_count += 1
            self.report.violations = [
                *self.report.violations,
                f"carried: {carried.servers} servers carried {carried.vs_one_server:.2f} times the load of one, "
                f"not {least:g} times",
            ]

    @property
    def moves(self) -> int:
        """Moves that the balancer requested."""
        return self.report.movements.asked

    def more_facts(self) -> dict[str, Any]:
        """What the balancer did, and when."""
        balance = self.report.balance
        hot = {
            "detected_s": _rounded(balance.detected_s),
            "replicated_s": _rounded(balance.replicated_s),
            "replicated_on": list(balance.replicated_on),
            "relieved_s": _rounded(balance.relieved_s),
        }
        out = {
            "servers_before": self.options.servers,
            "joined_s": _rounded(balance.joined_s),
            "balanced_s": _rounded(balance.balanced_s),
        }
        return {
            "servers": balance.servers,
            **(hot if self.options.scenario is SurgeScenario.HOT_CHANNEL else out),
            **(self.carried.facts() if self.carried else {}),
            "channels_moved": balance.moved,
            "moved_twice": len(balance.moved_twice),
            "moved_twice_channels": list(balance.moved_twice),
            "decisions": balance.decisions,
            "load_ratio": {
                "highest": _rounded(balance.highest_ratio),
                "busiest_at_the_end": _rounded(balance.busiest_ratio),
                "mean_at_the_end": _rounded(balance.mean_ratio),
            },
            "capacity_bytes_per_s": round(self.options.surge().capacity_bytes_per_s),
            "server_cpu_share": _rounded(balance.server_cpu_share),
            **self.move_facts(),
        }


def _broken(options: BalancedOptions, balance: Balance) -> list[str]:
    """What the balancer failed to achieve."""
    if options.scenario is SurgeScenario.HOT_CHANNEL:
        return _late("the hot channel was replicated", balance.replicated_s, REPLICATED_S_MAX)
    found = _late("the load was balanced", balance.balanced_s, BALANCED_S_MAX)
    if balance.moved_twice:
        found.append(f"twice: {len(balance.moved_twice)} channels moved twice: {', '.join(balance.moved_twice[:10])}")
    return found


def _late(what: str, took_s: float | None, most_s: float) -> list[str]:
    if took_s is not None and took_s <= most_s:
        return []
    when = "never" if took_s is None else f"after {took_s:.1f} s"
    return [f"late: {what} {when}, not within {most_s:g} s"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
