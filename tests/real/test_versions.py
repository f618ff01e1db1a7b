"""A process that finds another version reports it, with advice."""

from __future__ import annotations

import asyncio

import pytest

import shoal
from shoal.errors import VersionError
from shoal.wire import control

WAIT_S = 30.0
CURRENT = control.VERSION
NEWER = CURRENT + 1
SPEAKS = f"speaks control messages of versions {CURRENT} to {CURRENT}, this process speaks version"


async def test_a_newer_client_cannot_open(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "VERSION", NEWER)
    with pytest.raises(VersionError, match=f"{SPEAKS} {NEWER}: upgrade the agents of the cluster"):
        await asyncio.wait_for(shoal.connect(url).open(), WAIT_S)


async def test_every_call_of_a_newer_client_says_that_the_agents_must_be_upgraded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await shoal.connect(url).open()
    monkeypatch.setattr(control, "VERSION", NEWER)
    try:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(VersionError, match=f"{SPEAKS} {NEWER}: upgrade the agents of the cluster"):
                await bus.subscribe("versions.newer").__aenter__()
            with pytest.raises(VersionError, match=SPEAKS):
                await bus.publish("versions.newer", b"x", confirm=True)
            with pytest.raises(VersionError, match=SPEAKS):
                await bus.drain()
        monkeypatch.undo()
        await bus.drain(WAIT_S)
        assert bus.statistics().counters["refused"] == 0, "the message waited, and went out when it could"
    finally:
        await bus.aclose()


async def test_a_full_buffer_does_not_wait_for_ever(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await shoal.connect(url, limits=shoal.Limits(publish_buffer_messages_max=10)).open()
    monkeypatch.setattr(control, "VERSION", 1)

    async def flood() -> None:
        for _ in range(20):
            await bus.publish("versions.older", b"x")

    try:
        with pytest.raises(VersionError, match=f"{SPEAKS} 1: upgrade this process"):
            await asyncio.wait_for(flood(), WAIT_S)
    finally:
        monkeypatch.undo()
        await bus.aclose()
