"""`shoal up`, `down`, `status`, `doctor`: a local cluster in the background.

Owns the output of these commands. The work is in `shoal.cluster`.
"""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import (
    Subparsers,
    add_command,
    age_text,
    colour_wanted,
    engine_line,
    note,
    plural,
    result,
    short_count,
    shown,
)
from shoal.cli.users import secret_text
from shoal.cluster.state import StateDir, state_dir_at
from shoal.errors import ConfigError, NotRunningError
from shoal.extras import require

if TYPE_CHECKING:
    from shoal.cluster.cluster_report import ClusterReport
    from shoal.cluster.doctor import Finding
    from shoal.cluster.status import ClusterStatus

_LOAD_INTERVAL_S: Final = 0.3
"""How long `status` measures the load of servers."""
_STATUS_TIMEOUT_S: Final = 1.0
"""How long `status` waits for each process; all are asked at the same time."""
_SERVERS_MAX: Final = 1000
_STORES_MAX: Final = 80
_QUEUES_SHOWN_MAX: Final = 10
"""Queues that `status` shows, and unavailable ones that it names; `--json` has all."""
_QUEUE_WIDTH: Final = 22
_STORES_WIDTH: Final = 10
_WIDTH: Final = 80
_DAY_S: Final = 86400
_BALANCERS: Final = 2
_BALANCERS_MAX: Final = 5
_COLOURS: Final = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


def register(subparsers: Subparsers) -> None:
    """Add the commands of this group."""
    parser = add_command(
        subparsers,
        "up",
        run_up,
        "start a local cluster in the background",
        example="shoal up\nshoal up --servers 5 --stores 1 --tls --state-dir /tmp/my-cluster",
        description="Start a coordinator, servers, agents and balancers on the loopback interface, on free ports, "
        "with generated passwords. Returns when the cluster is ready. A stopped cluster with stores is continued with "
        "their queues.",
    )
    parser.add_argument("--servers", type=int, metavar="N", help="number of servers (default 3)")
    parser.add_argument(
        "--stores",
        type=int,
        default=0,
        metavar="N",
        help="initial number of stores; one is started when the first queue needs it (default 0)",
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument(
        "--engine", action="store_true", help="start an engine now; otherwise the first `emit` or `match` starts it"
    )
    engine.add_argument("--no-engine", action="store_true", help="run no engine: `emit` and `match` fail")
    parser.add_argument(
        "--balancers",
        type=int,
        default=_BALANCERS,
        metavar="N",
        help=f"number of balancers: one leads, the others stand by; 0: no balancing (default {_BALANCERS})",
    )
    parser.add_argument("--policy", metavar="NAME", help="balancing policy (default shoal)")
    parser.add_argument("--no-auto", action="store_true", help="only propose changes, and apply them on request")
    parser.add_argument("--servers-min", type=int, metavar="N", help="minimum number of servers (default: --servers)")
    parser.add_argument("--servers-max", type=int, metavar="N", help="maximum number of servers (default 8)")
    parser.add_argument(
        "--max-out-bytes-per-s",
        type=float,
        metavar="N",
        help="outgoing bandwidth of each server in bytes/s, for its load ratio (default 1.25e8: 1 Gbit/s)",
    )
    parser.add_argument(
        "--windows",
        choices=("in-process", "spark"),
        default="in-process",
        help="compute load windows in the balancer or in a Spark job (default in-process)",
    )
    parser.add_argument(
        "--tls", action="store_true", help="use TLS on all connections, with a generated certificate authority"
    )
    parser = add_command(
        subparsers,
        "down",
        run_down,
        "stop the local cluster and clean up",
        example="shoal down\nshoal down --purge",
        description="Stop the local cluster. If it has stores, their data, the coordinator's, the key, passwords and\n"
        "ports are kept, and `shoal up` continues the cluster; otherwise all its files are removed.",
    )
    parser.add_argument("--purge", action="store_true", help="also remove the data of stores, with all queues")
    parser = add_command(
        subparsers,
        "status",
        run_status,
        "show what runs, where, and how loaded it is",
        example="shoal status\nshoal status --url shoal://admin:PASSWORD@10.0.0.1:7400 --json",
        description="Show ring, leader, leases, moves, the load of servers and stores, and the content of queues of "
        "any cluster, and the processes of a local one. All parts are asked at the same time; those that do not answer "
        f"within {_STATUS_TIMEOUT_S:g} s are named. Exit status 0 only if the cluster is ready and everything answers.",
    )
    parser.add_argument(
        "--url", default="", metavar="URL", help="address of the cluster (default: $SHOAL_COORDINATOR, else local)"
    )
    parser = add_command(
        subparsers,
        "doctor",
        run_doctor,
        "check this machine for problems, with fixes",
        example="shoal doctor\nshoal doctor --quick --server redis://admin:PASSWORD@10.0.0.11:6379",
        description="Check this machine for problems, with fixes, and measure what Shoal costs here: the memory and "
        "start time of an agent, beside a temporary server (about ten seconds), and the size of a client's "
        "installation.",
    )
    parser.add_argument("--quick", action="store_true", help="skip the measurements")
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="URL",
        help="also check the settings of this data server; may be repeated",
    )


