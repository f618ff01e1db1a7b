"""The processes of a round: those that make the load, and the one that judges.

Owns their start, what they are told and how they end. What they do is their own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Self

import msgspec

from shoal.errors import ClusterError
from shoal.soak.checker import Report, Severity
from shoal.soak.worker import Status


class Worker:
    """A load process. It ends with its input, so it does not outlive this one."""

    def __init__(self, role: str, number: int, directory: Path, url: str) -> None:
        self.role = role
        self.status = Status(0, 0, ready=False, settled=False)
        self._number = number
        self._directory = directory
        self._url = url
        self._errors = directory / f"{role}-{number}.err"

    async def __aenter__(self) -> Self:
        with open(self._errors, "wb") as errors:  # noqa: ASYNC230 - a new file, which cannot block
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal.soak.worker", self.role, str(self._number), str(self._directory)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "SHOAL_URL": self._url},
            )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.status = msgspec.json.decode(line, type=Status)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    def check(self) -> None:
        """ClusterError with the process's last words if it has failed."""
        if self._process.returncode:
            words = self._errors.read_text(errors="replace")[-2000:]
            raise ClusterError(f"process {self._number} that {self.role}s failed", do=f"see its last words\n{words}")

    def order(self, order: str) -> None:
        """Gives an order."""
        assert self._process.stdin is not None
        if not self.ended:
            self._process.stdin.write(order.encode() + b"\n")


async def judge_in_process(directory: Path, severity: Severity) -> Report:
    """Lets a process of its own read the logs and judge."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal.soak.checker", str(directory), severity),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        words = errors.decode(errors="replace")[-2000:]
        raise ClusterError("the checking process failed", do=f"see its last words\n{words}")
    return msgspec.json.decode(output, type=Report)
