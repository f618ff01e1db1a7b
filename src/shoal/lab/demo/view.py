"""How the demo looks: the live view, the line per second of a headless run, and the summary.

Owns layout, colours and texts; made for 100 columns and 30 lines, and readable with less. Reads frames; decides
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shoal.lab.demo.delivery_audit import Tally
from shoal.lab.demo.frames import DemoFrame, DemoSecond, ServerFrame
from shoal.lab.demo.run import Summary
from shoal.lab.demo.server_events import DemoEvent, EventKind
from shoal.lab.demo.timeline import SETTINGS

Figure: TypeAlias = tuple[str, str, Sequence[float | None], str]
"""A figure: its name, its value now, its history and a colour."""

SPARKS: Final = "▁▂▃▄▅▆▇█"
MARKS: Final[dict[EventKind, tuple[str, str]]] = {
    "plan": ("·", "cyan"),
    "move": ("→", "dim"),
    "bad": ("✗", "bold red"),
    "seen": ("!", "yellow"),
    "good": ("✓", "green"),
}
EVENTS_MIN: Final = 3
WIDE: Final = 100
"""Columns that the whole view needs."""
TROUBLES_MAX: Final = 5

BAR: Final = 16
"""Columns of a load bar."""
FULL_RATIO: Final = SETTINGS.high_ratio
"""Bars above this load ratio are red: the server is overloaded."""
BUSY_RATIO: Final = SETTINGS.safe_ratio
"""Bars above this load ratio are yellow."""

_PANELS_LINES: Final = 12
"""Lines of everything except figures, servers and events."""
_FIGURES_MIN: Final = 3


class LiveView:
    """The frame that is shown now, laid out for the size of the terminal."""

    def __init__(self, frame: DemoFrame) -> None:
        self.frame = frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The whole frame, with as many events as there is room for."""
        frame = self.frame
        room = console.height - _PANELS_LINES - len(frame.servers)
        figures = _figures(frame)[: max(_FIGURES_MIN, room - EVENTS_MIN)]
        yield Group(
            _head(frame),
            _crowd(frame, figures, options.max_width),
            _promise(frame),
            _servers(frame, options.max_width),
            _events(frame, max(EVENTS_MIN, room - len(figures))),
        )


def sparkline(values: Sequence[float | None], width: int, wide: int = 1) -> str:
    """Values as a row of bars, newest last, each `wide` characters wide. If there are more values than columns, each
    column shows the largest of several values, so that no peak is lost."""
    if len(values) * wide > width:
        edges = [len(values) * number // width for number in range(width + 1)]
        groups = [values[low:high] for low, high in pairwise(edges)]
        values = [max((value for value in group if value is not None), default=None) for group in groups]
        wide = 1
    top = max((value for value in values if value is not None), default=0.0)
    steps = len(SPARKS) - 1
    return "".join(
        wide * (" " if value is None else SPARKS[round(steps * value / top) if top else 0]) for value in values
    )


def _head(frame: DemoFrame) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    width = 20
    done = round(width * min(1.0, frame.elapsed_s / frame.seconds))
    clock = Text.assemble(
        ("━" * done, "cyan"),
        ("━" * (width - done), "bright_black"),
        f" {min(frame.elapsed_s, frame.seconds):3.0f} / {frame.seconds:.0f} s",
    )
    title = Text.assemble(("shoal demo", "bold cyan"), ("  a game on channels: ", ""), (frame.phase, "dim"))
    head.add_row(title, clock)
    return head


def _figures(frame: DemoFrame) -> list[Figure]:
    """Figures with their history, the most important first."""
    seconds = frame.history
    now = seconds[-1] if seconds else DemoSecond(0, 0.0, 0.0, None, None, 0.0, None, None)
    mean, most = loads(frame)
    return [
        ("players", f"{now.players:,}", [second.players for second in seconds], "cyan"),
        ("load busiest", _percent(most), [second.load_max for second in seconds], "yellow"),
        ("response p99", _ms(now.p99_ms), [_log(second.p99_ms) for second in seconds], "magenta"),
        ("load average", _percent(mean), [second.load_mean for second in seconds], "yellow"),
        ("deliveries/s", f"{now.deliveries_per_s:,.0f}", [s.deliveries_per_s for s in seconds], "green"),
        ("response p50", _ms(now.p50_ms), [_log(second.p50_ms) for second in seconds], "magenta"),
        ("processors", _percent(now.cpu_share), [second.cpu_share for second in seconds], "blue"),
    ]


def loads(frame: DemoFrame) -> tuple[float | None, float | None]:
    """The mean load ratio of the servers in the table, and the highest: the same moment as the rows."""
    ratios = [row.load.load_ratio for row in frame.servers if row.load is not None]
    return (sum(ratios) / len(ratios), max(ratios)) if ratios else (None, None)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _crowd(frame: DemoFrame, figures: Sequence[Figure], width: int) -> Panel:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=14, no_wrap=True)
    grid.add_column(width=10, justify="right", no_wrap=True, style="bold")
    grid.add_column(ratio=1, no_wrap=True)
    bars = max(10, width - 33)
    wide = max(1, int(bars / (frame.seconds + 1)))
    for name, value, values, colour in figures:
        grid.add_row(name, value, Text(sparkline(values, bars, wide), style=colour))
    title = f"{frame.players_max} players, {frame.tiles * frame.tiles} tiles, 3 updates/s each"
    return _panel(grid, title)