def run_up(args: argparse.Namespace) -> int:
    """Start the cluster."""
    from shoal.cluster.background import up
    from shoal.cluster.local import metered
    from shoal.cluster.metrics_ports import MetricsPorts

    require("shoal up", "numpy", "numba", "pyarrow")
    servers = args.settings.servers if args.servers is None else args.servers
    if not 1 <= servers <= _SERVERS_MAX:
        raise ConfigError(f"--servers is {servers}", do=f"give a number from 1 to {_SERVERS_MAX}")
    if not 0 <= args.stores <= _STORES_MAX:
        raise ConfigError(f"--stores is {args.stores}", do=f"give a number from 0 to {_STORES_MAX}")
    flags = [*_balancer_flags(args, servers), "--stores", str(args.stores)]
    flags += ["--engine"] if args.engine else ["--no-engine"] if args.no_engine else []
    if args.config:
        os.environ["SHOAL_CONFIG"] = str(Path(args.config).absolute())
    ports = MetricsPorts(args.settings.metrics_port, args.settings.metrics_host)
    ports.check(metered(args.balancers, servers, args.stores))
    directory = _directory(args)
    note("starting ...")
    began = time.monotonic()
    status = up(directory, servers, flags=flags)
    took_s = time.monotonic() - began
    facts = {**_facts(status), "seconds": round(took_s, 3)}
    where = f" --state-dir {args.state_dir}" if args.state_dir else ""
    stores = f" and {plural(len(status.stores), 'store')}" if status.stores else ""
    text = f"{plural(len(status.servers), 'server')}{stores} with agents, ready after {took_s:.1f} s\n"
    text += f"state in {directory.root}\n"
    if status.resumed:
        text += (
            f"cluster {status.cluster} was continued, with the same addresses, passwords, key\n"
            "and plan; messages that servers had recorded are gone\n"
        )
    text += "\n  ".join(("try:", *(f"shoal {command}{where}" for command in ("status", "sub tile.1", "down"))))
    result(args, facts, text)
    return 0


