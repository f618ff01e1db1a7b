"""`shoal soak`: the simulator's checks against real processes on real servers, optionally with faults.

Owns the command's flags and output. The runs are in `shoal.lab.soak.run`, `shoal.lab.soak.balancer_round`,
`shoal.lab.soak.hostile_round`, `shoal.lab.soak.redis_round`, `shoal.lab.soak.pipeline_round`,
`shoal.lab.soak.queue_round` and `shoal.lab.soak.engine_round`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from shoal import logs
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.lab.soak.balancer_round import BalancedOptions
    from shoal.lab.soak.engine_round import EngineSoakOptions
    from shoal.lab.soak.hostile_round import HostileOptions
    from shoal.lab.soak.outcome import BaseOutcome, SoakOptions
    from shoal.lab.soak.queue_round import QueueSoakOptions
    from shoal.lab.soak.rounds import RoundProgress, Tell

SERVERS_MAX = 64
SUBSCRIBERS = 200
SUBSCRIBERS_MIN = 4
SUBSCRIBERS_MAX = 2000
SECONDS_MIN = 2.0
FREEZE_SECONDS_MIN = 15.0
"""A server that is frozen needs some seconds to leave the ring and to come back."""
SECONDS = {
    "channels": 60.0,
    "moves": 60.0,
    "hot-channel": 30.0,
    "scale-out": 45.0,
    "hostile": 60.0,
    "redis": 40.0,
    "pipeline": 90.0,
    "queue": 90.0,
    "engine": 60.0,
}
QUEUE_OPTIONS = {"consumers": (8, 1, 64), "keys": (200, 1, 100_000), "kills": (40, 0, 1000)}
"""Options of `soak queue`: default, least and most."""
QUEUE_MOVES_MAX = 1000
ENGINE_OPTIONS = {"filters": (100_000, 100, 1_000_000), "rate": (2000, 20, 20_000)}
"""Options of `soak engine`: default, least and most."""
ENGINE_CHANGES_MAX = 1000
HOSTILE_SERVERS = 2
HOSTILE_SUBSCRIBERS = 40
SURGE_SECONDS_MIN = 15.0
SURGE_SECONDS_MAX = 120.0
"""Rounds with a balancer are not divided, so their logs grow with their length."""
SCALE_OUT_TO = 8
MOVES = 300
MOVES_MAX = 100_000
BURST_MAX = 5000


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "soak",
        run,
        "run the same checks against real processes, optionally with faults",
        description="Start a separate cluster, load it with publishers and subscribers, inject the requested "
        "faults, and check the logs of the applications. Exit status 0 only if nothing was lost, duplicated "
        "or reordered without a report, and every expected corner case occurred.\n"
        "moves: the same load while channels move between servers and are replicated; reports latency in quiet "
        "time and during moves. With --burst, that many separate channels move at once instead.\n"
        "hot-channel: one channel outgrows its server; the balancer must replicate it within 5 s. Then measures "
        "what one channel carries on all servers, relative to one server.\n"
        "scale-out: the load of all channels exceeds the servers' capacity; with up to --to servers it must be "
        "balanced within 30 s, and no channel may move twice.\n"
        "hostile: clients with a valid password forge, flood and stall beside the load. Nothing may be lost, no "
        "server may leave the ring, no gap may be false, and agents must stay small. Each attack follows harmless "
        "traffic of the same rate; latency during attacks may be 1.5 times as high.\n"
        "redis: redis-py's client and shoal.redis make the same calls while their server is frozen and while their "
        "cluster is dead. Calls must end in the same way, and dropped subscribers must not stay subscribed.\n"
        "pipeline: Spark reads recorded channels into Parquet, event-time windows and an archive while channels move, "
        "a server joins, the driver is killed and a server is killed. Nothing owed may be missing, doubled or late.\n"
        "queue: consumers, producers, store agents and the store are killed while a queue is used; with --moves its "
        "shards move between two stores. Every accepted message must be processed, in order per key, by one "
        "consumer at a time, and only those of killed consumers may come twice.\n"
        "engine: events are matched against many filters; with --kill the engine's processes are killed in turn. "
        "Every event must arrive at every reader with a matching filter, once and in order, and deliveries must "
        "continue within 3 s of a kill.",
        example="shoal soak channels --servers 4 --subscribers 200 --seconds 60 --json\n"
        "shoal soak channels --seconds 30 --kill-agents\n"
        "shoal soak channels --seconds 30 --kill-server --seed 7\n"
        "shoal soak channels --freeze --kill-coordinator --seconds 60 --json\n"
        "shoal soak moves --servers 4 --subscribers 200 --moves 300 --seconds 60 --json\n"
        "shoal soak moves --burst 1000 --seconds 20\n"
        "shoal soak hot-channel --servers 4 --json\n"
        "shoal soak scale-out --servers 4 --to 8 --json\n"
        "shoal soak hostile --seconds 60 --json\n"
        "shoal soak hostile --attack hellos --attack large --seconds 20\n"
        "shoal soak redis --json\n"
        "shoal soak pipeline --seconds 90 --json\n"
        "shoal soak queue --consumers 8 --keys 200 --kills 40 --seconds 90 --json\n"
        "shoal soak queue --moves 20 --seconds 60\n"
        "shoal soak engine --kill --seconds 60 --json",
    )
    parser.add_argument("protocol", choices=[*SECONDS], metavar="SCENARIO", help=", ".join(SECONDS))
    parser.add_argument(
        "--servers", type=int, metavar="N", help=f"number of servers (default 4; hostile {HOSTILE_SERVERS})"
    )
    parser.add_argument(
        "--subscribers",
        type=int,
        metavar="N",
        help=f"channels, moves, hostile: number of subscribers (default {SUBSCRIBERS}; hostile {HOSTILE_SUBSCRIBERS})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="duration of the load in s (default "
        + ", ".join(f"{name} {default:g}" for name, default in SECONDS.items())
        + ")",
    )
    parser.add_argument(
        "--to", type=int, metavar="N", help=f"scale-out: maximum number of servers (default {SCALE_OUT_TO})"
    )
    parser.add_argument("--moves", type=int, metavar="N", help=f"moves, queue: number of moves (default {MOVES}, 0)")
    parser.add_argument("--burst", type=int, metavar="N", help="moves: move this many channels at once instead")
    for name, (default, _, _) in QUEUE_OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"queue: number of {name} (default {default})")
    for name, (default, _, _) in ENGINE_OPTIONS.items():
        what = "number of filters" if name == "filters" else "events in a second"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"engine: {what} (default {default})")
    parser.add_argument("--kill", action="store_true", help="engine: kill processes of the engine in turn")
    parser.add_argument(
        "--scale", type=int, metavar="N", help="engine: change the numbers of operators N times (default 0)"
    )
    parser.add_argument(
        "--attack", action="append", metavar="NAME", help="hostile: run only this attack; may be repeated (default all)"
    )
    parser.add_argument("--kill-agents", action="store_true", help="keep killing agents")
    parser.add_argument("--kill-server", action="store_true", help="kill servers from time to time")
    parser.add_argument("--kill-coordinator", action="store_true", help="kill the coordinator from time to time")
    parser.add_argument("--tls", action="store_true", help="channels, moves: use TLS on all connections")
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="channels: freeze servers and agents until they have left the ring; reports false gaps and pauses",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="seed of load and faults; real processes do not repeat exactly (default 1)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the soak; 0 only if every promise was kept and every expected corner case occurred."""
    work = _work(args)
    if args.setting_sources["log_level"] == "default":  # the cluster's own log would fill the screen
        logs.configure(level="error", format=args.settings.log_format)
    outcome = _run_with_progress(work, _seconds(args))
    facts = outcome.facts()
    result(args, facts, _text(facts))
    for violation in facts["violations"]:
        note(violation)
    for directory in outcome.kept:
        note(f"the logs of the round are in {directory}")
    return 0 if outcome.holds else 1


