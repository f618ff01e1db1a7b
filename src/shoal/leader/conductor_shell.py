"""The conductor's shell: watches requests, reports and entries of one kind of unit, and writes the core's decisions.

Owns the loop and the calls to the coordinator, for every migration protocol. It works while this process holds the
keeper's lease, and every write is fenced by it. Decides nothing: `shoal.plan.conductor` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, cast

import msgspec

from shoal.coordination.interface import Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, ProtocolError
from shoal.leader.host_group import HostGroup
from shoal.leader.mirror import Mirror, mirror_marks
from shoal.logs import get_log
from shoal.plan import keys
from shoal.plan.conductor import Conductor, ConductorView, DropEntry, DropRequest, E, H, P, PutEntry, Q, Steps
from shoal.plan.refusal import Refusal, add_refusals
from shoal.plan.ring import Ring
from shoal.plan.signature import Signer

_GATHER_S: Final = 0.01
"""How long changes are collected before the next round."""
_log: Final = get_log(__name__)
_Write: TypeAlias = PutEntry[E] | DropEntry | DropRequest


class Leadership(msgspec.Struct, frozen=True):
    """The right to write the plan, and the current ring. Every write is fenced by `fence`, which is the lease."""

    lease: Lease
    ring: Ring | None
    fence: Lease | None


class ConductorShell(Generic[E, H, P, Q]):
    """Moves the units of one kind by its table of steps. `leading` returns the right to do so, None while another
    process leads; each term as leader starts with a new conductor. The hosts of units are the live members of `group`,
    or the ring if it is empty; `poll_s` is the interval of rounds without changes."""

    def __init__(
        self,
        coordinator: Coordinator,
        steps: Steps[E, H, P, Q],
        signer: Signer,
        leading: Callable[[], Leadership | None],
        group: str,
        poll_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._steps = steps
        self._signer = signer
        self._leading = leading
        self._poll_s = poll_s
        self._clock = asyncio.get_running_loop().time
        self._conductor: Conductor[E, H, P, Q] | None = None
        self._token = 0
        self._trouble: str | None = None
        self._changed = asyncio.Event()
        kind = steps.kind
        self._entries = Mirror(coordinator, keys.entries_prefix(kind), self._read_entry, self._changed)
        self._requests = Mirror(coordinator, keys.moves_prefix(kind), self._read_request, self._changed)
        self._reports = Mirror(coordinator, keys.reports_prefix(kind), self._read_report, self._changed)
        self._marks = mirror_marks(coordinator, self._changed)
        self._members = HostGroup(coordinator, group, self._changed) if group else None
        self._mirrors: list[Mirror[Any, Any] | HostGroup] = [self._entries, self._requests, self._reports, self._marks]
        self._mirrors += [self._members] if self._members else []

    async def run(self) -> None:
        """Moves units until it is cancelled; logs errors of the coordinator and retries."""
        watches = [asyncio.create_task(mirror.follow(), name="conductor-watch") for mirror in self._mirrors]
        try:
            while True:
                await self._wait(await self._turn())
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _turn(self) -> float:
        """One round; returns how long to wait for a change before the next."""
        self._changed.clear()
        try:
            leading = self._leading()
            if leading is None:
                self._conductor = None
                return self._poll_s
            return await self._look(leading)
        except CoordinatorError as error:
            self._conductor = None
            self._complain(str(error))
            return self._poll_s
        except Exception:
            _log.exception("conductor failed, retrying", kind=self._steps.kind)
            self._conductor = None
            return self._poll_s

    async def _look(self, leading: Leadership) -> float:
        if self._conductor is None or leading.lease.token != self._token:
            for mirror in self._mirrors:
                await mirror.load()
            self._conductor, self._token = Conductor(self._steps, self._signer), leading.lease.token
        view = ConductorView(
            cast("H | None", leading.ring if self._members is None else self._members.hosts),
            self._entries.values,
            self._requests.values,
            self._reports.values,
            {host for host, mark in self._marks.values.items() if mark not in keys.TAKES},
        )
        writes = self._conductor.observe(view, self._clock())
        trouble = await self._write(writes, leading.fence) if writes else None
        self._complain(trouble)
        if trouble is not None:
            return self._poll_s
        if writes:
            return 0.0
        wake_s = self._conductor.next_check_s
        return self._poll_s if wake_s is None else min(self._poll_s, wake_s)

    async def _write(self, writes: Sequence[_Write[E]], fence: Lease | None) -> str | None:
        """Writes the keys that have not changed since; the others are decided again in the next round. Returns why a
        write failed, None if only changed keys were refused."""
        refusals = [
            Refusal(write.unit, write.expect, write.reason)
            for write in writes
            if isinstance(write, DropRequest) and write.reason
        ]
        if refusals:  # first: a command that waits for the end of its request reads the reason then
            key = keys.refusals_key(self._steps.kind)
            before = await self._coordinator.get(key)
            data = add_refusals(self._steps.kind, before.value if before else None, refusals)
            await self._coordinator.put(key, data, fence=fence)
        outcomes = await self._coordinator.write_all([self._key_write(write) for write in writes], fence=fence)
        refused: list[tuple[_Write[E], CoordinatorError]] = []
        for write, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, CoordinatorError):
                refused.append((write, outcome))
            else:
                self._written(write, outcome)
        for write, error in refused:
            if isinstance(error, ConflictError):
                mirror = self._requests if isinstance(write, DropRequest) else self._entries
                await mirror.refresh(self._key(write))
        return next((str(error) for _, error in refused if not isinstance(error, ConflictError)), None)

    def _written(self, write: _Write[E], version: int) -> None:
        if isinstance(write, PutEntry):
            self._entries.take(self._key(write), Versioned(write.data, version))
            self._log_entry(write)
            return
        if isinstance(write, DropEntry):
            self._entries.deleted(self._key(write), write.expect)
            _log.info("plan entry deleted", kind=self._steps.kind, unit=write.unit)
            return
        self._requests.deleted(self._key(write), write.expect)
        if write.reason:
            _log.warning("move request dropped", kind=self._steps.kind, unit=write.unit, why=write.reason)

    def _log_entry(self, write: PutEntry[E]) -> None:
        facts = self._steps.facts(write.entry)
        if write.given_up is not None:
            _log.warning("move given up", why=write.given_up, **facts)
        elif not write.entry.is_moving:
            _log.info("move ended", **facts)
        elif write.begins:
            _log.info("move started", **facts)
        else:
            _log.debug("move continued", **facts)

    def _complain(self, trouble: str | None) -> None:
        """Logs an error that prevents moves, once."""
        if trouble is not None and trouble != self._trouble:
            _log.warning("moves delayed", kind=self._steps.kind, why=trouble)
        self._trouble = trouble

    async def _wait(self, wait_s: float) -> None:
        """Waits for a change or `wait_s`, then a moment more, so that one round handles several changes."""
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return
        await asyncio.sleep(_GATHER_S)

    def _key(self, write: _Write[E]) -> str:
        key = keys.move_key if isinstance(write, DropRequest) else keys.entry_key
        return key(write.unit, self._steps.kind)

    def _key_write(self, write: _Write[E]) -> KeyWrite:
        return KeyWrite(self._key(write), write.data if isinstance(write, PutEntry) else None, write.expect)

    def _read_entry(self, key: str, stored: Versioned) -> tuple[bytes, Versioned] | None:
        unit = keys.entry_unit(key, self._steps.kind)
        return None if unit is None else (unit, stored)

    def _read_request(self, key: str, stored: Versioned) -> tuple[bytes, Versioned] | None:
        unit = keys.move_unit(key, self._steps.kind)
        return None if unit is None else (unit, stored)

    def _read_report(self, key: str, stored: Versioned) -> tuple[str, P] | None:
        """An agent's report; None, with a warning, if it cannot be read or is stored under another host's key."""
        try:
            report = self._steps.read_report(stored.value)
        except ProtocolError as error:
            _log.warning("unreadable report of an agent ignored", key=key, why=str(error))
            return None
        if keys.report_key(report.host, self._steps.kind) != key:
            _log.warning("report under the key of another host ignored", key=key, host=report.host)
            return None
        return report.host, report