def _balancer_flags(args: argparse.Namespace, servers: int) -> list[str]:
    """Return the supervisor's flags for balancers and server capacity."""
    from shoal.cli.balancer import checked_policy

    policy = checked_policy(args.policy or args.settings.balancer.policy)
    if not 0 <= args.balancers <= _BALANCERS_MAX:
        raise ConfigError(f"--balancers is {args.balancers}", do=f"give a number from 0 to {_BALANCERS_MAX}")
    flags = ["--balancers", str(args.balancers), "--policy", policy]
    flags += ["--no-auto"] if args.no_auto else []
    least = servers if args.servers_min is None else args.servers_min
    most = max(servers, args.settings.balancer.servers_max) if args.servers_max is None else args.servers_max
    if not 1 <= least <= most <= _SERVERS_MAX:
        raise ConfigError(
            f"--servers-min is {least} and --servers-max {most}", do=f"give 1 <= min <= max <= {_SERVERS_MAX}"
        )
    flags += ["--servers-min", str(least), "--servers-max", str(most)]
    flags += ["--windows", _checked_windows(args)]
    flags += ["--tls"] if args.tls or args.settings.local_tls else []
    capacity = args.max_out_bytes_per_s
    if capacity is not None:
        if not 0 < capacity < float("inf"):
            raise ConfigError(f"--max-out-bytes-per-s is {capacity}", do="give a number of bytes above 0")
        flags += ["--max-out-bytes-per-s", repr(capacity)]
    return flags


def _checked_windows(args: argparse.Namespace) -> str:
    """Return where load windows are computed; raise if Spark is missing."""
    if args.windows == "spark":
        from shoal.pipeline.session import import_spark
        from shoal.pipeline.spark.java import find_java

        if not args.balancers:
            raise ConfigError("--windows is spark, but there is no balancer", do="give --balancers 1 or more")
        find_java()
        import_spark()
    return str(args.windows)