def _work(args: argparse.Namespace) -> Callable[[Tell], BaseOutcome]:
    """Return the run for the arguments; raises ConfigError if they are invalid."""
    if args.protocol == "hostile":
        from shoal.lab.soak.hostile_round import run_hostile

        hostile = _hostile_options(args)
        return lambda tell: asyncio.run(run_hostile(hostile, tell))
    if args.protocol == "redis":
        from shoal.lab.soak.redis_round import run_redis

        _refuse_others(args)
        return lambda tell: asyncio.run(run_redis(args.settings.limits, tell))
    if args.protocol == "pipeline":
        from shoal.lab.soak.pipeline_round import PipelineSoakOptions, run_pipeline

        _refuse_others(args, keep=("seconds",))
        seconds = _checked_seconds(args)
        pipeline = PipelineSoakOptions(seconds=seconds, seed=args.seed, limits=args.settings.limits)
        return lambda tell: asyncio.run(run_pipeline(pipeline, tell))
    if args.protocol == "queue":
        from shoal.lab.soak.queue_round import run_queue

        queue = _queue_options(args)
        return lambda tell: asyncio.run(run_queue(queue, tell))
    if args.protocol == "engine":
        from shoal.lab.soak.engine_round import run_engine

        engine = _engine_options(args)
        return lambda tell: asyncio.run(run_engine(engine, tell))
    _refuse(args, (*QUEUE_OPTIONS, *ENGINE_OPTIONS, "kill", "scale"))
    if args.attack:
        raise ConfigError("--attack applies only to `shoal soak hostile`", do="omit it")
    args.servers = 4 if args.servers is None else args.servers
    if args.protocol in ("channels", "moves"):
        from shoal.lab.soak.run import run_soak

        options = _options(args)
        return lambda tell: asyncio.run(run_soak(options, tell))
    from shoal.lab.soak.balancer_round import run_balanced

    balanced = _balanced_options(args)
    return lambda tell: run_balanced(balanced, tell)


