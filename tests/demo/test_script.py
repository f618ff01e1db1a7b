"""The script: who is killed when, and what is told of the servers."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.child import ChildStatus
from shoal.cluster.status import ClusterStatus, ServerStatus
from shoal.demo.script import Script

SERVERS = ["s1", "s2", "s3"]


def process(name: str, state: str = "running", uptime_s: float = 100.0) -> ChildStatus:
    pid = 1 if state == "running" else None
    return ChildStatus(name, "server", state, pid, uptime_s, 0, False, False, "killed by SIGKILL")


def status(servers: Sequence[str] = SERVERS, *, down: str = "", reborn: str = "", out: str = "") -> ClusterStatus:
    return ClusterStatus(
        cluster="c",
        state_dir="",
        started_at=0.0,
        ready=True,
        coordinator="",
        contact=True,
        ring_version=7,
        servers=tuple(ServerStatus(name, "h", 1, name != out, name != out) for name in servers),
        processes=tuple(
            process(name, "waiting" if name == down else "running", 0.1 if name == reborn else 100.0)
            for name in servers
        ),
        trouble=None,
    )


def a_script(kill_at: float = 4.0, servers: Sequence[str] = SERVERS) -> Script:
    return Script([*servers], kill_at, 0.0)


def texts(script: Script) -> list[str]:
    return [event.text for event in script.events]


def test_one_server_is_killed_once() -> None:
    script = a_script()
    assert script.due(3.9) == []
    assert script.due(4.0) == ["s2"]
    assert script.due(9.0) == []
    assert script.kills == 1
    assert a_script(servers=["s1"]).due(4.0) == ["s1"]


def test_nobody_is_killed_after_the_end() -> None:
    script = a_script()
    script.finish()
    assert script.due(9.0) == []
    assert script.kills == 0


def test_a_kill_is_noticed_mended_and_healed() -> None:
    script = a_script()
    script.look(status(), 3.9, 3.9)
    assert script.due(4.0) == ["s2"]
    script.look(status(), 3.9, 4.01)
    script.look(status(down="s2"), 3.9, 4.1)
    script.look(status(reborn="s2"), 3.9, 4.5)
    script.look(status(reborn="s2"), 4.9, 5.0)
    assert len(script.events) == 3
    script.look(status(reborn="s2"), 5.1, 5.2)
    assert texts(script) == [
        "s2 killed (kill -9)",
        "noticed: s2 ended (killed by SIGKILL)",
        "mended: s2 runs again, 0.5 s after its end",
        "healed: every update is back, 1.2 s after s2's end",
    ]


def test_a_killed_server_that_the_ring_has_left_is_no_wound_any_more() -> None:
    script = a_script()
    script.look(status(), 4.0, 4.0)
    script.due(4.0)
    script.look(status(down="s2", out="s2"), 4.0, 8.0)
    script.look(status(down="s2", out="s2"), 8.6, 8.7)
    assert "s2's lease has run out: players use it no more" in texts(script)
    assert texts(script)[-2:] == ["ring 7: without s2", "healed: every update is back, 4.7 s after s2's end"]


def test_servers_that_come_and_go_are_told_and_counted() -> None:
    script = a_script()
    script.look(status(), 0.0, 0.0)
    script.look(status([*SERVERS, "s4"], out="s4"), 0.0, 1.0)
    assert script.servers_added == 0
    script.look(status([*SERVERS, "s4"]), 0.0, 2.0)
    assert (script.servers_added, script.servers_max) == (1, 4)
    script.look(status([*SERVERS, "s4"], out="s1"), 0.0, 3.0)
    script.look(status(["s2", "s3", "s4"]), 0.0, 4.0)
    assert texts(script) == ["s4 starts", "ring 7: with s4", "ring 7: without s1", "s1 is empty and removed"]
    assert (script.servers_added, script.servers_removed, script.servers_max) == (1, 1, 4)


def test_a_server_that_is_not_there_any_more_is_not_killed() -> None:
    script = a_script()
    script.look(status(["s1", "s3"]), 0.0, 0.0)
    assert script.due(4.0) == []
