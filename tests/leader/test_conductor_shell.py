"""The conductor's shell on a real coordinator, with agents that only report: moves end despite other writers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis
from tests.support.agent_site import until
from tests.support.mover_scene import CHANNEL, RING, MoverScene, mover_scene

from shoal.coordination.layout import redis_key
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import entry_key, move_key, report_key
from shoal.plan.move_request import MoveReport, encode_report
from shoal.plan.placement import Mode, Placement


@pytest.fixture
async def scene() -> AsyncIterator[MoverScene]:
    async with mover_scene() as scene:
        yield scene


async def test_many_moves_are_carried_through(scene: MoverScene) -> None:
    channels = [b"tile.%d" % number for number in range(100)]
    await scene.lead()
    scene.start_mover()
    scene.start_agents()
    await scene.ask(*channels)
    await until(lambda: scene.ended(*channels))


async def test_only_the_leader_writes(scene: MoverScene) -> None:
    scene.start_mover()
    scene.start_agents()
    await scene.ask(CHANNEL)
    await scene.some_turns()
    assert await scene.entry() is None
    await scene.lead()
    await until(lambda: scene.ended(CHANNEL))


async def test_the_next_conductor_continues_and_the_first_cannot_write(scene: MoverScene) -> None:
    await scene.lead("a")
    scene.start_mover("a")
    await scene.ask(CHANNEL)
    await until(scene.entry)
    await scene.lead("b")  # "a" does not know yet
    scene.start_agents()
    await scene.some_turns()
    entry = await scene.entry()
    assert entry is not None
    assert entry.phase is Phase.PREPARE
    scene.start_mover("b")
    await until(lambda: scene.ended(CHANNEL))


async def test_a_move_continues_from_an_entry_of_another_writer(scene: MoverScene) -> None:
    await scene.lead()
    scene.start_mover()
    await scene.ask(CHANNEL)
    begun = await until(scene.entry)
    other = Entry(CHANNEL, Placement(begun.newness + 1, Mode.SINGLE, (RING.home(CHANNEL),)))
    await scene.coordinator.put(entry_key(CHANNEL), scene.signer.line(other))
    scene.start_agents()
    await until(lambda: scene.ended(CHANNEL))
    entry = await scene.entry()
    assert entry is not None
    assert entry.newness == other.newness + 5


async def test_garbage_is_ignored(scene: MoverScene) -> None:
    await scene.lead()
    await scene.coordinator.put(report_key("s1"), b"garbage")
    await scene.coordinator.put(report_key("s9"), encode_report(MoveReport("s1", 1, {})))
    await scene.coordinator.put(move_key(b"other"), b"garbage")
    await scene.coordinator.put(entry_key(b"other"), b"garbage")
    scene.start_mover()
    scene.start_agents()
    await scene.ask(CHANNEL)
    await until(lambda: scene.ended(CHANNEL))


async def test_an_entry_that_cannot_be_written_does_not_delay_others(scene: MoverScene) -> None:
    await scene.lead()
    with redis.Redis(port=int(scene.url.rpartition(":")[2])) as by_hand:
        by_hand.set(redis_key(entry_key(b"other")), b"garbage")
    scene.start_mover()
    scene.start_agents()
    await scene.ask(b"other", CHANNEL)
    await until(lambda: _is_at(scene, Phase.END))
    await scene.coordinator.delete(entry_key(b"other"))
    await until(lambda: scene.ended(b"other", CHANNEL))


async def _is_at(scene: MoverScene, phase: Phase) -> bool:
    entry = await scene.entry()
    return entry is not None and entry.phase is phase
