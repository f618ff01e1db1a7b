"""A supervised process: started, watched, and restarted when it exits unexpectedly.

Owns one child process and the delays between its restarts. Its creator provides the command and the readiness check.

    starting --ready--> running --exits--> waiting --delay over, not held--> starting
                        running <--pause, resume--> paused            any --stop--> stopped
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.process import ChildProcess, exit_text, log_tail
from shoal.errors import ClusterError, NotRunningError
from shoal.logs import get_log

_READY_POLL_S: Final = 0.01
_log: Final = get_log(__name__)


class Restarts:
    """Computes the delay before the next start: longer with each crash in a row, short again after a stable run."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.in_row = 0

    @property
    def crashing(self) -> bool:
        """Whether the child crashes so often that it needs attention."""
        return self.in_row >= self._timing.crashing_after

    def crashed(self, ran_s: float) -> float:
        """Count a crash after a run of `ran_s`; return the delay in seconds."""
        self.in_row = 1 if ran_s >= self._timing.stable_after_s else self.in_row + 1
        pause_s = self._timing.restart_pause_s_min * 2.0 ** min(self.in_row - 1, 30)
        return min(pause_s, self._timing.restart_pause_s_max)


class ChildStatus(msgspec.Struct, frozen=True):
    """State and history of a child."""

    name: str
    kind: str
    state: str
    pid: int | None
    uptime_s: float
    restarts: int
    crashing: bool
    held: bool
    last_exit: str | None


class Child:
    """One supervised process. `ready` checks whether it answers; `changed` is called after every start and exit."""

    def __init__(
        self,
        name: str,
        kind: str,
        log: Path,
        timing: Timing,
        launch: Callable[[], ChildProcess],
        ready: Callable[[], Awaitable[bool]],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.kind = kind
        self.log = log
        self.process: ChildProcess | None = None
        self._timing = timing
        self._launch_process = launch
        self._ready = ready
        self._changed = changed
        self._state = "stopped"
        self._started_at = 0.0
        self._restarts = 0
        self._policy = Restarts(timing)
        self._last_exit: str | None = None
        self._released = asyncio.Event()
        self._released.set()
        self._start_now = asyncio.Event()
        self._running = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process for the first time and return when it is ready; raises ClusterError with its log if it
        fails.
        """
        await self._launch()
        self._task = asyncio.create_task(self._keep_running(), name=f"supervise {self.name}")

    async def stop(self) -> None:
        """Stop the process permanently."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.process is not None:
            await self.process.stop(self._timing.stop_grace_s)
        self._set("stopped")

    def stop_now(self) -> None:
        """Stop the process permanently with SIGKILL; needs no event loop."""
        if self._task is not None:
            self._task.cancel()
        if self.process is not None:
            self.process.kill_now()

    async def kill(self) -> None:
        """Kill the process (SIGKILL) and return when it is dead; it is restarted unless it is held."""
        process = self._alive()
        process.send(signal.SIGKILL)
        await process.wait()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP)."""
        self._alive().send(signal.SIGSTOP)
        self._set("paused")

    def resume(self) -> None:
        """Continue the process after `pause`."""
        self._alive().send(signal.SIGCONT)
        self._set("running")

    def hold(self) -> None:
        """Do not restart the process when it exits, until `release`."""
        self._released.clear()

    def release(self) -> None:
        """End `hold`; a process that is down is started immediately."""
        self._released.set()
        if self.process is None or self.process.exit_code is not None:
            self._start_now.set()

    async def restart(self) -> None:
        """Kill the process if it runs, start it without a delay and return when it is ready."""
        if self.process is not None and self.process.exit_code is None:
            await self.kill()
        self._running.clear()
        self._released.set()
        self._start_now.set()
        await asyncio.wait_for(self._running.wait(), self._timing.start_timeout_s)

    def status(self) -> ChildStatus:
        """Return the current status."""
        process = self.process
        alive = process is not None and process.exit_code is None
        return ChildStatus(
            name=self.name,
            kind=self.kind,
            state=self._state,
            pid=process.pid if process is not None and alive else None,
            uptime_s=time.monotonic() - self._started_at if alive else 0.0,
            restarts=self._restarts,
            crashing=self._policy.crashing and not (self._state == "running" and self._stable()),
            held=not self._released.is_set(),
            last_exit=self._last_exit,
        )

    def _stable(self) -> bool:
        return time.monotonic() - self._started_at >= self._timing.stable_after_s

    def _alive(self) -> ChildProcess:
        if self.process is None or self.process.exit_code is not None:
            raise NotRunningError(f"{self.name} is not running", do="wait until it has been restarted")
        return self.process

    def _set(self, state: str) -> None:
        self._state = state
        if state == "running":
            self._running.set()
        self._changed()

    async def _launch(self) -> None:
        """Start the process and wait until it is ready; raises ClusterError if it exits or takes too long."""
        log_bytes = self.log.stat().st_size if self.log.exists() else 0
        self.process = process = self._launch_process()
        self._started_at = time.monotonic()
        self._set("starting")
        while not await self._ready():
            if (code := process.exit_code) is not None:
                raise ClusterError(
                    f"{self.name} exited during its start ({exit_text(code)})", do=self._see_log(log_bytes)
                )
            if time.monotonic() - self._started_at > self._timing.start_timeout_s:
                process.kill_now()
                raise ClusterError(
                    f"{self.name} was not ready after {self._timing.start_timeout_s:g} s",
                    do=self._see_log(log_bytes),
                )
            await asyncio.sleep(_READY_POLL_S)
        self._set("running")

    def _see_log(self, from_byte: int) -> str:
        """Return the end of the process's log as advice for an error. The log file may be gone later."""
        return f"see the end of its log\n{log_tail(self.log, from_byte=from_byte)}"

    async def _keep_running(self) -> None:
        """Restart the process whenever it exits."""
        while True:
            assert self.process is not None
            self._note_end(exit_text(await self.process.wait()))
            while True:
                await self._wait_before_restart(self._policy.crashed(time.monotonic() - self._started_at))
                try:
                    await self._launch()
                    break
                except (ClusterError, OSError) as error:
                    self._note_end(str(error))
            self._restarts += 1
            _log.info("process restarted", name=self.name, pid=self.process.pid, restarts=self._restarts)

    def _note_end(self, how: str) -> None:
        self._last_exit = how
        self._running.clear()
        self._set("waiting")
        report = _log.error if self._policy.crashing else _log.warning
        report("process exited unexpectedly", name=self.name, how=how, crashes_in_row=self._policy.in_row + 1)

    async def _wait_before_restart(self, pause_s: float) -> None:
        """Wait for the delay, unless a start is requested earlier, and while the child is held."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._start_now.wait(), pause_s)
        await self._released.wait()
        self._start_now.clear()
