"""`shoal balancer`: runs a balancer in the foreground, until SIGTERM.

Owns the command's flags and where addresses, log-ins and the key come from. What a balancer does is in `shoal.cluster`
and `shoal.balance`.
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
    from shoal.balance.options import BalancerOptions

URL_VARIABLE: Final = "SHOAL_URL"
READER_VARIABLE: Final = "SHOAL_READER"
_PORT_MAX: Final = 65535


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "balancer",
        run,
        "run a balancer: it keeps the ring, moves channels, and adds and removes servers",
        description="Run a balancer until SIGTERM. One balancer of a cluster leads; the others stand by and take over\n"
        "when its lease ends. Beside a local cluster it finds everything in the state directory. Elsewhere\n"
        f"${URL_VARIABLE} names the coordinator with the user admin, ${READER_VARIABLE} (user:password) logs in to\n"
        "read telemetry, and --key names the file with the private key of the plan.",
        example="shoal balancer --auto\n"
        f"{URL_VARIABLE}=shoal://admin:PASSWORD@10.0.0.1:7400 {READER_VARIABLE}=reader:PASSWORD \\\n"
        "  shoal balancer --key plan.key --audit /var/lib/shoal/audit --policy dynamoth",
    )
    parser.add_argument("--policy", metavar="NAME", help="the policy (default shoal)")
    parser.add_argument(
        "--auto",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="do what the policy wants; without it, propose and apply on request only",
    )
    parser.add_argument("--servers-min", type=int, metavar="N", help="drain none below so many (default 1)")
    parser.add_argument("--servers-max", type=int, metavar="N", help="add none beyond so many (default 8)")
    parser.add_argument(
        "--windows",
        choices=("in-process", "spark"),
        default="in-process",
        help="spark: go by the load windows of `shoal pipeline load` while they come in time (default in-process)",
    )
    parser.add_argument("--key", metavar="FILE", help="the private key of the plan, where there is no local cluster")
    parser.add_argument(
        "--expect", default="", metavar="ID[,ID]", help="servers that the first ring waits for, ten seconds at most"
    )
    parser.add_argument("--audit", metavar="DIR", help="where decisions go on record (default: in the state directory)")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics there, on the loopback interface"
    )


def run(args: argparse.Namespace) -> int:
    """Run the balancer."""
    from shoal.balance.window_source import Way
    from shoal.leader.process import BalancerSetup, run_balancer

    if args.setting_sources["log_level"] == "default":  # a process that runs for months tells what it does
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
            windows=Way(args.windows),
            **found,
        )
    )
    return 0


def options_of(args: argparse.Namespace) -> BalancerOptions:
    """The balancer's options, flags before settings."""
    from msgspec.structs import replace

    options: BalancerOptions = args.settings.balancer
    given = {name: getattr(args, name) for name in ("policy", "auto", "servers_min", "servers_max")}
    options = replace(options, **{name: value for name, value in given.items() if value is not None})
    options.validate()
    checked_policy(options.policy)
    return options


def checked_policy(name: str) -> str:
    """A name, if a policy has it."""
    from shoal.balance.policies import POLICIES

    if name not in POLICIES:
        raise ConfigError(f"there is no policy {name!r}", do=f"name one of {', '.join(POLICIES)}")
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
        raise ConfigError("no key is named", do="name the file with the private key of the plan by --key")
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
        raise ConfigError(f"the key {path} cannot be read: {error.strerror}", do="name another by --key") from error
