"""The session of an agent with its server: control messages that are more than a turn's work do not hold up the event
loop, and the server is read meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from tests.channels.observed import observed
from tests.support.core_driver import CLIENT, AgentDriver

from shoal.channels.agent.connection import AgentConnection
from shoal.channels.agent.core import TURN_WORK_MAX
from shoal.channels.agent.monitor import Monitor
from shoal.channels.agent.session import ServerSession
from shoal.limits import DEFAULT_LIMITS
from shoal.runtime import PRODUCTION
from shoal.wire import control
from shoal.wire.commands import Command
from shoal.wire.envelope import AGENT_CHANNEL


class FakeConnection:
    """A connection whose bytes come from the test."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.receive: Callable[[bytes], None] | None = None
        self.sent: list[Command] = []

    def attach(self, receive: Callable[[bytes], None]) -> None:
        self.receive = receive

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands

    def abort(self) -> None:
        self.ended.set()


class IdleMonitor:
    """A monitor that asks for nothing."""

    def opened(self) -> None:
        pass

    def second_over(self, second: int, now: float) -> None:
        pass


def hellos(count: int) -> bytes:
    messages = (
        control.encode(control.Hello(nonce, b"tile", False, True, 1, 1), CLIENT, nonce) for nonce in range(1, count + 1)
    )
    return b"".join(observed(AGENT_CHANNEL, message) for message in messages)


class Scene:
    def __init__(self) -> None:
        self.core = AgentDriver().core
        self.connection = FakeConnection()
        monitor: Any = IdleMonitor()
        self.session = ServerSession(
            self.core, cast(Monitor, monitor), DEFAULT_LIMITS, lambda: None, PRODUCTION, b"key"
        )
        self.serving = asyncio.create_task(self.session.serve(cast(AgentConnection, self.connection), "run"))

    async def receive(self, data: bytes) -> None:
        await asyncio.sleep(0)
        assert self.connection.receive is not None
        self.connection.receive(data)

    async def all_read(self) -> list[int]:
        """The number of handled Hellos in each turn of the loop, until all are."""
        seen = []
        while self.session._rest is not None:
            seen.append(self.core.counters.hellos_deferred)
            await asyncio.sleep(0)
        return seen


async def test_other_work_gets_its_turn_while_a_flood_is_handled() -> None:
    scene = Scene()
    await scene.receive(hellos(5 * TURN_WORK_MAX))
    seen = await scene.all_read()
    assert len(seen) >= 4  # the loop ran between the turns
    assert seen == sorted(seen)
    assert scene.core.counters.hellos_deferred == 5 * TURN_WORK_MAX
    scene.connection.abort()
    await scene.serving


async def test_the_server_is_read_while_control_messages_wait_for_their_turn() -> None:
    scene = Scene()
    await scene.receive(hellos(9 * TURN_WORK_MAX))
    await scene.receive(hellos(10) + observed(b"tile", b"x"))
    assert scene.core.counters.hellos_deferred < 9 * TURN_WORK_MAX
    assert scene.core.scanner.channels() == [b"tile"]
    await scene.all_read()
    assert scene.core.counters.hellos_deferred == 9 * TURN_WORK_MAX + 10
    scene.connection.abort()
    await scene.serving


async def test_an_ended_connection_takes_the_rest_with_it() -> None:
    scene = Scene()
    await scene.receive(hellos(9 * TURN_WORK_MAX))
    scene.connection.abort()
    await scene.serving
    handled = scene.core.counters.hellos_deferred
    await asyncio.sleep(0.01)
    assert scene.core.counters.hellos_deferred == handled < 9 * TURN_WORK_MAX


async def test_an_error_in_a_later_turn_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    await scene.receive(hellos(2 * TURN_WORK_MAX))

    def fail(now: float, behind: bool) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(scene.core, "work", fail)
    await asyncio.wait_for(scene.serving, 60)
    assert scene.connection.ended.is_set()
