"""`shoal agent`: runs the agent of one server in the foreground, until SIGTERM.

Owns the command's flags and the source of its address and password. The agent itself is in `shoal.channels.agent`.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Final

from shoal import logs
from shoal.cli.output import Subparsers, add_command
from shoal.errors import ConfigError

URL_VARIABLE: Final = "SHOAL_URL"
_SERVER_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PORT_MAX: Final = 65535


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "agent",
        run,
        "run the agent of one server",
        description="Run the agent of one server until SIGTERM. The coordinator's address, with the user and "
        f"password for it and for all servers, is read from ${URL_VARIABLE}, which other users of "
        "the machine cannot see.",
        example=f"{URL_VARIABLE}=shoal://agent:PASSWORD@10.0.0.1:7400 \\\n"
        "  shoal agent --server s1 --address 10.0.0.11:6379 --max-out-bytes-per-s 1.25e9",
    )
    parser.add_argument("--server", required=True, metavar="ID", help="id of the server, for example s1")
    parser.add_argument(
        "--address",
        required=True,
        metavar="HOST:PORT",
        help="address of the server; clients connect to it too",
    )
    parser.add_argument("--site", default="", metavar="NAME", help="site of the server, where there are several")
    parser.add_argument("--rack", default="", metavar="NAME", help="what fails together with the server at its site")
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
    from shoal.channels.agent.process import MAX_OUT_BYTES_PER_S, AgentOptions, run_agent
    from shoal.coordination.link import parse_address
    from shoal.plan.ring import ServerAddress

    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    host, port = read_address(args.address)
    server, bandwidth = _server_id(args.server), _bandwidth(args.max_out_bytes_per_s, MAX_OUT_BYTES_PER_S)
    url = _url(args.settings.coordinator)
    tls = args.tls or parse_address(url, None, None).tls is not None
    options = AgentOptions(
        address=ServerAddress(server, host, port, args.site, args.rack, tls),
        max_out_bytes_per_s=bandwidth,
        metrics_port=_metrics_port(args.settings.metrics_port if args.metrics_port is None else args.metrics_port),
        metrics_host=args.settings.metrics_host,
        limits=args.settings.limits,
        url=url,
    )
    run_agent(options)
    return 0


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


def _server_id(text: str) -> str:
    if _SERVER_ID.fullmatch(text) is None:
        raise ConfigError(f"{text!r} is not a valid server id", do="use 1 to 64 letters, digits, '_', '.' or '-'")
    return text


def _bandwidth(given: float | None, default: float) -> float:
    if given is None:
        return default
    if not 0 < given < float("inf"):
        raise ConfigError(f"--max-out-bytes-per-s is {given}", do="give a number of bytes above 0")
    return given


def _metrics_port(port: int) -> int:
    if not 0 <= port <= _PORT_MAX:
        raise ConfigError(f"--metrics-port is {port}", do="give a port, or 0 for none")
    return port
