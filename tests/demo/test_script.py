"""The plot: what befalls whom when, and what is told of it."""

from __future__ import annotations

import msgspec

from shoal.cluster.child import ChildStatus
from shoal.cluster.local import ClusterStatus, ServerStatus
from shoal.demo.script import Script

SERVERS = ["s1", "s2", "s3"]


def process(name: str, state: str = "running", uptime_s: float = 100.0) -> ChildStatus:
    pid = 1 if state == "running" else None
    return ChildStatus(name, "server", state, pid, uptime_s, 0, False, False, "killed by SIGKILL")


def status(*, down: str = "", reborn: str = "", left: str = "", ring_version: int = 1) -> ClusterStatus:
    return ClusterStatus(
        cluster="c",
        state_dir="",
        started_at=0.0,
        ready=True,
        coordinator="",
        contact=True,
        ring_version=ring_version,
        servers=tuple(ServerStatus(name, "h", 1, name != left, name != left) for name in SERVERS),
        processes=tuple(
            process(name, "waiting" if name == down else "running", 0.1 if name == reborn else 100.0)
            for name in SERVERS
        ),
        trouble=None,
    )


def texts(script: Script) -> list[str]:
    return [event.text for event in script.events]


def test_a_short_demo_has_one_kill_and_a_long_one_two() -> None:
    short = Script(SERVERS, 8.0, 0.0)
    assert short.due(3.0) == []
    assert short.due(3.3) == [("kill", "s2")]
    assert short.due(8.0) == []
    long = Script(SERVERS, 60.0, 0.0)
    assert long.due(24.0) == [("kill", "s2")]
    assert long.due(36.0) == [("hold", "s3")]
    assert long.kills == 2
    few = Script(SERVERS[:1], 60.0, 0.0)
    assert few.due(60.0) == [("kill", "s1")]


def test_a_kill_is_noticed_mended_and_healed() -> None:
    script = Script(SERVERS, 10.0, 0.0)
    script.look(status(), 3.9, 3.9)
    assert script.due(4.0) == [("kill", "s2")]
    script.look(msgspec.structs.replace(status(), processes=tuple(map(process, SERVERS))), 3.9, 4.01)
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


def test_a_server_that_is_held_down_is_released_when_the_ring_has_left_it() -> None:
    script = Script(SERVERS, 20.0, 0.0)
    script.look(status(), 0.0, 0.0)
    assert script.due(12.0) == [("kill", "s2"), ("hold", "s3")]
    script.look(status(down="s3", left="s3", ring_version=2), 12.0, 15.5)
    assert script.due(17.4) == []
    assert script.due(17.5) == [("release", "s3")]
    script.look(status(ring_version=3), 12.0, 18.5)
    assert "ring 2: without s3" in texts(script)
    assert texts(script)[-2:] == ["s3 holds its lease again", "ring 3: with s3 again"]


def test_the_end_releases_who_is_held_down_and_calls_the_rest_off() -> None:
    script = Script(SERVERS, 20.0, 0.0)
    script.look(status(), 0.0, 0.0)
    script.due(12.0)
    script.look(status(down="s3"), 11.0, 12.2)
    assert script.finish(12.5) == [("release", "s3")]
    early = Script(SERVERS, 20.0, 0.0)
    assert early.finish(1.0) == []
    assert early.due(20.0) == []
