"""The mover at work: follows requests, reports and entries in the coordinator, writes what the core decides.

Owns the mover's turns and its calls to the coordinator. It works while this process holds the keeper's lease, and every
write is fenced by it. Decides nothing: `shoal.plan.mover` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from shoal.coordination.interface import Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, ProtocolError
from shoal.leader.mirror import Mirror
from shoal.logs import get_log
from shoal.plan.entry import Phase
from shoal.plan.keys import (
    ENTRIES_PREFIX,
    MOVES_PREFIX,
    REPORTS_PREFIX,
    entry_channel,
    entry_key,
    move_channel,
    move_key,
    report_key,
)
from shoal.plan.mover import DropRequest, Mover, MoverView, PutEntry, Write
from shoal.plan.moving import Report, decode_report
from shoal.plan.ring import Ring

_GATHER_S: Final = 0.01
"""How long news may gather before a look."""
_log: Final = get_log(__name__)


class Leading(msgspec.Struct, frozen=True):
    """The right to write the plan, and the ring to go by. Every write is fenced by `fence`, which is the lease."""

    lease: Lease
    ring: Ring | None
    fence: Lease | None


class Moving:
    """Runs a mover against a coordinator. `leading` says by which right, or None while another process leads; each time
    in the lead begins with a new mover. `poll_s` is how often it looks without news."""

    def __init__(
        self,
        coordinator: Coordinator,
        make_mover: Callable[[], Mover],
        leading: Callable[[], Leading | None],
        poll_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._make_mover = make_mover
        self._leading = leading
        self._poll_s = poll_s
        self._clock = asyncio.get_running_loop().time
        self._mover: Mover | None = None
        self._token = 0
        self._trouble: str | None = None
        self._changed = asyncio.Event()
        self._entries = Mirror(coordinator, ENTRIES_PREFIX, _read_entry, self._changed)
        self._requests = Mirror(coordinator, MOVES_PREFIX, _read_request, self._changed)
        self._reports = Mirror(coordinator, REPORTS_PREFIX, _read_report, self._changed)

    async def run(self) -> None:
        """Moves channels until it is cancelled; trouble with the coordinator is reported and waited out."""
        mirrors = (self._entries, self._requests, self._reports)
        watches = [asyncio.create_task(mirror.follow(), name="mover-watch") for mirror in mirrors]
        try:
            while True:
                await self._wait(await self._turn())
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _turn(self) -> float:
        """One look; returns how long to wait for news before the next."""
        self._changed.clear()
        try:
            leading = self._leading()
            if leading is None:
                self._mover = None
                return self._poll_s
            return await self._look(leading)
        except CoordinatorError as error:
            self._mover = None
            self._complain(str(error))
            return self._poll_s
        except Exception:
            _log.exception("the mover failed; it tries again")
            self._mover = None
            return self._poll_s

    async def _look(self, leading: Leading) -> float:
        if self._mover is None or leading.lease.token != self._token:
            self._mover, self._token = self._make_mover(), leading.lease.token
        view = MoverView(leading.ring, self._entries.values, self._requests.values, self._reports.values)
        writes = self._mover.observe(view, self._clock())
        trouble = await self._write(writes, leading.fence) if writes else None
        self._complain(trouble)
        if trouble is not None:
            return self._poll_s
        if writes:
            return 0.0
        wake_s = self._mover.next_check_s
        return self._poll_s if wake_s is None else min(self._poll_s, wake_s)

    async def _write(self, writes: list[Write], fence: Lease | None) -> str | None:
        """Writes where nobody was faster; else what they wrote is decided about at the next look. Returns why some of
        it cannot be written, if so: the rest goes on."""
        outcomes = await self._coordinator.write_all([_key_write(write) for write in writes], fence=fence)
        refused: list[tuple[Write, CoordinatorError]] = []
        for write, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, CoordinatorError):
                refused.append((write, outcome))
            else:
                self._written(write, outcome)
        for write, error in refused:
            if isinstance(error, ConflictError):
                await self._mirror_of(write).refresh(_key(write))
        return next((str(error) for _, error in refused if not isinstance(error, ConflictError)), None)

    def _written(self, write: Write, version: int) -> None:
        match write:
            case PutEntry():
                self._entries.take(_key(write), Versioned(write.data, version))
                _log_entry(write)
            case DropRequest():
                self._requests.deleted(_key(write), write.expect)
                if write.reason:
                    _log.warning("a request to move a channel was dropped", channel=write.channel, why=write.reason)

    def _mirror_of(self, write: Write) -> Mirror[bytes, Versioned]:
        return self._entries if isinstance(write, PutEntry) else self._requests

    def _complain(self, trouble: str | None) -> None:
        """Says what is in the way, once."""
        if trouble is not None and trouble != self._trouble:
            _log.warning("channels do not move", why=trouble)
        self._trouble = trouble

    async def _wait(self, wait_s: float) -> None:
        """Until there is news, or it is time; news that come together are looked at together."""
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return
        await asyncio.sleep(_GATHER_S)


def _key(write: Write) -> str:
    return entry_key(write.channel) if isinstance(write, PutEntry) else move_key(write.channel)


def _key_write(write: Write) -> KeyWrite:
    return KeyWrite(_key(write), write.data if isinstance(write, PutEntry) else None, write.expect)


def _log_entry(write: PutEntry) -> None:
    entry = write.entry
    facts = {"channel": entry.channel, "servers": ",".join(entry.placement.servers), "revision": entry.newness}
    if write.given_up is not None:
        _log.warning("a move was given up", why=write.given_up, **facts)
    elif entry.phase in (Phase.PREPARE, Phase.END):
        _log.info("a move began" if entry.phase is Phase.PREPARE else "a move ended", **facts)
    else:
        _log.debug("a move goes on", phase=entry.phase.value, **facts)


def _read_entry(key: str, stored: Versioned) -> tuple[bytes, Versioned] | None:
    channel = entry_channel(key)
    return None if channel is None else (channel, stored)


def _read_request(key: str, stored: Versioned) -> tuple[bytes, Versioned] | None:
    channel = move_channel(key)
    return None if channel is None else (channel, stored)


def _read_report(key: str, stored: Versioned) -> tuple[str, Report] | None:
    """An agent's report; None, with a word about it, if it is garbage or another's."""
    try:
        report = decode_report(stored.value)
    except ProtocolError as error:
        _log.warning("an agent's report cannot be read", key=key, why=str(error))
        return None
    if report_key(report.server) != key:
        _log.warning("an agent's report lies under the name of another", key=key, server=report.server)
        return None
    return report.server, report
