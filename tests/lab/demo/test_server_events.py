"""Events about servers: the kill and its recovery, servers that join and leave."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.child import ChildStatus
from shoal.cluster.status import ClusterStatus, ServerStatus
from shoal.lab.demo.server_events import ServerEvents

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


def make_events(kill_at: float = 4.0, servers: Sequence[str] = SERVERS) -> ServerEvents:
    return ServerEvents([*servers], kill_at, 0.0)


def texts(events: ServerEvents) -> list[str]:
    return [event.text for event in events.events]


def test_one_server_is_killed_once() -> None:
    events = make_events()
    assert events.due(3.9) == []
    assert events.due(4.0) == ["s2"]
    assert events.due(9.0) == []
    assert events.kills == 1
    assert make_events(servers=["s1"]).due(4.0) == ["s1"]


def test_no_server_is_killed_after_the_end() -> None:
    events = make_events()
    events.finish()
    assert events.due(9.0) == []
    assert events.kills == 0


def test_a_kill_is_noticed_restarted_and_healed() -> None:
    events = make_events()
    events.look(status(), 3.9, 3.9)
    assert events.due(4.0) == ["s2"]
    events.look(status(), 3.9, 4.01)
    events.look(status(down="s2"), 3.9, 4.1)
    events.look(status(reborn="s2"), 3.9, 4.5)
    events.look(status(reborn="s2"), 4.9, 5.0)
    assert len(events.events) == 3
    events.look(status(reborn="s2"), 5.1, 5.2)
    assert texts(events) == [
        "s2 killed (kill -9)",
        "noticed: s2 ended (killed by SIGKILL)",
        "restarted: s2 runs again, 0.5 s after it was killed",
        "healed: all updates are back, 1.2 s after s2 was killed",
    ]


def test_an_outage_ends_when_the_server_has_left_the_ring() -> None:
    events = make_events()
    events.look(status(), 4.0, 4.0)
    events.due(4.0)
    events.look(status(down="s2", out="s2"), 4.0, 8.0)
    events.look(status(down="s2", out="s2"), 8.6, 8.7)
    assert "s2's lease expired: players no longer use it" in texts(events)
    assert texts(events)[-2:] == ["ring 7: without s2", "healed: all updates are back, 4.7 s after s2 was killed"]


def test_servers_that_join_and_leave_are_shown_and_counted() -> None:
    events = make_events()
    events.look(status(), 0.0, 0.0)
    events.look(status([*SERVERS, "s4"], out="s4"), 0.0, 1.0)
    assert events.servers_added == 0
    events.look(status([*SERVERS, "s4"]), 0.0, 2.0)
    assert (events.servers_added, events.servers_max) == (1, 4)
    events.look(status([*SERVERS, "s4"], out="s1"), 0.0, 3.0)
    events.look(status(["s2", "s3", "s4"]), 0.0, 4.0)
    assert texts(events) == ["s4 starts", "ring 7: with s4", "ring 7: without s1", "s1 is empty and removed"]
    assert (events.servers_added, events.servers_removed, events.servers_max) == (1, 1, 4)


def test_a_removed_server_is_not_killed() -> None:
    events = make_events()
    events.look(status(["s1", "s3"]), 0.0, 0.0)
    assert events.due(4.0) == []
