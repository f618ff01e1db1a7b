"""`shoal top` and `shoal plan show` against a real coordinator, a real server and its agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.agent_site import TIMEOUT_S, Site, agent_site, plain_subscriber, until
from tests.support.command import run_command, run_json_command

from shoal import cli
from shoal.balance.balancer_keys import STATE_KEY, BalancerState, Why, encode, why_key
from shoal.balance.change import Place
from shoal.plan.keys import RING_KEY, entry_key, pool_key
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring
from shoal.plan.signature import Signer


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with agent_site() as site:
        monkeypatch.setenv("SHOAL_COORDINATOR", site.url)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
        yield site


async def test_top_shows_servers_and_busiest_channels(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.start_agent("--max-out-bytes-per-s", "1000000")
    await until(site.lease)
    facts: dict[str, Any] = {}
    async with plain_subscriber(site, b"tile"):
        async with asyncio.timeout(TIMEOUT_S):
            while not any(row["publications_per_s"] and row["subscribers"] for row in facts.get("channels", ())):
                await site.plain.publish(b"tile", b"x" * 100)
                _, facts = await run_json_command(capsys, "top", "--once")
    (channel,) = [row for row in facts["channels"] if row["channel"] == "tile"]
    assert channel["server"] == "s1"
    assert channel["subscribers"] == 1
    assert channel["sent_per_s"] == channel["publications_per_s"]
    assert channel["bytes_out_per_s"] > 100 * channel["sent_per_s"]
    (server,) = facts["servers"]
    assert server["id"] == "s1"
    assert server["trouble"] is None
    assert server["max_out_bytes_per_s"] == 1_000_000
    status, text, _ = await run_command(capsys, "top", "--once")
    assert status == 0
    assert "s1" in text
    assert "busiest channels" in text


async def test_top_shows_what_the_balancer_did_and_why(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    await site.coordinator.put(pool_key("s9"), b"drain")
    status, facts = await run_json_command(capsys, "top")
    assert (status, facts["balance"]["plans"], facts["balance"]["pool_states"]) == (
        1,
        [],
        {"s1": "home", "s9": "drain"},
    )
    single, spread = Place(Mode.SINGLE, ("s1",)), Place(Mode.ALL_SUBSCRIBERS, ("s1", "s9"))
    why = Why(time.time(), "shoal", "abc" * 20, 1.0, single, spread, "replicate", {"left_before": 0.91})
    await site.coordinator.put(why_key(b"tile"), encode(why))
    await site.coordinator.put(STATE_KEY, encode(BalancerState(why.at_s, "", {"s10": why.at_s}, ("s8",))))
    _, facts = await run_json_command(capsys, "top")
    balance = facts["balance"]
    assert balance["ring_version"] == 1
    assert (balance["placed"], balance["replicated"]) == (1, 1)
    assert (balance["adding"], balance["removed"]) == (["s10"], ["s8"])
    (plan,), (move,) = balance["plans"], balance["moves"]
    assert (plan["policy"], plan["moves"], plan["reasons"]) == ("shoal", 1, {"replicate": 1})
    assert (move["channel"], move["before"], move["servers"], move["reason"]) == (
        *("tile", ["s1"], ["s1", "s9"], "replicate"),
    )
    _, text, _ = await run_command(capsys, "top", "--once")
    for words in (
        "being drained s9",
        "being added s10",
        "removed s8",
        "91 %",
        "abcabcabcabc by",
    ):
        assert words in text


async def test_top_runs_for_the_seconds_it_is_given(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.start_agent()
    await until(site.records)
    status, text, _ = await run_command(capsys, "top", "--seconds", "0.1")
    assert status == 0
    assert "1 server, load average" in text


async def test_top_says_what_is_missing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = await run_json_command(capsys, "top")
    assert (status, facts["servers"][0]["trouble"]) == (1, "no telemetry yet")
    await site.plain.xadd("__shoal:telemetry", {"data": b"garbage"})
    status, facts = await run_json_command(capsys, "top")
    assert status == 1
    assert "not a telemetry record" in facts["servers"][0]["trouble"]
    site.server.kill()
    status, facts = await run_json_command(capsys, "top")
    assert status == 1
    assert "cannot connect to" in facts["servers"][0]["trouble"]


async def test_plan_show(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.start_agent()
    await until(site.lease)
    status, text, _ = await run_command(capsys, "plan", "show")
    assert text.endswith("0 entries; all channels are placed by the ring\n")
    entry = site.signer.entry(b"moved", Placement(5, Mode.SINGLE, ("s1",)))
    await site.coordinator.put(entry_key(b"moved"), entry)
    status, facts = await run_json_command(capsys, "plan", "show", "moved", "tile")
    assert status == 0
    assert facts["ring_version"] == 1
    assert [(server["id"], server["lease"]) for server in facts["servers"]] == [("s1", "held")]
    places = {row["channel"]: (row["source"], row["version"], row["home"]) for row in facts["channels"]}
    assert places == {"moved": ("entry", 5, "s1"), "tile": ("ring", 1, "s1")}
    assert [row["channel"] for row in facts["entries"]] == ["moved"]
    status, text, _ = await run_command(capsys, "plan", "show")
    assert status == 0
    assert "ring version 1" in text
    assert "moved: single on s1" in text


async def test_plan_show_believes_no_forged_entry(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    forger = Signer(Signer.generate())
    await site.coordinator.put(entry_key(b"\x1b[31m"), forger.entry(b"\x1b[31m", Placement(9, Mode.SINGLE, ("s1",))))
    status, text, _ = await run_command(capsys, "plan", "show")
    assert status == 1
    assert "lease none" in text
    assert "without the cluster's signature" in text
    assert "\x1b" not in text
    await site.coordinator.put(RING_KEY, forger.ring(Ring(9, (site.address,))))
    status, facts = await run_json_command(capsys, "plan", "show")
    assert (status, facts["signature_ok"]) == (1, False)


@pytest.mark.parametrize(
    "words", [["plan", "show", ""], ["plan", "show", "__shoal:heartbeat"], ["top", "--seconds", "0"], ["plan"]]
)
async def test_bad_words_are_refused(words: list[str], site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(cli.main, words) != 0
    assert len(capsys.readouterr().err.splitlines()) == 1