def _seconds(args: argparse.Namespace) -> float:
    return SECONDS[args.protocol] if args.seconds is None else float(args.seconds)


def _refuse_others(args: argparse.Namespace, keep: tuple[str, ...] = ()) -> None:
    """Raise ConfigError for options of other soaks; `keep` names those of this one."""
    load = ("servers", "subscribers", "seconds", "to", "moves", "burst", "attack", *QUEUE_OPTIONS, *ENGINE_OPTIONS)
    others = (*load, "kill", "scale", "kill_agents", "kill_server", "kill_coordinator", "tls", "freeze")
    _refuse(args, [name for name in others if name not in keep])


def _refuse(args: argparse.Namespace, names: Iterable[str]) -> None:
    """Raise ConfigError if one of these options was given."""
    for name in names:
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} does not apply to `shoal soak {args.protocol}`", do="omit it")


def _hostile_options(args: argparse.Namespace) -> HostileOptions:
    from shoal.lab.soak.attacks import ATTACKS
    from shoal.lab.soak.hostile_round import HostileOptions

    _refuse(args, ("to", "moves", "burst", "kill", "scale", "kill_agents", "kill_server", "kill_coordinator"))
    _refuse(args, (*QUEUE_OPTIONS, *ENGINE_OPTIONS))
    servers = HOSTILE_SERVERS if args.servers is None else args.servers
    if not 1 <= servers <= SERVERS_MAX:
        raise ConfigError(f"--servers is {servers}", do=f"give a number from 1 to {SERVERS_MAX}")
    attacks = tuple(args.attack or ATTACKS)
    for name in attacks:
        if name not in ATTACKS:
            raise ConfigError(f"--attack is {name!r}", do=f"use one of {', '.join(ATTACKS)}")
    return HostileOptions(
        servers=servers,
        subscribers=_subscribers(args, HOSTILE_SUBSCRIBERS),
        seconds=_checked_seconds(args),
        attacks=attacks,
        seed=args.seed,
        limits=args.settings.limits,
    )


def _queue_options(args: argparse.Namespace) -> QueueSoakOptions:
    from shoal.lab.soak.queue_round import QueueSoakOptions

    _refuse_others(args, keep=("seconds", "moves", *QUEUE_OPTIONS))
    chosen = _numbers(args, {**QUEUE_OPTIONS, "moves": (0, 0, QUEUE_MOVES_MAX)})
    return QueueSoakOptions(**chosen, seconds=_checked_seconds(args), seed=args.seed, limits=args.settings.limits)


def _engine_options(args: argparse.Namespace) -> EngineSoakOptions:
    from shoal.lab.soak.engine_round import SECONDS_MIN as LEAST_S
    from shoal.lab.soak.engine_round import EngineSoakOptions

    _refuse_others(args, keep=("seconds", "kill", "scale", *ENGINE_OPTIONS))
    seconds = _checked_seconds(args)
    if args.kill and seconds < LEAST_S:
        raise ConfigError(f"--seconds is {seconds:g}", do=f"give at least {LEAST_S:g} with --kill")
    chosen = _numbers(args, {**ENGINE_OPTIONS, "scale": (0, 0, ENGINE_CHANGES_MAX)})
    return EngineSoakOptions(**chosen, seconds=seconds, seed=args.seed, limits=args.settings.limits, kill=args.kill)


