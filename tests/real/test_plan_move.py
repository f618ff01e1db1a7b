"""`shoal plan move` and `shoal plan show --moves` against a real coordinator and a real conductor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.agent_site import until
from tests.support.command import run_command, run_json_command
from tests.support.mover_scene import CHANNEL, RING, MoverScene, mover_scene

from shoal.balance.balancer_keys import Pin, encode, pin_key
from shoal.balance.change import Place
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import RING_KEY, entry_key, move_key, report_key
from shoal.plan.move_request import (
    ChannelReport,
    MoveReport,
    MoveRequest,
    decode_request,
    encode_report,
    encode_request,
)
from shoal.plan.placement import Mode, Placement
from shoal.plan.signature import Signer

NAME = CHANNEL.decode()
TARGET = MoverScene.target(CHANNEL)
HOME = RING.home(CHANNEL)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MoverScene]:
    async with mover_scene() as scene:
        monkeypatch.setenv("SHOAL_COORDINATOR", scene.url)
        yield scene


class TestMove:
    async def test_it_shows_the_phases_and_returns_at_the_end(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        scene.start_mover()
        scene.start_agents()
        status, facts = await run_json_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert status == 0
        assert (facts["moved"], facts["phase"], facts["servers"]) == (True, "end", [TARGET])
        assert facts["phases"][-1]["phase"] == "end"
        assert facts["revision"] == facts["phases"][-1]["revision"] == 6
        status, output, _ = await run_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert (status, output) == (0, f"{NAME}: already there; pinned until shoal plan release {NAME}\n")

    async def test_a_channel_moved_by_hand_is_pinned_until_it_is_released(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        scene.start_mover()
        scene.start_agents()
        _, facts = await run_json_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert facts["pinned"]
        _, facts = await run_json_command(capsys, "plan", "show", NAME)
        assert [(pin["channel"], pin["servers"], pin["failed_over"]) for pin in facts["pins"]] == [
            (NAME, [TARGET], False)
        ]
        for words in (("show", NAME), ("show",), ("explain", NAME), ("explain",)):
            _, text, _ = await run_command(capsys, "plan", *words)
            assert "pinned since 20" in text
        status, facts = await run_json_command(capsys, "plan", "release", NAME)
        assert (status, facts["pinned"]) == (0, False)
        _, text, _ = await run_command(capsys, "plan", "show", NAME)
        assert "pinned" not in text
        status, _, errors = await run_command(capsys, "plan", "release", NAME)
        assert (status, f"{NAME} is not pinned" in errors) == (1, True)

    async def test_a_channel_at_its_home_gets_an_entry_when_it_is_pinned(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Otherwise it would move with the ring."""
        await scene.lead()
        scene.start_mover()
        scene.start_agents()
        assert await scene.entry() is None
        status, facts = await run_json_command(capsys, "plan", "pin", NAME)
        assert (status, facts["servers"], facts["pinned"]) == (0, [HOME], True)
        entry = await scene.entry()
        assert entry is not None
        assert (entry.placement.servers, entry.phase) == ((HOME,), Phase.END)
        status, output, _ = await run_command(capsys, "plan", "pin", NAME)
        assert (status, output) == (0, f"{NAME}: stays on {HOME} (single); pinned until shoal plan release {NAME}\n")

    async def test_the_pin_of_a_failed_over_channel_says_so(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        await scene.coordinator.put(pin_key(CHANNEL), encode(Pin(Place(Mode.SINGLE, ("s9",)), 1e9)))
        _, text, _ = await run_command(capsys, "plan", "show", NAME)
        assert "failed over from s9: move it back with shoal plan move" in text

    async def test_several_servers_share_a_channel(self, scene: MoverScene, capsys: pytest.CaptureFixture[str]) -> None:
        await scene.lead()
        scene.start_mover()
        scene.start_agents()
        words = ("plan", "move", NAME, "--to", "s1, s2", "--mode", "all_publishers", "--eager")
        status, output, progress = await run_command(capsys, *words)
        assert status == 0
        assert output.startswith(f"{NAME}: moved to s1, s2 (all_publishers); pinned until")
        assert "end, revision" in progress
        entry = await scene.entry()
        assert entry is not None
        assert entry.placement.mode is Mode.ALL_PUBLISHERS

    async def test_who_is_idle_is_not_waited_for(self, scene: MoverScene, capsys: pytest.CaptureFixture[str]) -> None:
        await scene.lead()
        scene.start_mover()
        scene.here, scene.spoken = 1, False
        scene.start_agents()
        status, facts = await run_json_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert status == 0
        assert (facts["moved"], facts["phase"]) == (True, "narrow")
        assert f"idle and plain Redis clients on {HOME}" in facts["outcome"]

    async def test_without_waiting_the_request_is_left(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        status, facts = await run_json_command(capsys, "plan", "move", NAME, "--to", TARGET, "--eager", "--no-wait")
        assert (status, facts["moved"]) == (0, False)
        stored = await scene.coordinator.get(move_key(CHANNEL))
        assert stored is not None
        request = decode_request(stored.value)
        assert (request.unit, request.servers, request.mode, request.eager) == (CHANNEL, (TARGET,), "single", True)

    async def test_after_the_time_it_says_how_far_the_move_is(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        words = ("plan", "move", NAME, "--to", TARGET, "--timeout", "0.01")
        status, output, _ = await run_command(capsys, *words)
        assert status == 1
        assert "not moved yet (not started)" in output
        scene.start_mover()
        await until(scene.entry)
        status, output, _ = await run_command(capsys, *words)
        assert status == 1
        assert "not moved yet (prepare)" in output

    async def test_it_notices_that_the_move_was_given_up(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        task = asyncio.create_task(run_command(capsys, "plan", "move", NAME, "--to", TARGET))
        await until(lambda: scene.coordinator.get(move_key(CHANNEL)))
        await scene.coordinator.delete(move_key(CHANNEL))
        status, output, _ = await task
        assert status == 1
        assert "cancelled" in output

    async def test_a_request_that_replaces_this_one_is_noticed(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        task = asyncio.create_task(run_command(capsys, "plan", "move", NAME, "--to", TARGET))
        await until(lambda: scene.coordinator.get(move_key(CHANNEL)))
        other = MoveRequest(CHANNEL, (HOME,), Mode.SINGLE, False, "other")
        await scene.coordinator.put(move_key(CHANNEL), encode_request(other))
        status, output, _ = await task
        assert status == 1
        assert "replaced" in output

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["--to", "s9"], "the ring has no server 's9': choose from s1, s2, s3"),
            (["--to", "s1,s2"], "a single placement has one server, not 2: give --mode all_subscribers"),
            (["--to", "s1,s1", "--mode", "all_publishers"], "names a server twice: s1, s1: give each server once"),
            (["--to", ""], "the ring has no server ''"),
            (["--to", TARGET, "--timeout", "0"], "--timeout is 0"),
            (["--to", TARGET, "--mode", "some"], "invalid choice: 'some'"),
            ([], "--to"),
        ],
    )
    async def test_what_makes_no_sense_is_refused(
        self, words: list[str], says: str, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        status, output, error = await run_command(capsys, "plan", "move", NAME, *words)
        assert (status != 0, output) == (True, "")
        assert says in error
        assert await scene.coordinator.get(move_key(CHANNEL)) is None

    async def test_without_a_mover_nothing_is_asked_for(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, _, error = await run_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert status == 1
        assert "no balancer is running" in error
        assert await scene.coordinator.get(move_key(CHANNEL)) is None

    async def test_a_plan_that_is_not_signed_is_not_followed(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await scene.lead()
        await scene.coordinator.put(RING_KEY, Signer(Signer.generate()).ring(RING))
        status, _, error = await run_command(capsys, "plan", "move", NAME, "--to", TARGET)
        assert status == 1
        assert "signed with another key" in error


class TestShow:
    async def test_moves_with_what_each_server_says(
        self, scene: MoverScene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        old, new = Placement(1, Mode.SINGLE, (HOME,)), Placement(2, Mode.SINGLE, (TARGET,))
        entry = Entry(CHANNEL, new, Phase.SWITCH, (old,), 0, 4, True, (HOME,), 4)
        await scene.coordinator.put(entry_key(CHANNEL), scene.signer.line(entry))
        await scene.coordinator.put(entry_key(b"still"), scene.signer.entry(b"still", old))
        said = MoveReport(HOME, 1, {CHANNEL: ChannelReport(4, 4, 2, 5, 0, True)})
        await scene.coordinator.put(report_key(HOME), encode_report(said))
        await scene.coordinator.put(report_key("s9"), b"garbage")
        request = MoveRequest(b"asked", (TARGET,), Mode.SINGLE, False, "x")
        await scene.coordinator.put(move_key(b"asked"), encode_request(request))
        await scene.coordinator.put(move_key(b"garbage"), b"garbage")
        status, facts = await run_json_command(capsys, "plan", "show", "--moves")
        assert status == 0
        asked, moving = facts["moves"]
        assert (asked["channel"], asked["phase"], asked["requested"]) == ("asked", "asked", True)
        assert moving == {
            "channel": NAME,
            "phase": "switch",
            "from": [{"mode": "single", "servers": [HOME], "version": 1}],
            "to": {"mode": "single", "servers": [TARGET], "version": 2},
            "publishing": [TARGET],
            "revision": 4,
            "eager": True,
            "helped": [HOME],
            "requested": False,
            "servers": [
                {"server": HOME, "known": True, "behind": 2, "here": 5, "handed": True},
                {"server": TARGET, "known": False, "behind": None, "here": None, "handed": False},
            ],
        }
        status, text, _ = await run_command(capsys, "plan", "show", "--moves")
        assert status == 0
        assert "2 channels move" in text
        assert f"{NAME}: switch, from single on {HOME} to single on {TARGET}, revision 4, eager, helped: {HOME}" in text
        assert f"{HOME}  has the entry, 5 here, 2 behind, handed over" in text
        assert f"{TARGET}  has not reported yet" in text
        assert "not started" in text

    async def test_moves_are_shown_on_request_only(self, scene: MoverScene, capsys: pytest.CaptureFixture[str]) -> None:
        _, facts = await run_json_command(capsys, "plan", "show")
        assert "moves" not in facts
        _, facts = await run_json_command(capsys, "plan", "show", "--moves")
        assert facts["moves"] == []
        _, text, _ = await run_command(capsys, "plan", "show", "--moves")
        assert text == "0 channels move\n"