def _promise(frame: DemoFrame) -> Panel:
    """The players' counts: those that must stay zero first."""
    tally = frame.tally
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, value in (
        ("lost", tally.lost), ("duplicated", tally.duplicated), ("reordered", tally.reordered)
    ):  # fmt: skip
        line.append(f"{name} ").append(f"{value}", "bold red" if value else "bold green").append("   ")
    line.append("gaps reported ").append(f"{tally.gaps_reported}", "bold yellow" if tally.gaps_reported else "bold")
    late = frame.waiting_s > 1.0
    line.append("   oldest wait ").append(f"{frame.waiting_s:.1f} s", "bold yellow" if late else "bold")
    counted = f"counted by the players: {tally.messages:,} messages, {tally.deliveries:,} deliveries"
    return _panel(line, counted, "red" if _broken(tally) else "green")


def _servers(frame: DemoFrame, width: int) -> Panel:
    """The servers; a narrow terminal shows fewer columns."""
    table = Table(box=None, expand=True, header_style="dim", padding=(0, 1))
    for heading in ("server", "state", "lease", "ring", "load"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ratio", "out", "core", "clients", "restarts"):
        table.add_column(heading, no_wrap=True, justify="right")
    for row in frame.servers:
        table.add_row(*_server(row))
    if width < WIDE:
        table.columns = [column for column in table.columns if column.header not in ("lease", "core", "restarts")]
    mean, most = map(_percent, loads(frame))
    changed = f"{frame.servers_added} added, {frame.servers_removed} removed"
    return _panel(table, f"{_plural(len(frame.servers), 'server')}, {changed}; load average {mean}, busiest {most}")


def _server(row: ServerFrame) -> Iterable[RenderableType]:
    colour = "green" if row.state == "running" else "bold red"
    load = row.load
    return (
        Text(row.id, "bold"),
        Text(row.state, colour),
        Text("held", "green") if row.lease else Text("none", "yellow"),
        Text(row.ring, "green" if row.ring == "in" else "yellow"),
        Text("") if load is None else load_bar(load.load_ratio),
        "-" if load is None else _percent(load.load_ratio),
        "-" if load is None else _bytes(load.bytes_out_per_s),
        "-" if load is None else _percent(load.cpu_share),
        "-" if load is None else f"{load.connections}",
        f"{row.restarts}",
    )


def load_bar(ratio: float) -> Text:
    """A load ratio as a bar; a ratio above 1 fills it."""
    filled = round(BAR * min(max(ratio, 0.0), 1.0))
    colour = "red" if ratio > FULL_RATIO else "yellow" if ratio > BUSY_RATIO else "green"
    return Text.assemble(("█" * filled, colour), ("░" * (BAR - filled), "bright_black"))


def _events(frame: DemoFrame, lines: int) -> Panel:
    events = frame.events
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, event in enumerate(events[-lines:]):
        mark, colour = MARKS[event.kind]
        text.append("\n" if number else "").append(f"{event.at_s:6.1f} s ", "dim")
        text.append(f"{mark} ", colour).append(event.text, colour if event.kind == "bad" else "")
    moves = f"{_plural(frame.moves_ended, 'channel')} moved" + f", {frame.moves_under_way} on the way" * (
        frame.moves_under_way > 0
    )
    plans = (
        f"ring version {frame.ring_version}, {_plural(frame.proposals, 'plan')}, {moves}, {frame.replicated} replicated"
    )
    return _panel(text, plans, lines=lines)


def _panel(content: RenderableType, title: str, colour: str = "bright_black", lines: int | None = None) -> Panel:
    return Panel(
        content,
        title=Text(title, "dim"),
        title_align="left",
        border_style=colour,
        padding=(0, 1),
        height=None if lines is None else lines + 2,
    )


def text_lines(frame: DemoFrame) -> str:
    """The last second in two lines of plain text, for 80 columns."""
    second = frame.history[-1]
    tally = frame.tally
    up = sum(row.lease and row.state == "running" for row in frame.servers)
    faults = {"duplicated": tally.duplicated, "reordered": tally.reordered, "gaps": tally.gaps_reported}
    return (
        f"{frame.elapsed_s:5.1f} s  players {second.players:3}  msg/s {second.messages_per_s:5.0f}  "
        f"deliveries/s {second.deliveries_per_s:6.0f}  p99 {_ms(second.p99_ms)}  servers {up}\n"
        f"         load {_percent(second.load_mean)} busiest {_percent(second.load_max)}  plans {frame.proposals}  "
        f"moves {frame.moves_ended}  cpu {100 * second.cpu_share:.0f} %  lost {tally.lost}"
        + "".join(f"  {name} {count}" for name, count in faults.items() if count)
    )


def event_line(event: DemoEvent) -> str:
    """An event in one line."""
    return f"{event.at_s:5.1f} s  * {event.text}"


def summary_table(summary: Summary) -> RenderableType:
    """The summary as a table."""
    tally = summary.tally
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(style="dim")
    kills = "killed, noticed, restarted" if summary.server_kills else "no server was killed"
    table.add_row("seconds", f"{summary.seconds:g}", "interrupted" if summary.interrupted else "")
    table.add_row("players", f"{summary.players:,}", "each with its own bus")
    table.add_row("servers", f"{summary.servers}", f"at the end, {summary.servers_most} at most")
    table.add_row("servers added", f"{summary.servers_added}", "by the balancer, as the load grew")
    table.add_row("servers removed", f"{summary.servers_removed}", "drained first")
    table.add_row("server kills", f"{summary.server_kills}", kills)
    table.add_row("plans", f"{summary.proposals}", "by the balancer, with shorter waits than by default")
    table.add_row("moves", f"{summary.moves_ended}", f"of {summary.moves_asked} channel moves that were planned")
    table.add_row("replicated", f"{summary.replicated}", "channels that were placed on several servers")
    table.add_row("load windows", str(summary.windows), _windows_text(summary))
    table.add_row("messages", f"{tally.messages:,}")
    table.add_row("deliveries", f"{tally.deliveries:,}")
    table.add_row("response p50", _ms(summary.p50_ms), "from a player's update to its delivery to that player")
    table.add_row("response p99", _ms(summary.p99_ms), "including the time after the kill")
    for name, value, meaning in (
        ("lost", tally.lost, "published after a player had subscribed, never delivered"),
        ("duplicated", tally.duplicated, "delivered twice to one subscription"),
        ("reordered", tally.reordered, "delivered after a later update of the same player"),
    ):
        table.add_row(name, Text(f"{value}", "bold red" if value else "bold green"), meaning)
    table.add_row("gaps reported", f"{tally.gaps_reported}", "losses that Shoal reported to the players")
    cpu = f"{100 * summary.cpu_share_mean:.0f} %"
    table.add_row("processors", cpu, f"on average; {100 * summary.cpu_share_max:.0f} % in the busiest second")
    notes = [Text(f"gaps: {count} x {reason}", "yellow") for reason, count in summary.gap_reasons.items()]
    notes += [Text(trouble, "red") for trouble in summary.troubles[:TROUBLES_MAX]]
    verdict = (
        Text("nothing was lost, duplicated or reordered", "bold green")
        if summary.holds
        else Text("the promise was broken", "bold red")
    )
    return Group(table, *notes, verdict)


def _windows_text(summary: Summary) -> str:
    """Where load windows were folded, and since when."""
    if summary.spark_at_s is None:
        return summary.windows_why
    handed = f"handed over to Spark after {summary.spark_at_s:g} s"
    return handed if summary.windows == "spark" else f"{handed}, and back: {summary.windows_why}"


def _broken(tally: Tally) -> bool:
    return bool(tally.lost or tally.duplicated or tally.reordered)


def _log(value_ms: float | None) -> float | None:
    """The height of a bar for a time between a millisecond and several seconds."""
    return None if value_ms is None else math.log1p(value_ms)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def _bytes(value: float) -> str:
    for unit in ("B/s", "kB/s"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} MB/s"