def _numbers(args: argparse.Namespace, limits: dict[str, tuple[int, int, int]]) -> dict[str, int]:
    """Return options with their defaults; raises ConfigError for one below the least or above the most."""
    chosen = {}
    for name, (default, least, most) in limits.items():
        given = getattr(args, name)
        chosen[name] = default if given is None else given
        if not least <= chosen[name] <= most:
            raise ConfigError(f"--{name} is {chosen[name]}", do=f"give a number from {least} to {most}")
    return chosen


def _subscribers(args: argparse.Namespace, default: int) -> int:
    subscribers = default if args.subscribers is None else int(args.subscribers)
    if not SUBSCRIBERS_MIN <= subscribers <= SUBSCRIBERS_MAX:
        raise ConfigError(
            f"--subscribers is {subscribers}", do=f"give a number from {SUBSCRIBERS_MIN} to {SUBSCRIBERS_MAX}"
        )
    return subscribers


def _checked_seconds(args: argparse.Namespace) -> float:
    seconds = _seconds(args)
    if not SECONDS_MIN <= seconds < float("inf"):
        raise ConfigError(f"--seconds is {seconds:g}", do=f"give at least {SECONDS_MIN:g}")
    return seconds


def _balanced_options(args: argparse.Namespace) -> BalancedOptions:
    from shoal.lab.soak.balancer_round import BalancedOptions, SurgeScenario

    others = ("subscribers", "moves", "burst", "kill_agents", "kill_server", "kill_coordinator", "freeze", "tls")
    _refuse(args, others if args.protocol == SurgeScenario.SCALE_OUT else (*others, "to"))
    if not 2 <= args.servers <= SERVERS_MAX:
        raise ConfigError(f"--servers is {args.servers}", do=f"give a number from 2 to {SERVERS_MAX}")
    most = args.servers
    if args.protocol == SurgeScenario.SCALE_OUT:
        most = SCALE_OUT_TO if args.to is None else args.to
        if not args.servers < most <= SERVERS_MAX:
            raise ConfigError(f"--to is {most}", do=f"give a number from {args.servers + 1} to {SERVERS_MAX}")
    seconds = _seconds(args)
    if not SURGE_SECONDS_MIN <= seconds <= SURGE_SECONDS_MAX:
        raise ConfigError(
            f"--seconds is {seconds:g}", do=f"give a number from {SURGE_SECONDS_MIN:g} to {SURGE_SECONDS_MAX:g}"
        )
    return BalancedOptions(
        scenario=SurgeScenario(args.protocol),
        servers=args.servers,
        servers_max=most,
        seconds=seconds,
        seed=args.seed,
        limits=args.settings.limits,
    )


def _options(args: argparse.Namespace) -> SoakOptions:
    from shoal.lab.soak.faults import FaultPlan
    from shoal.lab.soak.outcome import SoakOptions

    if args.to is not None:
        raise ConfigError("--to applies only to `shoal soak scale-out`", do="omit it")
    if not 2 <= args.servers <= SERVERS_MAX:
        raise ConfigError(f"--servers is {args.servers}", do=f"give a number from 2 to {SERVERS_MAX}")
    subscribers = _subscribers(args, SUBSCRIBERS)
    seconds = _checked_seconds(args)
    moves, burst = _moves(args)
    if args.freeze:
        _check_freeze(args, seconds)
    return SoakOptions(
        servers=args.servers,
        subscribers=subscribers,
        seconds=seconds,
        faults=FaultPlan(args.kill_agents, args.kill_server, args.kill_coordinator, args.freeze),
        seed=args.seed,
        limits=args.settings.limits,
        moves=moves,
        burst=burst,
        tls=args.tls,
    )


def _check_freeze(args: argparse.Namespace, seconds: float) -> None:
    """Raise ConfigError if pauses of deliveries could not be distinguished, or if there is no time for one."""
    if args.protocol != "channels" or args.kill_agents or args.kill_server:
        raise ConfigError(
            "--freeze applies to `shoal soak channels`, alone or with --kill-coordinator", do="omit the other faults"
        )
    if seconds < FREEZE_SECONDS_MIN:
        raise ConfigError(f"--seconds is {seconds:g}", do=f"give at least {FREEZE_SECONDS_MIN:g} with --freeze")


