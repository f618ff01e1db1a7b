"""The view: bars, lines, and layouts for small terminals."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from shoal.cluster.child import ChildStatus
from shoal.cluster.server_meter import ServerSecond
from shoal.cluster.status import ClusterStatus, ServerStatus
from shoal.lab.demo.delivery_audit import Tally
from shoal.lab.demo.frames import REPORT_S_MAX, DemoFrame, DemoSecond, Sampler, ServerFrame, percentile, server_rows
from shoal.lab.demo.run import Summary
from shoal.lab.demo.server_events import DemoEvent
from shoal.lab.demo.view import BAR, LiveView, load_bar, sparkline, summary_table, text_lines


def load(server: str, ratio: float) -> ServerSecond:
    return ServerSecond(server, 100, ratio, 400_000 * ratio, 900, 0.05, 212)


def a_frame(seconds: int = 60, lost: int = 0) -> DemoFrame:
    return DemoFrame(
        phase="the crowd grows",
        elapsed_s=float(seconds),
        seconds=60.0,
        players_max=200,
        tiles=6,
        history=[DemoSecond(n, 3.0 * n, 20.0 * n, 1.0, 1234.5, 0.4, 0.5, 0.91) for n in range(seconds)],
        tally=Tally(messages=12_345, deliveries=123_456, lost=lost),
        waiting_s=0.3,
        ring_version=2,
        moves_ended=3,
        moves_under_way=1,
        proposals=4,
        replicated=1,
        servers_added=4,
        servers_removed=0,
        servers=[ServerFrame(f"s{n}", "running", True, "drained", 0, load(f"s{n}", n / 6)) for n in range(1, 7)],
        events=[DemoEvent(float(n), "bad", f"event {n}") for n in range(40)],
    )


def printed(thing: object, width: int = 100, height: int = 30) -> str:
    out = io.StringIO()
    Console(file=out, width=width, height=height, no_color=True).print(thing)
    return out.getvalue()


def test_a_sparkline_keeps_peaks_and_its_width() -> None:
    assert sparkline([0, 1, 2, 7], 10) == "▁▂▃█"
    assert sparkline([0, 7], 10, wide=3) == "▁▁▁███"
    assert sparkline([None, 0.0], 10) == " ▁"
    assert len(sparkline([1.0] * 100, 10)) == 10
    assert "█" in sparkline([1.0] * 57 + [9.0] + [1.0] * 42, 10)


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24)])
def test_the_live_view_fits(width: int, height: int) -> None:
    lines = printed(LiveView(a_frame()), width, height).splitlines()
    assert len(lines) < height + (height == 24)
    assert max(map(len, lines)) <= width
    assert any("event 39" in text for text in lines)
    assert any("lost 0" in text for text in lines)
    assert any("4 plans, 3 channels moved, 1 on the way, 1 replicated" in text for text in lines)
    assert any("6 servers, 4 added, 0 removed; load average 58 %, busiest 100 %" in text for text in lines)
    assert any("players" in text for text in lines)
    assert any("load busiest" in text for text in lines)
    assert not any("…" in text for text in lines)


def test_the_loads_above_the_servers_are_those_of_the_servers() -> None:
    """The history ends up to a second earlier: "busiest 91 %" stood above "s1 137 %"."""
    frame = a_frame()
    frame = replace(frame, proposals=1, servers=[ServerFrame("s1", "running", True, "in", 0, load("s1", 1.37))])
    text = printed(LiveView(frame))
    assert "1 server, 4 added, 0 removed; load average 137 %, busiest 137 %" in text
    assert "91 %" not in text
    assert "ring version 2, 1 plan, " in text


def test_a_load_bar_shows_how_full_a_server_is() -> None:
    assert load_bar(0.5).plain == "█" * (BAR // 2) + "░" * (BAR // 2)
    assert load_bar(1.3).plain == "█" * BAR
    colours = [str(load_bar(ratio).spans[0].style) for ratio in (0.5, 0.75, 0.9)]
    assert colours == ["green", "yellow", "red"]


def test_a_second_is_plain_text_in_80_columns() -> None:
    text = text_lines(a_frame(lost=2))
    assert text.isascii()
    assert "lost 2" in text
    assert "moves 3" in text
    assert "load 50 % busiest 91 %  plans 4" in text
    assert "p99 1.23 s" in text
    assert "duplicated" not in text  # only faults that occurred
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("lost", "verdict"), [(0, "nothing was lost"), (1, "the promise was broken")])
def test_the_summary_shows_whether_the_promise_was_kept(lost: int, verdict: str) -> None:
    summary = Summary(
        players=200,
        tally=Tally(lost=lost),
        server_kills=1,
        moves_asked=4,
        moves_ended=3,
        proposals=5,
        replicated=1,
        servers_added=4,
        servers_removed=2,
        servers_most=6,
        p50_ms=0.5,
        p99_ms=None,
        seconds=60.0,
        servers=3,
        ring_version=1,
        cpu_share_mean=0.5,
        cpu_share_max=0.7,
        interrupted=False,
        events=[],
        gap_reasons={},
        troubles=[],
    )
    assert summary.holds == (not lost)
    assert verdict in printed(summary_table(summary))
    assert "of 4 channel moves" in printed(summary_table(summary))


def test_a_second_is_what_happened_since_the_last_one() -> None:
    sampler = Sampler(10.0)
    sampler.sample(11.0, 5, Tally(messages=30, deliveries=60), [2.0, 1.0], [], [])
    sampler.sample(13.0, 6, Tally(messages=50, deliveries=160), [3.0], [], [0.2, 0.6])
    assert [second.messages_per_s for second in sampler.history] == [30.0, 10.0]
    assert [second.deliveries_per_s for second in sampler.history] == [60.0, 50.0]
    assert sampler.history[-1].p50_ms == 2.0
    assert [(second.load_mean, second.load_max) for second in sampler.history] == [(None, None), (0.4, 0.6)]
    assert percentile([], 0.5) is None
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0


def test_a_row_shows_the_state_of_a_server() -> None:
    def server(name: str, in_ring: bool) -> ServerStatus:
        return ServerStatus(name, "h", 1, in_ring, in_ring)

    processes = tuple(
        ChildStatus(name, "server", "running", 1, 100.0, 2, False, False, "") for name in ("s1", "s2", "s3", "s4")
    )
    servers = (server("s1", True), server("s2", True), server("s3", False), server("s4", False), server("s5", False))
    status = ClusterStatus("c", "", 0.0, True, "", True, 1, servers, processes, None)
    loads = {name: load(name, 0.5) for name in ("s1", "s2", "s4")}
    found = {row.id: row for row in server_rows(status, loads, {"s2"}, 101.0)}
    assert [found[name].ring for name in ("s1", "s2", "s3", "s4")] == ["in", "drained", "joins", "out"]
    assert (found["s1"].load, found["s4"].load) == (loads["s1"], None)
    assert (found["s1"].restarts, found["s5"].state) == (2, "ends")
    late = server_rows(status, loads, (), 101.0 + REPORT_S_MAX)
    assert all(row.load is None for row in late)
