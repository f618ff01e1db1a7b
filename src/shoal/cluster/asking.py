"""One connection to one server on which one command at a time is asked, in an event loop.

Owns the connection and how long an answer may take. Whoever asks makes a new one when it is lost.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError
from shoal.limits import Limits
from shoal.plan.ring import ServerAddress
from shoal.wire.commands import Command
from shoal.wire.resp import RespLink

ANSWER_TIMEOUT_S: Final = 5.0
"""How long a server may take to answer. Then the connection is made anew."""


class Asking:
    """One connection on which one command at a time is asked."""

    def __init__(self, address: ServerAddress, username: str | None, password: str | None, limits: Limits) -> None:
        self._link = RespLink(
            address.host,
            address.port,
            username=username,
            password=password,
            name="shoal-balancer",
            receiver=self,
            connect_timeout_s=limits.connect_timeout_s,
            frame_bytes_max=limits.command_reply_bytes_max,
        )
        self._answer: asyncio.Future[Any] | None = None
        self._lost: Exception | None = None

    async def open(self) -> None:
        """Connects and logs in."""
        await self._link.open()

    async def ask(self, command: Command) -> Any:
        """The answer; ConnectError if there is none, hiredis.ReplyError if it is a refusal."""
        if self._lost is not None:
            raise self._lost
        self._answer = asyncio.get_running_loop().create_future()
        self._link.send_now([command])
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reply = await self._answer
        except TimeoutError as error:
            raise ConnectError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        """Ends the connection."""
        self._link.abort()

    def received(self, frames: list[Any]) -> None:
        """Takes the answer; nothing else is expected here."""
        for frame in frames:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(frame)

    def lost(self, error: Exception | None) -> None:
        """The connection is gone, and with it the answer."""
        self._lost = ConnectError(f"the connection was lost ({error})")
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost)

    def can_send(self) -> None:
        """There is always room for one command."""
