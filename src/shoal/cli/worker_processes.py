"""Several processes of `shoal worker`: starts them, passes signals on, starts one again that crashed.

Owns the processes. Each is `shoal worker` with one process, and sends its summary through a pipe, because standard
output belongs to the application. The processes have process groups of their own: Ctrl-C reaches this one only, and is
passed on once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, Final

from shoal.cli.output import note
from shoal.cli.worker import OUTCOMES

RESTART_S_MIN: Final = 0.5
RESTART_S_MAX: Final = 30.0
"""Pause before a process that crashed is started again. It doubles with each crash."""
HEALTHY_S: Final = 60.0
"""A process that ran this long has started well: the pause is reset."""
READ_BYTES: Final = 65536
KILL_S: Final = 15.0
"""How long after the grace period a process that has not ended is killed."""


def run_processes(args: argparse.Namespace) -> dict[str, Any] | None:
    """Run until a signal. Return the facts of all processes together; None if they could not start."""
    return asyncio.run(_Processes(args).run())


class _Processes:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._failed = False
        self._summaries: list[dict[str, Any]] = []
        self._restarts = 0

    async def run(self) -> dict[str, Any] | None:
        started_at = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        slots = [asyncio.create_task(self._keep(slot)) for slot in range(1, self._args.processes + 1)]
        await self._stopping.wait()
        _, late = await asyncio.wait(slots, timeout=self._args.grace + KILL_S)
        if late:
            note("processes that did not end are killed")
            for process in self._running.values():
                _end(process, signal.SIGKILL)
            await asyncio.wait(late)
        return None if self._failed else self._facts(time.monotonic() - started_at)

    def _signalled(self) -> None:
        """Pass a signal on: the first one ends processes gracefully, the second one at once."""
        self._stopping.set()
        for process in self._running.values():
            _end(process, signal.SIGTERM)

    async def _keep(self, slot: int) -> None:
        """Keep one process running."""
        pause_s = RESTART_S_MIN
        first = True
        while not self._stopping.is_set():
            started_at = time.monotonic()
            status = await self._run_one(slot)
            if self._stopping.is_set():
                return
            healthy = time.monotonic() - started_at >= HEALTHY_S
            if first and not healthy and status in (1, 2):  # a reported error, which another start does not change
                self._failed = True
                self._signalled()
                return
            first = False
            if healthy:
                pause_s = RESTART_S_MIN
            note(f"process {slot} ended with status {status} and starts again in {pause_s:g} s")
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                self._restarts += 1
                pause_s = min(2 * pause_s, RESTART_S_MAX)

    async def _run_one(self, slot: int) -> int:
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(writing), pass_fds=(writing,), process_group=0
            )
        finally:
            os.close(writing)
        self._running[slot] = process
        if self._stopping.is_set():  # the signal came while it started
            _end(process, signal.SIGTERM)
        summary = _Summary(reading)
        try:
            status = await process.wait()
        finally:
            text = summary.end()
        del self._running[slot]
        with contextlib.suppress(ValueError):  # it was killed while it wrote
            self._summaries.append(json.loads(text))
        return status

    def _command(self, summary_fd: int) -> list[str]:
        args = self._args
        words = [sys.executable, "-m", "shoal.cli", "worker", args.target]
        words += ["--grace", str(args.grace), "--summary-fd", str(summary_fd), "--parent", str(os.getpid())]
        for flag in ("queues", "concurrency", "config", "state_dir", "log_level"):
            value = getattr(args, flag, None)
            if value is not None:
                words += [f"--{flag.replace('_', '-')}", str(value)]
        return words

    def _facts(self, seconds: float) -> dict[str, Any]:
        queues: dict[str, dict[str, int]] = {}
        for one in self._summaries:
            for name, counts in one["queues"].items():
                known = queues.setdefault(name, dict.fromkeys(OUTCOMES, 0))
                for word in OUTCOMES:
                    known[word] += counts[word]
        total = {word: sum(counts[word] for counts in queues.values()) for word in OUTCOMES}
        more = {"processes": self._args.processes, "restarts": self._restarts, "seconds": round(seconds, 3)}
        return {"app": self._args.target, **total, "queues": queues, **more}


def _end(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        process.send_signal(number)


class _Summary:
    """What a process writes into its pipe. The end of the pipe says nothing: a process that a handler has forked may
    hold it open, and live for longer."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._text = bytearray()
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._read)

    def _read(self) -> bool:
        """Read what is there; return whether there may be more."""
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
        self._text += data
        return bool(data)

    def end(self) -> bytes:
        """The process has ended, so everything is there."""
        while self._read():
            pass
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        return bytes(self._text)
