"""The parent's side: starts a child, gives it orders, waits for its answers, and ends it for certain.

Owns the child's pipes and its end. What orders and reports mean is the business of each kind of load.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar

import msgspec

from shoal.errors import ShoalError
from shoal.lab.harness.worker import LINE_BYTES_MAX

END_S_MAX: Final = 2.0
"""How long a child may take to end when its input has. Then it is killed."""
QUOTED_CHARACTERS: Final = 2000
"""How much of the end of a log file an error quotes."""

T = TypeVar("T")


class LoadError(ShoalError):
    """A load process failed, or did not answer in time."""


class LoadProcess:
    """A child process that makes load. An async context manager: leaving it ends the child.

    `module` calls `run_worker`, `reports` decodes its reports, and `prefix` is put before its command. `python` is the
    interpreter, by default that of this process. The child's standard error is appended to `log`, or is that of this
    process.
    """

    def __init__(
        self,
        name: str,
        module: str,
        reports: msgspec.json.Decoder[Any],
        *,
        prefix: Sequence[str] = (),
        python: str = sys.executable,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._command = (*prefix, python, "-m", module)
        self._decoder = reports
        self._log = log
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._silent = asyncio.Event()
        self._unreadable: str | None = None
        self._is_ending = False
        self._encoder = msgspec.json.Encoder()

    async def __aenter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            errors = None if self._log is None else stack.enter_context(_append_to(self._log))
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends its children in order
            )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_orders()
        try:
            await asyncio.wait_for(self._process.wait(), END_S_MAX)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                report = self._decoder.decode(line)
                self._handlers.get(type(report), self._answers.put_nowait)(report)
        except (ValueError, msgspec.DecodeError) as error:  # a ValueError: the line is too long
            self._unreadable = str(error)
        finally:
            self._silent.set()

    @property
    def pid(self) -> int:
        """The id of the child."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the child has ended."""
        return self._process.returncode is not None

    def check(self) -> None:
        """LoadError if the child failed, ended without having been asked to, or wrote something unreadable."""
        failed = self.is_over and (self._process.returncode != 0 or not self._is_ending)
        if failed or self._unreadable is not None:
            raise self._failure()

    # -- orders and reports ----------------------------------------------------------------------------------

    def on(self, kind: type[T], handler: Callable[[T], None]) -> None:
        """Hands every report of a kind to a handler instead of keeping it as an answer."""
        self._handlers[kind] = handler

    def send(self, order: msgspec.Struct) -> None:
        """Gives an order. A child that has ended ignores it."""
        if not self.is_over:
            self._input.write(self._encoder.encode(order) + b"\n")

    def end_orders(self) -> None:
        """Tells the child that there are no more orders: it should end."""
        self._is_ending = True
        self._input.close()

    async def answer(self, kind: type[T], timeout_s: float) -> T:
        """The next report that has no handler. LoadError if it is of another kind, late, or cannot come any more."""
        waiting = asyncio.create_task(self._answers.get())
        silent = asyncio.create_task(self._silent.wait())
        try:
            await asyncio.wait({waiting, silent}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise await self._failed() if silent.done() else LoadError(f"{self.name}: no answer in {timeout_s:g} s")
            found = waiting.result()
        finally:
            waiting.cancel()
            silent.cancel()
        if not isinstance(found, kind):
            raise LoadError(f"{self.name}: answered {type(found).__name__} instead of {kind.__name__}")
        return found

    async def ask(self, order: msgspec.Struct, kind: type[T], timeout_s: float) -> T:
        """Gives an order and waits for its answer."""
        self.send(order)
        return await self.answer(kind, timeout_s)

    @property
    def _input(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    async def _failed(self) -> LoadError:
        """The failure of a child that reports no more; its exit status may take a moment."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S_MAX)
        return self._failure()

    def _failure(self) -> LoadError:
        if self._unreadable is not None:
            return LoadError(f"{self.name}: unreadable report: {self._unreadable}")
        if self._log is None:
            advice = "see its error above"
        else:
            advice = f"see the end of its log\n{self._log.read_text(errors='replace')[-QUOTED_CHARACTERS:]}"
        return LoadError(f"{self.name}: the process ended with exit status {self._process.returncode}", do=advice)


def _append_to(log: Path) -> BinaryIO:
    return open(log, "ab")
