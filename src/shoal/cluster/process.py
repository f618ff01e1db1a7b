"""Operating-system processes: starting them tied to their parent, recognising them later, ending them for
certain.

Owns everything that signals a process. A process is named by its pid *and* its start time, so that a pid that
the system has given to somebody else meanwhile is never signalled.
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
    """A process that cannot be mistaken for another: its pid and when it started, in clock ticks
    since boot."""

    pid: int
    start_ticks: int


class Process:
    """A child of this process that dies with it, by SIGKILL if need be."""

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
        """Signals it, unless it has ended (an ended child stays ours until it is reaped, so its pid
        is safe)."""
        self._popen.send_signal(signum)

    async def wait(self) -> int:
        """Waits for its end without a thread and without a SIGCHLD handler, in any event loop."""
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
        """Ends it: SIGTERM, and SIGKILL when it has not gone after `grace_s`. Wakes it first if it
        is paused."""
        if self.exit_code is None:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s)
        self.kill_now()

    def kill_now(self) -> None:
        """Ends it by SIGKILL and reaps it; needs no event loop."""
        if self.exit_code is None:
            self.send(signal.SIGKILL)
            self._popen.wait()


def start(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Process:
    """Starts a child that is killed when this process ends; its output goes to the end of `log`."""
    parent = os.getpid()
    with open(log, "ab", opener=_private) as output:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )
    return Process(popen)


def start_detached(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one, in a session of its own."""
    with open(log, "ab", opener=_private) as output:
        return subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def start_ticks(pid: int) -> int | None:
    """When a process started; None if there is none with this pid, or only the remains of one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def is_running(process: ProcessId) -> bool:
    """Whether exactly this process runs."""
    return start_ticks(process.pid) == process.start_ticks


def kill_stranger(process: ProcessId, grace_s: float) -> bool:
    """Ends a process that may not be our child and waits for its end; False if it was not there any more.

    The pidfd is opened before the identity is checked, so the signal cannot reach a later process with the
    same pid.
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
    """Polls until the condition holds; says whether it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def exit_text(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def log_tail(log: Path, *, from_byte: int = 0) -> str:
    """The last lines of a log file, for an error message; empty if there are none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(from_byte, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read."""
    return os.open(path, flags, 0o600)


def _die_with(parent: int) -> None:
    """In the child, before exec: SIGKILL when the parent ends, and also if it has ended already."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(127)
