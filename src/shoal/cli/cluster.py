"""`shoal up`, `down`, `status`, `doctor`: a local cluster in the background.

Owns the output of these commands. The work is in `shoal.cluster`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, colour_wanted, note, result
from shoal.cli.users import secret_text
from shoal.cluster.state import StateDir, state_dir_at
from shoal.errors import ConfigError, NotRunningError

if TYPE_CHECKING:
    from shoal.cluster.local import ClusterStatus
    from shoal.cluster.server_load import ServerLoad

_LOAD_INTERVAL_S: Final = 0.5
_ASK_TIMEOUT_S: Final = 5.0
_SERVERS_MAX: Final = 1000
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
        example="shoal up\nshoal up --servers 5 --tls --state-dir /tmp/my-cluster",
        description="Start a coordinator, servers, agents and balancers on the loopback interface, on free ports, "
        "with generated passwords. Returns when the cluster is ready.",
    )
    parser.add_argument("--servers", type=int, metavar="N", help="number of servers (default 3)")
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
        "--tls", action="store_true", help="use TLS on all connections, with a certificate authority of its own"
    )
    add_command(
        subparsers,
        "down",
        run_down,
        "stop the local cluster and clean up",
        example="shoal down",
    )
    add_command(subparsers, "status", run_status, "show processes, addresses and load", example="shoal status --json")
    parser = add_command(
        subparsers,
        "doctor",
        run_doctor,
        "check this machine for problems, with fixes",
        example="shoal doctor\nshoal doctor --server redis://admin:PASSWORD@10.0.0.11:6379",
    )
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

    servers = args.settings.servers if args.servers is None else args.servers
    if not 1 <= servers <= _SERVERS_MAX:
        raise ConfigError(f"--servers is {servers}", do=f"give a number from 1 to {_SERVERS_MAX}")
    flags = _balancer_flags(args, servers)
    if args.config:
        os.environ["SHOAL_CONFIG"] = str(Path(args.config).absolute())
    directory = _directory(args)
    note(f"starting {_plural(servers, 'server')} ...")
    began = time.monotonic()
    status = up(directory, servers, flags=flags)
    took_s = time.monotonic() - began
    facts = {**_facts(status), "seconds": round(took_s, 3)}
    text = (
        f"{_plural(servers, 'server')} with agents, ready after {took_s:.1f} s; state in {directory.root}\n"
        "try: shoal status, shoal sub tile.1, shoal down"
    )
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
    ended = down(directory)
    how = "stopped" if ended.clean else "was not shut down cleanly; its leftovers were removed"
    result(args, {"stopped": True, **msgspec.to_builtins(ended)}, f"the cluster in {directory.root} {how}")
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Show the status; exit status 0 only if the cluster is ready."""
    from shoal.cluster.control_socket import request
    from shoal.cluster.server_load import measure_load
    from shoal.cluster.state import find_cluster

    directory = _directory(args)
    state = find_cluster(directory.root)
    status = request(directory, "status", timeout_s=_ASK_TIMEOUT_S).status
    if status is None:
        raise NotRunningError(
            "the supervisor did not return the cluster's status", do="run `shoal down`, then `shoal up`"
        )
    load = measure_load(state, _LOAD_INTERVAL_S, _ASK_TIMEOUT_S)
    result(args, _facts(status, load), _status_text(status, load))
    return 0 if status.ready else 1


def run_doctor(args: argparse.Namespace) -> int:
    """Check the machine; exit status 0 only if no check fails."""
    import sys

    from shoal.cluster.doctor import examine
    from shoal.coordination.link import parse_address

    findings = examine(_directory(args), [parse_address(url, None, None) for url in args.server])
    colour = colour_wanted(sys.stdout)
    lines = []
    for finding in findings:
        mark = f"{_COLOURS[finding.level]}{finding.level:<4}\x1b[0m" if colour else f"{finding.level:<4}"
        lines.append(f"{mark} {finding.check:<11} {finding.text}" + (f" -> {finding.do}" if finding.do else ""))
    healthy = all(finding.level != "fail" for finding in findings)
    result(args, {"healthy": healthy, "findings": msgspec.to_builtins(findings)}, "\n".join(lines))
    return 0 if healthy else 1


def _directory(args: argparse.Namespace) -> StateDir:
    return state_dir_at(args.settings.state_path)


def _facts(status: ClusterStatus, load: dict[str, ServerLoad | None] | None = None) -> dict[str, Any]:
    """Return the status as JSON fields, with the load of each server."""
    facts: dict[str, Any] = msgspec.to_builtins(status)
    for server in facts["servers"] if load else ():
        measured = load.get(server["id"]) if load else None
        server["load"] = msgspec.to_builtins(measured) if measured else None
    return facts


def _status_text(status: ClusterStatus, load: dict[str, ServerLoad | None]) -> str:
    ready = "ready" if status.ready else "not ready"
    lines = [
        f"cluster {status.cluster}: {ready}, ring version {status.ring_version}, "
        f"coordinator {status.coordinator}, state in {status.state_dir}"
    ]
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
    lines.append(f"{'server':<8}{'address':<18}{'lease':<7}{'ring':<6}{'clients':>8}{'channels':>10}")
    lines[-1] += f"{'msg/s':>10}{'out B/s':>12}{'load':>7}"
    for server in status.servers:
        row = f"{server.id:<8}{f'{server.host}:{server.port}':<18}"
        row += f"{_yes_no(server.lease):<7}{_yes_no(server.in_ring):<6}"
        measured = load.get(server.id)
        if measured is None:
            lines.append(f"{row}  does not answer")
            continue
        row += f"{measured.connections:>8}{measured.channels:>10}{measured.messages_per_s:>10.0f}"
        lines.append(f"{row}{measured.bytes_out_per_s:>12.0f}{measured.load_ratio:>7.0%}")
    lines.append(f"{'process':<14}{'state':<10}{'pid':>8}{'uptime s':>10}{'restarts':>10}  last exit")
    for child in status.processes:
        state = "crashing" if child.crashing else "held" if child.held else child.state
        row = f"{child.name:<14}{state:<10}{child.pid or '-':>8}{child.uptime_s:>10.0f}{child.restarts:>10}"
        lines.append(f"{row}  {(child.last_exit or '').splitlines()[0] if child.last_exit else ''}".rstrip())
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds:.0f} s"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
