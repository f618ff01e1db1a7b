"""The view: bars, lines, and that everything fits into a terminal of 100 by 30."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shoal.demo.audit import Tally
from shoal.demo.run import Summary
from shoal.demo.sampling import Frame, Row, Sampler, Second, percentile
from shoal.demo.script import Event
from shoal.demo.view import LiveView, line, sparkline, summary_table


def a_frame(seconds: int = 60, lost: int = 0) -> Frame:
    return Frame(
        phase="the crowd grows",
        elapsed_s=float(seconds),
        seconds=60.0,
        players_max=200,
        tiles=6,
        history=[Second(n, 3.0 * n, 20.0 * n, 1.0, 1234.5, 0.4) for n in range(seconds)],
        tally=Tally(messages=12_345, deliveries=123_456, lost=lost),
        waiting_s=0.3,
        ring_version=2,
        moves_ended=3,
        moves_under_way=1,
        servers=[Row(f"s{n}", 20_000 + n, "running", True, True, 0, None) for n in (1, 2, 3)],
        events=[Event(float(n), "bad", f"event {n}") for n in range(40)],
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
    assert any("3 channels moved, 1 on the way" in text for text in lines)


def test_a_line_is_plain_text() -> None:
    text = line(a_frame(lost=2))
    assert text.isascii()
    assert "lost 2" in text
    assert "moves 3" in text
    assert "p99 1.23 s" in text


@pytest.mark.parametrize(("lost", "verdict"), [(0, "nothing was lost"), (1, "the promise was broken")])
def test_the_summary_says_whether_the_promise_was_kept(lost: int, verdict: str) -> None:
    summary = Summary(
        players=200,
        tally=Tally(lost=lost),
        server_kills=1,
        moves_asked=4,
        moves_ended=3,
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
    sampler.sample(11.0, 5, Tally(messages=30, deliveries=60), [2.0, 1.0], [])
    sampler.sample(13.0, 6, Tally(messages=50, deliveries=160), [3.0], [])
    assert [second.messages_per_s for second in sampler.history] == [30.0, 10.0]
    assert [second.deliveries_per_s for second in sampler.history] == [60.0, 50.0]
    assert sampler.history[-1].p50_ms == 2.0
    assert percentile([], 0.5) is None
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
