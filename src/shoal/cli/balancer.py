"""`shoal balancer`: runs a balancer in the foreground, until SIGTERM.

Owns the command's flags and the source of addresses, logins and the key. The balancer itself is in `shoal.leader` and
`shoal.balance`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal import logs
from shoal.cli.output import Subparsers, add_command
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.balance.balancer_options import BalancerOptions

URL_VARIABLE: Final = "SHOAL_URL"
READER_VARIABLE: Final = "SHOAL_READER"
_PORT_MAX: Final = 65535


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "balancer",
        run,
        "run a balancer: it maintains the ring, moves channels, and adds and removes servers",
        description="Run a balancer until SIGTERM. One balancer of a cluster leads; the others stand by and take over "
        "when its lease expires. For a local cluster, everything is read from the state directory. "
        f"Otherwise ${URL_VARIABLE} is the coordinator's address with the user admin, ${READER_VARIABLE} "
        "(user:password) is the login for reading telemetry, and --key is the plan's private key file.",
        example="shoal balancer --auto\n"
        f"{URL_VARIABLE}=shoal://admin:PASSWORD@10.0.0.1:7400 {READER_VARIABLE}=reader:PASSWORD \\\n"
        "  shoal balancer --key plan.key --audit /var/lib/shoal/audit --policy dynamoth",
    )
    parser.add_argument("--policy", metavar="NAME", help="balancing policy (default shoal)")
    parser.add_argument(
        "--auto",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="apply the policy's decisions; without it, only propose, and apply on request",
    )
    parser.add_argument("--servers-min", type=int, metavar="N", help="minimum number of servers (default 1)")
    parser.add_argument("--servers-max", type=int, metavar="N", help="maximum number of servers (default 8)")
    parser.add_argument(
        "--windows",
        choices=("in-process", "spark"),
        default="in-process",
        help="spark: use the load windows of `shoal pipeline load` while they arrive in time (default in-process)",
    )
    parser.add_argument("--key", metavar="FILE", help="private key file of the plan, if there is no local cluster")
    parser.add_argument(
        "--expect", default="", metavar="ID[,ID]", help="servers that the first ring waits for, at most 10 s"
    )
    parser.add_argument(
        "--audit", metavar="DIR", help="directory of the decision records (default: in the state directory)"
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics on this port (default: the setting metrics_port, else none)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the balancer."""
    from shoal.balance.window_source import Way
    from shoal.leader.audit_log import AuditLog
    from shoal.leader.process import BalancerSetup, run_balancer

    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    port = args.settings.metrics_port if args.metrics_port is None else args.metrics_port
    if not 0 <= port <= _PORT_MAX:
        raise ConfigError(f"--metrics-port is {port}", do="give a port, or 0 for none")
    found = _from_environment(args) if os.environ.get(URL_VARIABLE) else _from_local_cluster(args)
    run_balancer(
        BalancerSetup(
            limits=args.settings.limits,
            settings=args.settings.balance,
            options=options_of(args),
            metrics_port=port,
            metrics_host=args.settings.metrics_host,
            windows=Way(args.windows),
            audit=AuditLog(found.pop("audit")),
            **found,
        )
    )
    return 0


def options_of(args: argparse.Namespace) -> BalancerOptions:
    """Return the balancer's options; flags override settings."""
    from msgspec.structs import replace

    options: BalancerOptions = args.settings.balancer
    given = {name: getattr(args, name) for name in ("policy", "auto", "servers_min", "servers_max")}
    options = replace(options, **{name: value for name, value in given.items() if value is not None})
    options.validate()
    checked_policy(options.policy)
    return options


def checked_policy(name: str) -> str:
    """Return the name if it is a known policy."""
    from shoal.balance.policies import POLICIES

    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}", do=f"choose one of {', '.join(POLICIES)}")
    return name


def _from_local_cluster(args: argparse.Namespace) -> dict[str, Any]:
    from shoal.cluster.acl import ADMIN, READER
    from shoal.cluster.local_provider import LocalProcesses
    from shoal.cluster.state import find_cluster, state_dir_at

    directory = state_dir_at(args.settings.state_path)
    state = find_cluster(directory.root)
    return {
        "url": state.url_for(ADMIN),
        "reader": (READER, state.passwords[READER]),
        "key": _read_key(directory.key_file),
        "audit": Path(args.audit) if args.audit else directory.audit,
        "provider": LocalProcesses(directory, options_of(args)),
        "expected": tuple(server.id for server in state.servers),
    }


def _from_environment(args: argparse.Namespace) -> dict[str, Any]:
    user, colon, password = os.environ.get(READER_VARIABLE, "").partition(":")
    if not args.key:
        raise ConfigError("no key given", do="give the plan's private key file with --key")
    return {
        "url": os.environ[URL_VARIABLE],
        "reader": (user, password) if colon else (None, None),
        "key": _read_key(Path(args.key)),
        "audit": Path(args.audit) if args.audit else args.settings.state_path / "audit",
        "expected": tuple(word.strip() for word in args.expect.split(",") if word.strip()),
    }


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}", do="give another file with --key") from error
