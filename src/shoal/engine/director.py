"""The director: which processes run the matchers and exit points of an instance, and how that changes while it runs.

Owns the configuration. Without I/O: it hears how the processes are (`heard`), and says what to do next (`step`). It is
in the process with the access point, and begins again with every instance.

    idle --another number is wanted--> joining --all listen--> preparing --all have their filters--> draining --> idle
             (new processes listen)      (PREPARE is marked)       (SWITCH is marked; what is older is delivered)

A process that is new and dies, or takes too long, before SWITCH is marked: the change is given up (GIVE_UP). A process
of the configuration in force that dies ends the instance: the next one begins with the processes that are left.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.engine.configuration import Configuration
from shoal.engine.links import Orders, Status, Step
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

    def __init__(self, name: str, instance: int, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._name = name
        self._instance = instance
        self._limits = limits
        self._rules = rules
        self._members: dict[str, _Member] = {}
        self.configuration = Configuration(1, (name,), (name,))
        self.following: Configuration | None = None
        self.phase = Phase.STARTING
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
        if status.name != self._name:
            self._members[status.name] = _Member(status, now)

    def spares(self, now: float) -> list[str]:
        """Other processes that live, by name."""
        silent_s = self._limits.engine_member_silent_s
        return sorted(name for name, one in self._members.items() if now - one.heard_at < silent_s)

    def statuses(self, now: float) -> list[Status]:
        """The other processes that live."""
        return [self._members[name].status for name in self.spares(now)]

    # The configuration

    def begin(self, now: float) -> Configuration:
        """The first configuration: what is wanted, with the processes that are there."""
        self._since = now
        matchers = self._layer((), self.wanted.matchers, now)
        exits = self._layer((), self.wanted.exits, now)
        self.configuration = Configuration(1, matchers, exits)
        return self.configuration

    def _layer(self, present: tuple[str, ...], count: int, now: float) -> tuple[str, ...]:
        """The processes of a layer: those that it has, and others if it needs more."""
        living = [name for name in (self._name, *self.spares(now)) if name not in self.wanted.without] or [self._name]
        chosen = [name for name in present if name in living]
        chosen += [name for name in living if name not in chosen]
        return tuple(chosen[: max(count, 1)])

    def orders(self) -> Orders:
        """What all processes are told."""
        return Orders(self._instance, self._name, self.configuration, self.following)

    def step(self, local_ready: int, drained: bool, now: float) -> tuple[Step, Configuration] | None:
        """Looks at the processes, and returns a step to mark in the fan. `local_ready` is the newest configuration
        whose filters the matcher in this process has; `drained` says whether all that is older than the last mark is
        delivered. Raises InstanceEndsError if the instance cannot go on."""
        for name in sorted(self.configuration.members - {self._name}):
            why = self._trouble(name, now)
            if why:
                raise InstanceEndsError(f"{name} {why}")
        if self.phase is Phase.IDLE:
            self._look_for_change(now)
            return None
        following = self.following
        assert following is not None, "a change is under way"
        if self.phase is Phase.DRAINING:
            if drained:
                self._finish(now)
            return None
        why = self._trouble_of_change(following, now)
        if why:
            return self._give_up(why, now)
        if self.phase is Phase.JOINING:
            return self._prepare_if_joined(following)
        return self._switch_if_ready(following, local_ready)

    def started(self, now: float) -> bool:
        """Whether all processes of the first configuration listen. Raises InstanceEndsError if one does not in time."""
        missing = [name for name in self.configuration.members if name != self._name and not self._has_joined(name, 1)]
        if not missing:
            self.phase = Phase.IDLE
        elif now - self._since >= self._limits.engine_join_s_max:
            raise InstanceEndsError(f"{', '.join(sorted(missing))} did not join in time")
        return not missing

    def _look_for_change(self, now: float) -> None:
        present = self.configuration
        if now < self._not_before:
            return
        if self._layer(present.exits, self.wanted.exits, now) != present.exits:
            raise InstanceEndsError("the exit points change")
        matchers = self._layer(present.matchers, self.wanted.matchers, now)
        if matchers != present.matchers:
            self.following = Configuration(present.number + 1, matchers, present.exits)
            self.phase = Phase.JOINING
            self._since = now

    def _prepare_if_joined(self, following: Configuration) -> tuple[Step, Configuration] | None:
        if not all(name == self._name or self._has_joined(name, following.number) for name in following.members):
            return None
        self.phase = Phase.PREPARING
        return Step.PREPARE, following

    def _switch_if_ready(self, following: Configuration, local_ready: int) -> tuple[Step, Configuration] | None:
        for name in following.matchers:
            status = Status(name, self._instance, ready=local_ready) if name == self._name else self._status(name)
            if (status.instance != self._instance or status.ready < following.number) and READY_FIRST in self._rules:
                return None
        self.phase = Phase.DRAINING
        return Step.SWITCH, following

    def _finish(self, now: float) -> None:
        assert self.following is not None
        self.configuration, self.following = self.following, None
        self.phase = Phase.IDLE
        self.changes += 1
        self.last_change_s = now - self._since

    def _give_up(self, why: str, now: float) -> tuple[Step, Configuration] | None:
        marked = self.phase is Phase.PREPARING
        following, self.following = self.following, None
        assert following is not None
        # The number is used up: what was sent for it must not be taken for the next change.
        self.configuration = msgspec.structs.replace(self.configuration, number=following.number)
        self.phase = Phase.IDLE
        self._not_before = now + RETRY_S
        self.given_up[why] = self.given_up.get(why, 0) + 1
        return (Step.GIVE_UP, self.configuration) if marked else None

    def _trouble_of_change(self, following: Configuration, now: float) -> str:
        """Why the change cannot go on."""
        for name in sorted(following.members - self.configuration.members - {self._name}):
            why = self._trouble(name, now)
            if why:
                return why
        if now - self._since >= self._limits.engine_change_s_max:
            return "took too long"
        return ""

    def _status(self, name: str) -> Status:
        member = self._members.get(name)
        return Status(name) if member is None else member.status

    def _has_joined(self, name: str, number: int) -> bool:
        status = self._status(name)
        return status.instance == self._instance and status.joined >= number

    def _trouble(self, name: str, now: float) -> str:
        """Why a process cannot be relied on."""
        member = self._members.get(name)
        if member is None or now - member.heard_at >= self._limits.engine_member_silent_s:
            return "is silent"
        if member.status.instance == self._instance and member.status.failed:
            return f"failed: {member.status.failed}"
        return "" if member.status.instance <= self._instance else "serves another instance"