def run_down(args: argparse.Namespace) -> int:
    """Stop the cluster."""
    from shoal.cluster.background import down

    directory = _directory(args)
    ended = down(directory, args.purge)
    left = "its data is kept" if ended.kept else "its leftovers were removed"
    how = "stopped" if ended.clean else f"was not shut down cleanly; {left}"
    if ended.clean and ended.kept:
        how = "stopped; its stores are kept: `shoal up` continues it, `shoal down --purge` removes them"
    result(args, {"stopped": True, **msgspec.to_builtins(ended)}, f"the cluster in {directory.root} {how}")
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Show the status; exit status 0 only if the cluster is ready and all its parts answer."""
    import asyncio

    from shoal.cluster.cluster_report import read_report
    from shoal.coordination.link import parse_address

    url = args.url or args.settings.coordinator
    if url:
        asked = read_report(parse_address(url, None, None), interval_s=_LOAD_INTERVAL_S, timeout_s=_STATUS_TIMEOUT_S)
        status, report = None, asyncio.run(asked)
    else:
        status, report = asyncio.run(_local_status(_directory(args)))
    ready = report.ready and (status is None or status.ready)
    facts = {**(_facts(status) if status else {}), **msgspec.to_builtins(report), "ready": ready}
    facts["silent"] = report.silent if status or url else ("supervisor", *report.silent)
    result(args, facts, "\n".join([*_report_lines(report, ready), *(_local_lines(status) if status else ())]))
    return 0 if ready else 1


async def _local_status(directory: StateDir) -> tuple[ClusterStatus | None, ClusterReport]:
    """Ask the supervisor, the coordinator and the servers of a local cluster, all at the same time."""
    import asyncio

    from shoal.cluster.acl import ADMIN
    from shoal.cluster.cluster_report import read_report
    from shoal.cluster.control_socket import request
    from shoal.cluster.state import find_cluster

    state = find_cluster(directory.root)
    supervisor = asyncio.create_task(asyncio.to_thread(request, directory, "status", timeout_s=_STATUS_TIMEOUT_S))
    report = await read_report(
        state.address_for(ADMIN),
        bytes.fromhex(state.public_key),
        state.server_addresses(),
        state.store_addresses(),
        interval_s=_LOAD_INTERVAL_S,
        timeout_s=_STATUS_TIMEOUT_S,
    )
    try:
        return (await supervisor).status, report
    except NotRunningError as error:
        note(f"{error.what}; processes are not shown")
        return None, report


def run_doctor(args: argparse.Namespace) -> int:
    """Check the machine; exit status 0 only if no check fails."""
    import sys

    from shoal.cluster.doctor import examine, weigh
    from shoal.coordination.link import parse_address

    findings = examine(_directory(args), [parse_address(url, None, None) for url in args.server])
    weight, weight_findings = weigh(args.quick)
    findings += weight_findings
    colour = colour_wanted(sys.stdout)
    healthy = all(finding.level != "fail" for finding in findings)
    text = "\n".join(_finding_text(finding, colour) for finding in findings)
    result(args, {"healthy": healthy, "findings": msgspec.to_builtins(findings), **weight}, text)
    return 0 if healthy else 1


def _finding_text(finding: Finding, colour: bool) -> str:
    """A finding within 80 columns, with what to do on lines of its own."""
    texts = [finding.text] + ([f"-> {finding.do}"] if finding.do else [])
    lines = [line for text in texts for line in textwrap.wrap(text, 63, break_long_words=False, break_on_hyphens=False)]
    mark = f"{_COLOURS[finding.level]}{finding.level:<4}\x1b[0m" if colour else f"{finding.level:<4}"
    return f"{mark} {finding.check:<11} " + f"\n{' ' * 17}".join(lines)


def _directory(args: argparse.Namespace) -> StateDir:
    return state_dir_at(args.settings.state_path)


def _facts(status: ClusterStatus) -> dict[str, Any]:
    """Return the status of a local cluster as JSON fields."""
    facts: dict[str, Any] = msgspec.to_builtins(status)
    return facts


def _report_lines(report: ClusterReport, ready: bool) -> list[str]:
    """What is known of any cluster, within 80 columns."""
    leader = report.leader or ("none" if report.leases_known else "unknown")
    lines = [f"{'ready' if ready else 'not ready'}, ring version {report.ring_version}, leader {leader}"]
    lines.append(f"coordinator {report.coordinator}" + ("" if report.contact else ": does not answer"))
    if report.trouble:
        lines.append(f"problem: {report.trouble}")
    if report.contact:
        moves = f"{report.moving} moving" + (f", {report.requested} requested" if report.requested else "")
        pinned = f", {report.pinned} pinned" if report.pinned is not None else ""
        lines.append(f"channels with an entry: {report.entries}{pinned}; {moves}")
        if report.plan_under_way:
            lines.append(f"plan {report.plan_under_way[:12]} is under way")
    lines.append(f"{'server':<8}{'address':<18}{'lease':<8}{'state':<9}{'clients':>8}{'chan.':>7}")
    lines[-1] += f"{'msg/s':>8}{'kB/s':>8}{'CPU':>6}"
    for server in report.servers:
        lease = "unknown" if server.lease is None else _yes_no(server.lease)
        row = f"{server.id:<8}{f'{server.host}:{server.port}':<18}"
        if not row.endswith("  "):  # a long address: the rest of the row begins below it
            lines.append(row.rstrip())
            row = " " * 26
        row += f"{lease:<8}{server.state:<9}"
        measured = server.load
        if measured is None:
            lines.append(f"{row} {server.trouble}")
            continue
        row += f"{measured.connections:>8}{measured.channels:>7}{measured.messages_per_s:>8.0f}"
        lines.append(f"{row}{measured.bytes_out_per_s / 1000:>8.1f}{measured.load_ratio:>6.0%}")
    lines += _queue_lines(report)
    if report.engine is not None:
        lines += ["", engine_line(report.engine)]
    if report.outside:
        lines.append(f"not in the ring: {', '.join(f'{name} ({state})' for name, state in report.outside.items())}")
    return lines


def _queue_lines(report: ClusterReport) -> list[str]:
    """Stores and queues, if there are any."""
    lines = []
    if report.stores:
        lines.append(f"{'store':<8}{'address':<18}{'lease':<8}{'queues':<9}{'clients':>8}{'MB':>7}{'CPU':>6}")
    for store in report.stores:
        lease = "unknown" if store.lease is None else _yes_no(store.lease)
        row = f"{store.id:<8}{f'{store.host}:{store.port}':<18}{lease:<8}{store.queues:<9}"
        if store.load is None:
            lines.append(f"{row} {store.trouble}")
        else:
            memory_mb = store.load.memory_bytes / 1e6
            lines.append(f"{row}{store.load.connections:>8}{memory_mb:>7.1f}{store.load.load_ratio:>6.0%}")
    lines += _level_lines(report)
    if report.queues_requested:
        lines.append(f"requests about queues that wait: {report.queues_requested}")
    shown = list(report.queues_unavailable.items())
    lines += [f"unavailable queue {name}: {why}" for name, why in shown[:_QUEUES_SHOWN_MAX]]
    if len(shown) > _QUEUES_SHOWN_MAX:
        lines.append(f"... and {len(shown) - _QUEUES_SHOWN_MAX} more unavailable queues")
    return lines


def _level_lines(report: ClusterReport) -> list[str]:
    """The queues with most messages. Stores whose figures are missing are named below."""
    if not report.queue_levels:
        return []
    heads = ("msgs", "oldest", "held", "cons.", "dead", "halt")
    lines = [_level_row("queue", "store", heads)]
    for level in report.queue_levels[:_QUEUES_SHOWN_MAX]:
        stores = list(level.stores)
        where = stores[0] if len(stores) == 1 else f"{stores[0]} +{len(stores) - 1}"
        counts = (level.held, level.consumers, level.dead, level.halted)
        figures = (short_count(level.messages), age_text(level.oldest_s), *map(short_count, counts))
        lines.append(_level_row(shown(level.queue), where, figures))
    if len(report.queue_levels) > _QUEUES_SHOWN_MAX:
        lines.append(f"... and {len(report.queue_levels) - _QUEUES_SHOWN_MAX} more queues: `shoal queue stats`")
    states = {store: state for level in report.queue_levels for store, state in level.stores.items()}
    missing = [f"figures without store {store}: {state}" for store, state in sorted(states.items()) if state != "ok"]
    return [*lines, *(_cut(line, _WIDTH) for line in missing[:_QUEUES_SHOWN_MAX])]


def _level_row(queue: str, store: str, figures: Iterable[str]) -> str:
    row = f"{_cut(queue, _QUEUE_WIDTH - 1):<{_QUEUE_WIDTH}}{_cut(store, _STORES_WIDTH - 1):<{_STORES_WIDTH}}"
    return row + "".join(f"{figure:>8}" for figure in figures)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _local_lines(status: ClusterStatus) -> list[str]:
    """What only the supervisor of a local cluster knows."""
    lines = [f"cluster {status.cluster}, state in {status.state_dir}"]
    if status.trouble:
        lines.append(f"problem: {status.trouble}")
    if status.certificates_expire_at is not None:
        left_s = status.certificates_expire_at - time.time()
        lines.append(f"TLS: certificates renewed automatically, the first expires in {_duration(left_s)}")
    if status.agents_secret is not None:
        lines.append(f"agents' secret: {secret_text(status.agents_secret.generations, status.agents_secret.since_s)}")
    if status.windows is not None:
        since_s = time.time() - status.windows.since_s
        lines.append(f"load windows: {status.windows.way.value} for {since_s:.0f} s ({status.windows.why})")
    lines.append(f"{'process':<14}{'state':<10}{'pid':>8}{'uptime s':>10}{'restarts':>10}  last exit")
    for child in status.processes:
        state = "crashing" if child.crashing else "held" if child.held else child.state
        row = f"{child.name:<14}{state:<10}{child.pid or '-':>8}{child.uptime_s:>10.0f}{child.restarts:>10}"
        lines.append(f"{row}  {(child.last_exit or '').splitlines()[0] if child.last_exit else ''}".rstrip())
    return lines


def _duration(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds:.0f} s"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