def _moves(args: argparse.Namespace) -> tuple[int, int]:
    """Return the number of moves and the size of the burst; only one of them is set."""
    if args.protocol != "moves":
        if args.moves is not None or args.burst is not None:
            raise ConfigError("--moves and --burst apply only to `shoal soak moves`", do="omit them")
        return 0, 0
    if args.burst is not None:
        if args.moves is not None:
            raise ConfigError("--burst cannot be combined with --moves", do="omit --moves")
        if not 1 <= args.burst <= BURST_MAX:
            raise ConfigError(f"--burst is {args.burst}", do=f"give a number from 1 to {BURST_MAX}")
        return 0, args.burst
    moves = MOVES if args.moves is None else args.moves
    if not 1 <= moves <= MOVES_MAX:
        raise ConfigError(f"--moves is {moves}", do=f"give a number from 1 to {MOVES_MAX}")
    return moves, 0


def _run_with_progress(work: Callable[[Tell], BaseOutcome], seconds: float) -> BaseOutcome:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Bar(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("soak", total=seconds)
        before = {"done": 0.0, "last": 0.0}

        def tell(progress: RoundProgress) -> None:
            if progress.load_s < before["last"]:  # the next round begins
                before["done"] += before["last"]
            before["last"] = progress.load_s
            text = (
                f"{progress.phase}: {progress.messages:,} messages, {progress.deliveries:,} deliveries, "
                f"{progress.faults} faults, {progress.moves} moves"
            )
            bar.update(task, completed=before["done"] + progress.load_s, description=text)

        return work(tell)


def _text(facts: dict[str, Any]) -> str:
    if facts["protocol"] == "redis":
        return _redis_text(facts)
    names = ["messages", "deliveries", "moves", "faults", "lost", "duplicated", "reordered", "gaps_reported", "seconds"]
    rows = {name: f"{facts[name]:,}" for name in names}
    match facts["protocol"]:
        case "channels":
            rows["latency"] = _latency(facts["latency_ms"])
            if "failover_s" in facts:
                rows |= _freeze_rows(facts)
        case "moves":
            rows |= _fate_rows(facts) | _move_rows(facts)
        case "hostile":
            rows |= _hostile_rows(facts)
        case "pipeline":
            rows |= _pipeline_rows(facts)
        case "queue":
            rows |= _queue_rows(facts)
        case "engine":
            rows |= _engine_rows(facts)
        case _:
            rows |= _balance_rows(facts) | _fate_rows(facts)
    rows["violations"] = f"{facts['violation_count']}"
    width = max(map(len, rows))
    return "\n".join(f"{name:>{width}}  {value}" for name, value in rows.items())


def _redis_text(facts: dict[str, Any]) -> str:
    """A line for each call of both clients."""
    lines = [f"{'phase':<9} {'call':<12} {'redis-py':<16} {'shoal':<16}"]
    for call in facts["calls"]:
        ends = [f"{ending} {call['seconds'][side]:.1f} s" for side, ending in call["endings"].items()]
        lines.append(f"{call['phase']:<9} {call['name']:<12} {ends[0]:<16} {ends[1]:<16}")
    lines.append(f"differences {facts['deadline_differences']}, leaked subscriptions {facts['leaked']}")
    return "\n".join(lines)


def _freeze_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with freezes."""
    rows = {
        "false gaps": f"{facts['gaps_false']}",
        "failover": f"at most {facts['failover_s_max']} s ({len(facts['failover_s'])} freezes)",
        "longest quiet pause": f"{facts['longest_quiet_ms']} ms",
    }
    if "coordinator_return_stall_ms" in facts:
        stall = facts["coordinator_return_stall_ms"]
        rows["coordinator back"] = f"stall {stall} ms above that, median of {facts['coordinator_returns']} returns"
    return rows


def _hostile_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with hostile clients."""
    p99 = facts["p99_ms"]
    return {
        "silent": f"{facts['silent']}",
        "evicted": f"{facts['evicted']} servers",
        "false gaps": f"{facts['gaps_false']}",
        "agents": f"at most {facts['agent_rss_mb_max']} MB above idle",
        "p99": f"{p99['hostile']} ms during attacks, {p99['harmless']} ms with harmless traffic: {p99['ratio']} times",
        "goals missed": "; ".join(facts["goals_missed"]) or "none",
    }


def _queue_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with a queue."""
    taken = "no messages were taken over"
    if facts["takeovers"]:
        taken = f"median {facts['takeover_ms']:,.0f} ms, at most {facts['takeover_ms_max']:,.0f} ms"
    return {
        "overlapped": f"{facts['overlapped']}",
        "came again": f"{facts['repeated']}, {facts['unexplained_duplicates']} without a reason",
        "taken over": f"{facts['takeovers']} messages of killed consumers: {taken}",
    }


def _engine_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with an engine."""
    recovered = facts["recovered_s_max"]
    return {
        "owed": f"{facts['owed']:,} pairs of event and filter; {facts['missed']} missing and reported",
        "unmatched": f"{facts['unmatched']}",
        "false alarms": f"{facts['false_alarms']}",
        "changes": f"{facts['scalings']} of the configuration, {facts['given_up']} given up; "
        f"longest {facts['scaling_seconds_max']} s",
        "recovered": "no kills" if recovered is None else f"after {recovered} s at most, {facts['kills']} kills",
    }


def _pipeline_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with Spark jobs."""
    return {
        "owed": f"{facts['owed']:,} of {facts['confirmed']:,} confirmed; "
        f"{facts['lost_with_server']:,} were lost with a server",
        "missing": f"{facts['missing']}, doubled {facts['doubled']}, dropped as late {facts['dropped_late']}",
        "in windows": f"{facts['counted_in_windows']:,} messages, archived {facts['archived']:,}",
    }


def _fate_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for the outcome of moves and their latency."""
    return {
        "moves ended": f"{facts['moves_ended']:,}, replaced {facts['moves_replaced']:,}, "
        f"aborted {facts['moves_aborted']:,}, open {facts['moves_open']:,}",
        "closed by moves": f"{facts['subscriptions_closed']} subscriptions",
        "latency, quiet": _latency(facts["latency_ms"]["quiet"]),
        "latency, moving": _latency(facts["latency_ms"]["moving"]),
        "latency, channels that moved": _latency(facts["latency_ms"]["moved"]),
        "latency, others meanwhile": _latency(facts["latency_ms"]["beside"]),
        "p99.9 difference": f"{facts['latency_p999_difference_ms']} ms while any channel moved; "
        f"{facts['latency_p999_free_difference_ms']} ms where CPU was not the limit; "
        f"{facts['latency_p999_moved_difference_ms']} ms for moved channels relative to others meanwhile",
        "processors": f"{facts['cpu_share']['quiet']} (quiet), {facts['cpu_share']['moving']} (moving) of all",
    }


def _move_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with requested moves."""
    control = facts["control_per_move_and_client"]
    burst = {"settled after": f"{facts['burst_settle_s']} s"} if "burst_settle_s" in facts else {}
    return {
        **burst,
        "control messages": f"{control['lazy']} (lazy), {control['eager']} (eager) per move and client, "
        f"{facts['idle_notices']} about idle channels",
        "forwarded": f"{facts['forwarded']:,}",
        "plain publishers": f"{facts['foreign_published']:,} messages, {facts['foreign_deliveries']:,} deliveries, "
        f"{facts['foreign_lost']:,} lost, {facts['foreign_duplicates']:,} duplicated",
        "plain subscribers": f"{facts['plain_subscribers']}: {facts['plain_messages']:,} messages, "
        f"{facts['plain_lost']:,} lost, {facts['plain_duplicates']:,} duplicated",
    }


def _balance_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows for a run with a balancer."""
    ratio = facts["load_ratio"]
    rows = {"servers": f"{facts['servers']}"}
    if "replicated_s" in facts:
        rows["hot channel"] = f"detected after {facts['detected_s']} s, replicated after {facts['replicated_s']} s"
        rows["replicated on"] = ", ".join(facts["replicated_on"])
        rows["carried"] = (
            f"{facts['carried_vs_one_server']:g} times the load of one server (limit: {facts['carried_limited_by']})"
        )
    else:
        rows["balanced"] = f"after {facts['balanced_s']} s; all servers had joined after {facts['joined_s']} s"
    return rows | {
        "channels moved": f"{facts['channels_moved']}, twice {facts['moved_twice']}",
        "load ratio": f"at most {ratio['highest']:.2f}, {ratio['busiest_at_the_end']:.2f} at the end "
        f"({ratio['mean_at_the_end']:.2f} on average)",
    }


def _latency(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g} ms" for name, value in figures.items() if name != "deliveries")
