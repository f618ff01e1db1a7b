"""`shoal bench engine`: its flags and output.

The measurements are in `shoal.lab.bench.engine`.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from shoal.cli.output import console, figure_text, note
from shoal.errors import ConfigError
from shoal.limits import DEFAULT_LIMITS

PARTS: Final = ("throughput", "layouts", "where", "crossing")
EVENTS_MIN: Final = 100
FILTERS_MAX: Final = DEFAULT_LIMITS.engine_client_filters_max
"""One client has all filters."""
_COLUMNS: Final = {
    "subscribers": "subscribers",
    "events_per_s": "events/s",
    "deliveries_per_event": "deliveries",
    "cpu_us": "CPU us",
    "latency_ms_p50": "p50 ms",
    "latency_ms_p99": "p99 ms",
}
"""Field of a row to its column heading."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the engine. --only, --events and --filters are those of `bench pipeline` too."""
    from shoal.lab.bench import engine

    unknown = set(args.only or ()) - set(PARTS)
    if unknown:
        raise ConfigError(f"bench engine has no part {min(unknown)}", do=f"choose from {', '.join(PARTS)}")
    defaults = engine.EngineOptions()
    events = args.events or defaults.events
    if events < EVENTS_MIN:
        raise ConfigError(f"--events is {events}", do=f"give at least {EVENTS_MIN}")
    if (args.filters or 0) > FILTERS_MAX:
        raise ConfigError(f"--filters is {args.filters}", do=f"give at most {FILTERS_MAX}: one client has all of them")
    options = engine.EngineOptions(
        parts=tuple(args.only or PARTS),
        filters=args.filters or defaults.filters,
        events=events,
        timed_s=min(defaults.timed_s, defaults.timed_s * events / defaults.events),
        added=min(defaults.added, max(events // 10, 10)),
        rounds=args.rounds or defaults.rounds,
    )
    return asyncio.run(engine.measure(options, note))


def show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print the figures as tables."""
    from rich import box
    from rich.table import Table

    screen = console(args)
    machine = facts["machine"]
    screen.print(f"engine, {machine['cores']} cores, {machine['cpu']}")
    for part in PARTS:
        rows = [row for row in facts["rows"] if row["part"] == part]
        if not rows:
            continue
        table = Table(title=part, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("contender", no_wrap=True)
        shown = [name for name in _COLUMNS if any(name in row for row in rows)]
        for name in shown:
            table.add_column(_COLUMNS[name], justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row["contender"], *(figure_text(row.get(name)) for name in shown))
        screen.print(table)
        for row in rows if part in ("throughput", "layouts") else ():
            parts = ", ".join(f"{name} {used:.1f}" for name, used in row["cpu_us_per_event"].items())
            screen.print(f"CPU us of {row['contender']}: {parts}")
    screen.print(facts["workload"]["all"])
    for name, value in facts["ratios"].items():
        goal = f", goal {facts['goals'][name]}" if name in facts["goals"] else ""
        screen.print(f"{name}: {value:g}{goal}{'  MISSED' if name in facts['missed'] else ''}")
