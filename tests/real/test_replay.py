"""`shoal pipeline replay` on a real cluster: archived messages arrive again, in order, and not where they came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.archives import make_archive, message
from tests.support.command import run_command, run_json_command
from tests.support.records import BOB, NOON_US

import shoal

pytestmark = pytest.mark.usefixtures("admin")


async def test_an_archive_arrives_again_on_other_channels(
    channel: str, bus: shoal.Bus, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        message(channel, BOB, n, NOON_US + n * 1000, attributes=json.dumps({"n": n})) for n in range(1, 501) if n != 7
    ]
    words = ("pipeline", "replay", "--archive", str(make_archive(tmp_path / "a", rows)), "--url", url)
    async with bus.subscribe(f"replay.{channel}") as messages:
        status, facts = await run_json_command(capsys, *words, "--speed", "2", "--checkpoint", str(tmp_path / "c"))
        found = [await anext(messages) for _ in rows]
    assert status == 0
    arrived = [item for item in found if isinstance(item, shoal.Message)]
    assert [item.payload for item in arrived] == [row["payload"] for row in rows]
    assert arrived[9].attributes == {"n": 11, "shoal_id": f"{channel}/{BOB:012x}/1/11"}
    assert (facts["messages"], facts["gaps"], facts["missing"], facts["reordered"]) == (499, 1, 1, 0)
    assert facts["lateness_ms_p99"] >= facts["lateness_ms_p50"] >= 0
    assert facts["seconds"] >= 0.24
    status, _, complaint = await run_command(capsys, *words, "--to", "*")
    assert status == 1
    assert f"{channel} would be replayed into {channel}, which is recorded" in complaint
