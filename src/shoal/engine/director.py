"""The director: which processes run the operators of an instance, and how that changes while it runs.

Owns the configuration. Without I/O: it hears how the processes are (`heard`), and says what they are to do (`step`,
`orders`). It is in the process that holds the lease, the *head*, and begins again with every instance.

    idle --other numbers are wanted--> joining --all listen--> preparing --all have their filters--> draining --> idle
             (new processes listen)      (PREPARE is marked)       (SWITCH is marked; all before is delivered)

A process that is new and dies, or takes too long, before SWITCH is marked: the change is given up. A process of the
configuration in force that dies ends the instance: the next one begins with the processes that are left.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.engine.configuration import Configuration
from shoal.engine.links import Orders, Stage, Status, Step
from shoal.errors import ConnectError
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

READY_FIRST: Final = rule("ready_first", "The configuration is switched when all matchers have their filters.")

RETRY_S: Final = 2.0
"""How long after a change was given up another one is tried."""


class Wanted(msgspec.Struct, frozen=True):
    """How many operators an engine is to have, and which processes are to have none."""

    matchers: int = 1
    exits: int = 1
    without: tuple[str, ...] = ()
    access_points: int = 1
    by: str = ""
    """The request of a plan that wants it. Empty: an operator does, and the planner leaves the numbers alone."""


class Phase(enum.Enum):
    """Where a change of configuration is."""

    STARTING = "starting"
    IDLE = "idle"
    JOINING = "joining"
    PREPARING = "preparing"
    DRAINING = "draining"


class InstanceEndsError(ConnectError):
    """The instance cannot go on; the next one begins."""


@dataclass(slots=True)
class _Member:
    """What is known of a process."""

    status: Status
    heard_at: float


class Director:
    """The configuration of one instance, in the process `name`."""

    def __init__(self, name: str, instance: int, predecessor: int, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._name = name
        self.instance = instance
        self._predecessor = predecessor
        self._limits = limits
        self._rules = rules
        self._members: dict[str, _Member] = {}
        self.configuration = Configuration(0, (), (), ())
        self.following: Configuration | None = None
        self.phase = Phase.STARTING
        self.stage = Stage.JOIN
        self.lease_until = 0.0
        """The time until which the instance holds its lease."""
        self._since = 0.0
        self._not_before = 0.0
        self.wanted = Wanted()
        self.changes = 0
        """Changes of configuration that were carried out."""
        self.given_up: dict[str, int] = {}
        """Changes that were given up, by reason."""
        self.last_change_s = 0.0
        """How long the last change took."""

    # Members

    def heard(self, status: Status, now: float) -> None:
        """A process has shown itself."""
        self._members[status.name] = _Member(status, now)

    def spares(self, now: float) -> list[str]:
        """All processes that live, by name."""
        silent_s = self._limits.engine_member_silent_s
        return sorted(name for name, one in self._members.items() if now - one.heard_at < silent_s)

    def statuses(self, now: float) -> list[Status]:
        """The processes that live."""
        return [self._members[name].status for name in self.spares(now)]

    # The configuration

    @property
    def has_begun(self) -> bool:
        """Whether there is a configuration."""
        return self.configuration.number > 0

    def begin(self, now: float) -> Configuration:
        """The first configuration: what is wanted, with the processes that are there."""
        self._since = now
        self.configuration = self._wanted_configuration(self.configuration, now)
        return self.configuration

    def _wanted_configuration(self, present: Configuration, now: float) -> Configuration:
        wanted = self.wanted
        return Configuration(
            present.number + 1,
            self._layer(present.access_points, wanted.access_points, now),
            self._layer(present.matchers, wanted.matchers, now),
            self._layer(present.exits, wanted.exits, now),
        )

    def _layer(self, present: tuple[str, ...], count: int, now: float) -> tuple[str, ...]:
        """The processes of a layer: those that it has, and others if it needs more."""
        others = [name for name in self.spares(now) if name != self._name]
        living = [name for name in (self._name, *others) if name not in self.wanted.without] or [self._name]
        chosen = [name for name in present if name in living]
        chosen += [name for name in living if name not in chosen]
        return tuple(chosen[: max(count, 1)])

    def orders(self) -> Orders:
        """What all processes are told."""
        step = {Phase.PREPARING: Step.PREPARE, Phase.DRAINING: Step.SWITCH}.get(self.phase)
        return Orders(
            *(self.instance, self._name, self._predecessor, self.configuration, self.following, step, self.stage),
            {name: (one.status.stamp, self.lease_until - one.heard_at) for name, one in self._members.items()},
        )

    def started(self, now: float) -> bool:
        """Whether all processes of the first configuration listen. Raises InstanceEndsError if one does not in time."""
        missing = [name for name in self.configuration.members if not self._has_joined(name, 1)]
        if not missing:
            self.stage = Stage.ROLL
        elif now - self._since >= self._limits.engine_join_s_max:
            raise InstanceEndsError(f"{', '.join(sorted(missing))} did not join in time")
        return not missing

    def roll_is_over(self) -> bool:
        """Whether all access points may serve."""
        return all(self._status(name).roll_over for name in self.configuration.access_points)

    def serve(self) -> None:
        """It is written down that this instance serves: access points serve from now on."""
        self.stage = Stage.SERVE
        self.phase = Phase.IDLE

    def step(self, now: float) -> None:
        """Looks at the processes, and does the next step of a change. Raises InstanceEndsError if the instance must
        end."""
        self._forget_silent(now)
        for name in sorted(self.configuration.members):
            why = self._trouble(name, now)
            if why:
                raise InstanceEndsError(f"{name} {why}")
        following = self.following
        if self.phase is Phase.IDLE:
            self._look_for_change(now)
        elif following is not None and self.phase is Phase.DRAINING:
            for name in sorted(following.members):
                why = self._trouble(name, now)
                if why:
                    raise InstanceEndsError(f"{name} {why}")
            if self._is_drained(following):
                self._finish(now)
        elif following is not None:
            why = self._trouble_of_change(following, now)
            if why:
                self._give_up(why, now)
            elif self.phase is Phase.JOINING:
                self._prepare_if_joined(following)
            else:
                self._switch_if_ready(following)

    def _forget_silent(self, now: float) -> None:
        """Forgets processes that are gone and have no operator: each incarnation has a name of its own."""
        following = frozenset() if self.following is None else self.following.members
        kept = self.configuration.members | following | {*self.spares(now)}
        for name in self._members.keys() - kept:
            del self._members[name]

    def _look_for_change(self, now: float) -> None:
        present = self.configuration
        following = self._wanted_configuration(present, now)
        layers = (following.access_points, following.matchers, following.exits)
        if now >= self._not_before and layers != (present.access_points, present.matchers, present.exits):
            self.following = following
            self.phase = Phase.JOINING
            self._since = now

    def _prepare_if_joined(self, following: Configuration) -> None:
        members = following.members | self.configuration.members
        if all(self._has_joined(name, following.number) for name in members):
            self.phase = Phase.PREPARING

    def _switch_if_ready(self, following: Configuration) -> None:
        ready = all(self._ready(name) >= following.number for name in following.matchers)
        if self._is_prepared(following) and (ready or READY_FIRST not in self._rules):
            self.phase = Phase.DRAINING

    def _is_prepared(self, following: Configuration) -> bool:
        """Whether all access points have marked PREPARE."""
        return all(self._status(name).prepared >= following.number for name in self.configuration.access_points)

    def _is_drained(self, following: Configuration) -> bool:
        """Whether everything before SWITCH is delivered, and all processes that stay have heard SWITCH and have the
        conversations of their lanes: after this they do not hear access points that leave."""
        awaited = following.members.union(self.configuration.exits)
        return all(self._status(name).drained >= following.number for name in awaited)

    def _finish(self, now: float) -> None:
        assert self.following is not None
        self.configuration, self.following = self.following, None
        self.phase = Phase.IDLE
        self.changes += 1
        self.last_change_s = now - self._since

    def _give_up(self, why: str, now: float) -> None:
        following = self.following
        assert following is not None
        if self.phase is Phase.PREPARING and not self._is_prepared(following):
            return  # access points that have marked PREPARE must all mark that it is given up
        self.following = None
        # The number is used up: what was sent for it must not be taken for the next change.
        self.configuration = msgspec.structs.replace(self.configuration, number=following.number)
        self.phase = Phase.IDLE
        self._not_before = now + RETRY_S
        self.given_up[why] = self.given_up.get(why, 0) + 1

    def _trouble_of_change(self, following: Configuration, now: float) -> str:
        """Why the change cannot go on."""
        for name in sorted(following.members - self.configuration.members):
            why = self._trouble(name, now)
            if why:
                return why
        if now - self._since >= self._limits.engine_change_s_max:
            return "took too long"
        return ""

    def _status(self, name: str) -> Status:
        """What a process has said in this instance."""
        member = self._members.get(name)
        return Status(name) if member is None or member.status.instance != self.instance else member.status

    def _ready(self, name: str) -> int:
        return self._status(name).ready

    def _has_joined(self, name: str, number: int) -> bool:
        return self._status(name).joined >= number

    def _trouble(self, name: str, now: float) -> str:
        """Why a process cannot be relied on."""
        member = self._members.get(name)
        if member is None or now - member.heard_at >= self._limits.engine_member_silent_s:
            return "is silent"
        if member.status.instance == self.instance and member.status.failed:
            return f"failed: {member.status.failed}"
        return "" if member.status.instance <= self.instance else "serves another instance"
