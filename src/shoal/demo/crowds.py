"""The crowd processes as the demo sees them: started, told to grow, asked, and certainly ended.

Owns their pipes and what they said last. Counts nothing itself: players do, in `audit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeVar

import msgspec

from shoal.cluster.process import log_tail
from shoal.demo.audit import Publications, Receipt, Tally, audit
from shoal.demo.talk import Account, Accounts, Begin, Gather, Grow, Order, Rest, Rested, Tick, frame, read_answer
from shoal.errors import ClusterError

CROWDS: Final = 2
"""Processes of players: as many as the smallest machine that we think of has cores."""

ANSWER_S_MAX: Final = 40.0
"""How long a crowd may take to answer; its players drain meanwhile, which has a limit of its own."""

T = TypeVar("T")

_END_S_MAX: Final = 2.0
_PIPE_BYTES: Final = 1 << 20


class _Crowd:
    """One process and its last words."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.tick = Tick(0, Tally(), [], time.monotonic(), {}, [])
        self.ready = asyncio.Event()
        self.rested = asyncio.Event()
        self.accounts: asyncio.Queue[Accounts] = asyncio.Queue()

    def tell(self, order: Order) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(frame(order))

    async def end(self) -> None:
        """It ends with its input; if it does not, it is killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_S_MAX)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Crowds:
    """All crowd processes together. An async context manager; leaving it ends them. `prefix` stands in front of their
    command."""

    def __init__(self, log: Path, prefix: Sequence[str] = ()) -> None:
        self._log = log
        self._prefix = prefix
        self._crowds: list[_Crowd] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._responses_ms: list[float] = []
        self._wanted = 0
        self._gathered = 0
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            for _ in range(CROWDS):
                await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _start(self) -> None:
        with _append_to(self._log) as log:
            process = await asyncio.create_subprocess_exec(
                *(*self._prefix, sys.executable, "-m", "shoal.demo.crowd"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_PIPE_BYTES,
                start_new_session=True,  # Ctrl-C is for the demo, which then asks for the accounts
            )
        crowd = _Crowd(process)
        self._crowds.append(crowd)
        self._listeners.append(asyncio.create_task(self._listen(crowd)))

    async def _end(self) -> None:
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        await asyncio.gather(*(crowd.end() for crowd in self._crowds))

    async def _listen(self, crowd: _Crowd) -> None:
        assert crowd.process.stdout is not None
        while (answer := await read_answer(crowd.process.stdout)) is not None:
            if isinstance(answer, Tick):
                crowd.tick = answer
                crowd.ready.set()
                self._responses_ms += answer.responses_ms
            elif isinstance(answer, Rested):
                crowd.rested.set()
            else:
                crowd.accounts.put_nowait(answer)
        self._ended.set()

    # -- orders ----------------------------------------------------------------------------------------------

    async def begin(self, begin: list[Begin]) -> None:
        """The first word to each; returns when they have found the cluster."""
        for crowd, word in zip(self._crowds, begin, strict=True):
            crowd.tell(word)
        for crowd in self._crowds:
            await self._answer(crowd.ready.wait())

    def grow(self, players: int) -> None:
        """So many players should play now."""
        if players != self._wanted:
            self._wanted = players
            for crowd in self._crowds:
                crowd.tell(Grow(players))

    def gather(self, players: int) -> None:
        """So many players should be in the town now."""
        if players != self._gathered:
            self._gathered = players
            for crowd in self._crowds:
                crowd.tell(Gather(players))

    async def rest(self) -> None:
        """Everybody stops publishing; returns when servers have everything."""
        for crowd in self._crowds:
            crowd.tell(Rest())
        for crowd in self._crowds:
            await self._answer(crowd.rested.wait())

    async def audit(self) -> int:
        """How many deliveries are missing now, by all accounts."""
        publications: Publications = {}
        receipts: list[Receipt] = []
        for crowd in self._crowds:
            crowd.tell(Account())
        for crowd in self._crowds:
            accounts: Accounts = await self._answer(crowd.accounts.get())
            crowd.tick = msgspec.structs.replace(crowd.tick, tally=accounts.tally)
            receipts += accounts.receipts
            for channel, players in accounts.publications.items():
                publications.setdefault(channel, {}).update(players)
        return audit(publications, receipts)

    def check(self) -> None:
        """ClusterError if a crowd has ended by itself."""
        if self._ended.is_set():
            raise ClusterError(
                "a process of players ended by itself", do=f"see the end of its log\n{log_tail(self._log)}"
            )

    async def _answer(self, answer: Coroutine[Any, Any, T]) -> T:
        """Waits for an answer, but not for one that cannot come any more."""
        asked = asyncio.create_task(answer)
        ended = asyncio.create_task(self._ended.wait())
        try:
            done, _ = await asyncio.wait({asked, ended}, timeout=ANSWER_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if asked in done:
                return asked.result()
            self.check()
            raise ClusterError(f"a process of players did not answer within {ANSWER_S_MAX:g} s")
        finally:
            asked.cancel()
            ended.cancel()

    # -- what they say ---------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [crowd.process.pid for crowd in self._crowds]

    @property
    def players(self) -> int:
        """How many play."""
        return sum(crowd.tick.players for crowd in self._crowds)

    @property
    def tally(self) -> Tally:
        """What all have counted so far."""
        total = Tally()
        for crowd in self._crowds:
            total.add(crowd.tick.tally)
        return total

    @property
    def back_until(self) -> float:
        """Every update published before this moment has come back."""
        return min(crowd.tick.back_until for crowd in self._crowds)

    @property
    def troubles(self) -> list[str]:
        """What went wrong for players."""
        return [trouble for crowd in self._crowds for trouble in crowd.tick.troubles]

    @property
    def gap_reasons(self) -> Counter[str]:
        """Reason of reported gaps to how many there were."""
        total: Counter[str] = Counter()
        for crowd in self._crowds:
            total.update(crowd.tick.gap_reasons)
        return total

    def take_responses_ms(self) -> list[float]:
        """The response times since the last call."""
        taken, self._responses_ms = self._responses_ms, []
        return taken


def _append_to(log: Path) -> BinaryIO:
    return open(log, "ab")
