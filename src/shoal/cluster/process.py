"""Operating-system processes: starts them tied to their parent, identifies them later, and stops them reliably.

Owns all signals to processes. A process is identified by its pid *and* its start time, so that a reused pid is never
signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)

LOG_TAIL_LINES: Final = 12
LOG_TAIL_BYTES: Final = 8192
POLL_S: Final = 0.01


class ProcessId(msgspec.Struct, frozen=True):
    """The identity of a process: its pid and its start time in clock ticks since boot."""

    pid: int
    start_ticks: int


class ChildProcess:
    """A child of this process that dies with it, by SIGKILL if necessary."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.id = ProcessId(popen.pid, start_ticks(popen.pid) or 0)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; else its exit status, negative for a signal. Reaps it as a side effect."""
        return self._popen.poll()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has exited (an unreaped child keeps its pid, so the pid is safe)."""
        self._popen.send_signal(signum)

    async def wait(self) -> int:
        """Wait for its exit without a thread and without a SIGCHLD handler, in any event loop."""
        if (code := self._popen.poll()) is not None:
            return code
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._popen.wait()

    async def stop(self, grace_s: float) -> None:
        """Stop it: SIGTERM, then SIGKILL after `grace_s`. Resumes it first if it is paused."""
        if self.exit_code is None:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s)
                self._kill_rest()
        self.kill_now()

    def kill_now(self) -> None:
        """Kill it with SIGKILL and reap it; needs no event loop."""
        if self.exit_code is None:
            self.send(signal.SIGKILL)
            self._popen.wait()
            self._kill_rest()

    def _kill_rest(self) -> None:
        """Kill the processes that it has started, such as Spark's Java. Call when it has just ended: later its pid may
        belong to another process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Start a child that is killed when this process exits; its output is appended to `log`."""
    parent = os.getpid()
    with open(log, "ab", opener=_private) as output:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
            preexec_fn=lambda: _kill_with_parent(parent),
        )
    return ChildProcess(popen)


def start_detached(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, in its own session."""
    with open(log, "ab", opener=_private) as output:
        return subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process; None if there is none with this pid, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def is_running(process: ProcessId) -> bool:
    """Return whether exactly this process is running."""
    return start_ticks(process.pid) == process.start_ticks


def kill_process(process: ProcessId, grace_s: float) -> bool:
    """Stop a process that may not be our child and wait for its exit; return False if it was already gone.

    The pidfd is opened before the identity is checked, so the signal cannot reach a later process with the same pid.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_running(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
                signal.pidfd_send_signal(descriptor, signum)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                if wait_until(lambda: not is_running(process), wait_s):
                    break
        return True
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds; return whether it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def exit_text(code: int) -> str:
    """Describe an exit status."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def log_tail(log: Path, *, from_byte: int = 0) -> str:
    """Return the last lines of a log file, for an error message; empty if there are none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(from_byte, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(path, flags, 0o600)


def _kill_with_parent(parent: int) -> None:
    """In the child, before exec: request SIGKILL when the parent exits, and exit if it already has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(127)
