"""`shoal sim`: a simulation campaign of a protocol.

Owns the command's flags and output. The campaign is in `shoal.lab.sim.campaign`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from shoal.cli.output import Subparsers, add_command, note, result


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "sim",
        run,
        "run a simulation campaign of a protocol, by seed",
        example="shoal sim channels --seeds 1000 --json\n"
        "shoal sim channels --seeds 1 --from-seed 17  # replay\n"
        "shoal sim channels --seeds 200 --break heal  # finds violations, exits 1\n"
        "shoal sim channels --break list\n"
        "shoal sim moves --seeds 200 --break widen-before-switch\n"
        "shoal sim balancer --seeds 300 --json\n"
        "shoal sim queue --seeds 200 --break fencing",
    )
    parser.add_argument(
        "protocol",
        choices=["channels", "moves", "recording", "balancer", "queue", "engine"],
        help="protocol to simulate",
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="number of seeds (default 100)")
    parser.add_argument("--from-seed", type=int, default=0, metavar="K", help="first seed (default 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per core)")
    parser.add_argument(
        "--break", dest="broken", metavar="NAME", help="disable one rule of the protocol; `list` lists them"
    )


def run(args: argparse.Namespace) -> int:
    """Run the campaign; 0 only if the protocol held and every corner case occurred."""
    from shoal.channels.telemetry import loop_image
    from shoal.lab.sim.protocols import PROTOCOLS

    loop_image.ensure()
    breaks = list(PROTOCOLS[args.protocol].breaks)
    if args.broken == "list":
        result(args, {"protocol": args.protocol, "breaks": breaks}, "\n".join(breaks))
        return 0
    if args.broken is not None:
        args.broken = args.broken.replace("-", "_")
    if args.broken is not None and args.broken not in breaks:
        note(f"shoal sim: unknown break {args.broken!r}; known breaks: {', '.join(breaks)}")
        return 2
    if args.seeds < 1 or (args.workers is not None and args.workers < 1):
        note("shoal sim: --seeds and --workers must be at least 1")
        return 2
    outcome = _run_with_progress(args)
    facts = outcome.facts()
    if args.broken:
        facts["break"] = args.broken
    result(args, facts, _text(facts))
    for violation in facts["violations"]:
        note(violation)
    for seed in facts["failing_seeds"][:5]:
        words = f" --break {args.broken}" if args.broken else ""
        note(f"replay: shoal sim {args.protocol} --seeds 1 --from-seed {seed}{words}")
    return 0 if outcome.holds else 1


def _run_with_progress(args: argparse.Namespace) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from shoal.lab.sim.campaign import run_campaign
    from shoal.lab.sim.protocols import PROTOCOLS

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"sim {args.protocol}", total=args.seeds)

        def progress(done: int, messages: int, failing: int) -> None:
            bar.update(task, completed=done, description=f"{messages:,} messages, {failing} failing seeds")

        return run_campaign(
            PROTOCOLS[args.protocol],
            args.seeds,
            args.from_seed,
            args.broken,
            progress,
            stop_at_first=bool(args.broken),
            workers=args.workers,
        )


def _text(facts: dict[str, Any]) -> str:
    names = (
        "seeds",
        "messages",
        "deliveries",
        "moves",
        "faults",
        "lost",
        "duplicated",
        "reordered",
        "gaps_reported",
        "seconds",
    )
    lines = [f"{name:>14}  {facts[name]:,}" for name in names]
    lines.append(f"{'violations':>14}  {len(facts['violations'])}")
    return "\n".join(lines)
