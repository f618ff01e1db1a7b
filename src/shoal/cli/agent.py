"""`shoal agent`: runs the agent of one server or store in the foreground, until SIGTERM.

Owns the command's flags and the source of its address and password. The agents themselves are in
`shoal.channels.agent` and `shoal.queues.agent`.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Final

from shoal import logs
from shoal.cli.output import Subparsers, add_command
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.plan.ring import ServerAddress

URL_VARIABLE: Final = "SHOAL_URL"
_SERVER_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PORT_MAX: Final = 65535


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "agent",
        run,
        "run the agent of one server or store",
        description="Run the agent of one server or store until SIGTERM. The coordinator's address, with the user and "
        f"password for it and for all servers, is read from ${URL_VARIABLE}, which other users of "
        "the machine cannot see.",
        example=f"{URL_VARIABLE}=shoal://agent:PASSWORD@10.0.0.1:7400 \\\n"
        "  shoal agent --server s1 --address 10.0.0.11:6379 --max-out-bytes-per-s 1.25e9\n"
        f"{URL_VARIABLE}=shoal://agent:PASSWORD@10.0.0.1:7400 shoal agent --store q1 --address 10.0.0.12:6379",
    )
    host = parser.add_mutually_exclusive_group(required=True)
    host.add_argument("--server", metavar="ID", help="id of the server, for example s1")
    host.add_argument("--store", metavar="ID", help="id of the store, for example q1")
    parser.add_argument(
        "--address",
        required=True,
        metavar="HOST:PORT",
        help="address of the server or store; clients connect to it too",
    )
    parser.add_argument("--site", default="", metavar="NAME", help="site of the server, where there are several")
    parser.add_argument("--rack", default="", metavar="NAME", help="rack of the server; a rack may fail as a whole")
    parser.add_argument(
        "--tls",
        action="store_true",
        help="the server expects TLS (default: if the coordinator's address asks for TLS)",
    )
    parser.add_argument(
        "--max-out-bytes-per-s",
        type=float,
        metavar="N",
        help="outgoing bandwidth of the server in bytes/s, for its load ratio (default 1.25e8: 1 Gbit/s)",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics on this port (default: the setting metrics_port, else none)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the agent."""
    from shoal.coordination.link import parse_address
    from shoal.plan.ring import ServerAddress

    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    host, port = read_address(args.address)
    id, bandwidth = _host_id(args.store if args.server is None else args.server), _bandwidth(args.max_out_bytes_per_s)
    if args.store and bandwidth is not None:
        raise ConfigError("--max-out-bytes-per-s is for servers", do="leave it out")
    url = _url(args.settings.coordinator)
    tls = args.tls or parse_address(url, None, None).tls is not None
    address = ServerAddress(id, host, port, args.site, args.rack, tls)
    metrics_port = _metrics_port(args.settings.metrics_port if args.metrics_port is None else args.metrics_port)
    if args.store:
        _run_store_agent(args, address, url, metrics_port)
    else:
        _run_server_agent(args, address, url, metrics_port, bandwidth)
    return 0


def _run_server_agent(
    args: argparse.Namespace, address: ServerAddress, url: str, metrics_port: int, bandwidth: float | None
) -> None:
    from shoal.channels.agent.process import MAX_OUT_BYTES_PER_S, AgentOptions, run_agent

    run_agent(
        AgentOptions(
            address=address,
            max_out_bytes_per_s=MAX_OUT_BYTES_PER_S if bandwidth is None else bandwidth,
            metrics_port=metrics_port,
            metrics_host=args.settings.metrics_host,
            limits=args.settings.limits,
            url=url,
        )
    )


def _run_store_agent(args: argparse.Namespace, address: ServerAddress, url: str, metrics_port: int) -> None:
    from shoal.queues.agent.process import StoreAgentOptions, run_store_agent

    run_store_agent(
        StoreAgentOptions(
            address=address,
            metrics_port=metrics_port,
            metrics_host=args.settings.metrics_host,
            limits=args.settings.limits,
            url=url,
        )
    )


def _url(configured: str) -> str:
    url = os.environ.get(URL_VARIABLE) or configured
    if not url:
        raise ConfigError("no coordinator given", do=f"set {URL_VARIABLE} to shoal://agent:PASSWORD@HOST:PORT")
    return url


def read_address(text: str) -> tuple[str, int]:
    """Parse host and port; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise ConfigError(f"the address {text!r} has no host or no port", do="write it as host:port")
    return host, int(port)


def _host_id(text: str) -> str:
    if _SERVER_ID.fullmatch(text) is None:
        raise ConfigError(f"{text!r} is not a valid id", do="use 1 to 64 letters, digits, '_', '.' or '-'")
    return text


def _bandwidth(given: float | None) -> float | None:
    if given is not None and not 0 < given < float("inf"):
        raise ConfigError(f"--max-out-bytes-per-s is {given}", do="give a number of bytes above 0")
    return given


def _metrics_port(port: int) -> int:
    if not 0 <= port <= _PORT_MAX:
        raise ConfigError(f"--metrics-port is {port}", do="give a port, or 0 for none")
    return port
