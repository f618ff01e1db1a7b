"""`shoal bench`: side-by-side benchmarks.

Owns the flags and the output. The measurements are in `shoal.lab.bench`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from shoal.cli import bench_engine, bench_match, bench_pipeline, bench_queue, bench_recording
from shoal.cli.numbers import positive, positive_int
from shoal.cli.output import Subparsers, add_command, console, figure_text, figures_table, note, result
from shoal.lab.bench import channels, plan

Facts: TypeAlias = dict[str, Any]


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "bench",
        run_bench,
        "run a side-by-side benchmark",
        example="shoal bench channels\nshoal bench plan --channels 1000000 --servers 1000 --json\n"
        "shoal bench match --workload hard --subscriptions 100000\nshoal bench quotes --quotes stockquotes.tar.gz\n"
        "shoal bench pipeline --only match --events 1000000\nshoal bench recording --json\n"
        "shoal bench queue --only throughput --messages 20000\nshoal bench engine --json",
        description="channels: the bus and other clients, on a separate cluster on this machine.\n"
        "plan: one decision of every policy for the same channels and servers.\n"
        "match: the filter index and naive Python, NumPy, Polars and DuckDB, or with changing subscriptions.\n"
        "quotes: subscriptions from the templates of the PADRES paper against every stock quote.\n"
        "pipeline: each Spark job and the same function on one core.\n"
        "recording: the rate that the recorder of a server sustains, and the burst that it absorbs.\n"
        "queue: queues, Redis Streams, Dramatiq and arq on durable stores; fails if a goal is missed.\n"
        "engine: emit and match beside channels, with and without where=; fails if a goal is missed.",
    )
    parser.add_argument("name", choices=tuple(RUNS), metavar="NAME", help=" or ".join(RUNS))
    parser.add_argument(
        "--rounds",
        type=positive_int,
        metavar="N",
        help=f"runs per contender (default {channels.ChannelsOptions().rounds}, others: 3)",
    )
    parser.add_argument(
        "--run-seconds",
        type=positive,
        metavar="S",
        help=f"channels, match: approximate run length in s (default {channels.ChannelsOptions().run_s:g}, match: 0.5)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="plan, match, quotes: seed of the load (default 1)"
    )
    _add_channels(parser.add_argument_group("channels"))
    _add_plan(parser.add_argument_group("plan"))
    bench_match.add_flags(parser.add_argument_group("match and quotes"))
    bench_pipeline.add_flags(parser.add_argument_group("pipeline"))
    bench_recording.add_flags(parser.add_argument_group("recording"))
    bench_queue.add_flags(parser.add_argument_group("queue"))


def _add_channels(parser: argparse._ArgumentGroup) -> None:
    defaults = channels.ChannelsOptions()
    parser.add_argument(
        "--payload-bytes",
        type=positive_int,
        default=defaults.payload_bytes,
        metavar="N",
        help=f"payload size in bytes (default {defaults.payload_bytes})",
    )
    parser.add_argument(
        "--tasks",
        type=positive_int,
        default=defaults.tasks,
        metavar="N",
        help=f"concurrent publishing tasks, except for the fan-out (default {defaults.tasks})",
    )
    parser.add_argument(
        "--connections",
        type=positive_int,
        default=defaults.connections,
        metavar="N",
        help=f"subscribed connections of the fan-out (default {defaults.connections})",
    )
    parser.add_argument("--tls", action="store_true", help="use TLS for all contenders, the server and its agent")


def _add_plan(parser: argparse._ArgumentGroup) -> None:
    defaults = plan.PlanOptions()
    parser.add_argument(
        "--channels",
        type=positive_int,
        default=defaults.channels,
        metavar="N",
        help=f"number of channels (default {defaults.channels})",
    )
    parser.add_argument(
        "--servers",
        type=positive_int,
        default=defaults.servers,
        metavar="N",
        help=f"number of servers (default {defaults.servers})",
    )


def run_bench(args: argparse.Namespace) -> int:
    """Run the benchmark and show the figures."""
    measure, show = RUNS[args.name]
    facts = measure(args)
    if not args.json:
        show(args, facts)
    result(args, facts, "")
    return 1 if facts.get("missed") else 0


def _measure_channels(args: argparse.Namespace) -> Facts:
    options = channels.ChannelsOptions(
        rounds=args.rounds or channels.ChannelsOptions().rounds,
        run_s=args.run_seconds or channels.ChannelsOptions().run_s,
        payload_bytes=args.payload_bytes,
        tasks=args.tasks,
        connections=args.connections,
        tls=args.tls,
    )
    return asyncio.run(channels.measure(options, note))


def _measure_plan(args: argparse.Namespace) -> Facts:
    options = plan.PlanOptions(
        channels=args.channels,
        servers=args.servers,
        rounds=args.rounds or plan.PlanOptions().rounds,
        seed=args.seed,
    )
    return plan.measure(options, note)


def _show_plan(args: argparse.Namespace, facts: Facts) -> None:
    screen = console(args)
    machine = facts["machine"]
    headings = ("policy", "s", "CPU s", "moves", "highest\nratio", "of\nbound")
    table = figures_table(f"plan, {machine['cores']} cores, {machine['cpu']}", headings)
    for row in facts["rows"]:
        share = facts["ratios"][f"max_load_of_{row['contender']}_vs_bound"]
        cells = (f"{row['seconds']:.2f}", f"{row['cpu_seconds']:.2f}", f"{row['moves']:,.0f}")
        table.add_row(row["contender"], *cells, f"{row['max_load_ratio']:.3f}", f"{share:.2f}")
    screen.print(table)
    screen.print(facts["workload"]["all"])
    screen.print(f"Before: {facts['max_load_ratio_before']:.2f}. Lower bound of any placement: {facts['bound']:.3f}.")


def _show_channels(args: argparse.Namespace, facts: Facts) -> None:
    from rich.table import Table

    screen = console(args)
    machine = facts["machine"]
    table = Table(title=f"channels, {machine['cores']} cores, {machine['cpu']}", box=None, padding=(0, 2, 0, 0))
    for heading in ("workload", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("sent/s", "taken/s", "pub. us", "sub. us", "p50 us", "p99 us"):
        table.add_column(heading, justify="right", no_wrap=True)
    *rows, agent = facts["rows"]
    names = ("messages_per_s", "deliveries_per_s", "cpu_us_publisher", "cpu_us_subscriber")
    for row in rows:
        cells = [figure_text(row.get(name)) for name in (*names, "latency_us_p50", "latency_us_p99")]
        table.add_row(row["workload"], row["contender"], *cells)
    screen.print(table)
    screen.print("pub. us, sub. us: CPU time of the publisher per message and of the subscriber per received message\n")
    ratios = Table(title="the bus compared to the others", title_justify="left", box=None, padding=(0, 2, 0, 0))
    ratios.add_column("ratio")
    ratios.add_column("", justify="right")
    for name, value in facts["ratios"].items():
        ratios.add_row(name, f"{value:.2f}")
    screen.print(ratios)
    screen.print(
        f"The agent used {agent['cpu_us_agent']:.2f} us of CPU per observed message at "
        f"{agent['messages_per_s']:,.0f} messages/s and {'kept up' if agent['kept_up'] else 'did not keep up'}; "
        f"the server used {agent['cpu_us_server']:.2f} us, {agent['cpu_us_server_without_agent']:.2f} without it."
    )


RUNS: Final[dict[str, tuple[Callable[[argparse.Namespace], Facts], Callable[[argparse.Namespace, Facts], None]]]] = {
    "channels": (_measure_channels, _show_channels),
    "plan": (_measure_plan, _show_plan),
    "match": (bench_match.measure_match, bench_match.show),
    "quotes": (bench_match.measure_quotes, bench_match.show),
    "pipeline": (bench_pipeline.measure, bench_pipeline.show),
    "recording": (bench_recording.measure, bench_recording.show),
    "queue": (bench_queue.measure, bench_queue.show),
    "engine": (bench_engine.measure, bench_engine.show),
}
"""Benchmark name to its measuring and its display function."""
