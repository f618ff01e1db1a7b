"""The background process of `shoal up`: runs one local cluster until it is asked to stop.

Owns the process: its arguments, its signals and its failure report. The cluster itself is `shoal.cluster.local`.

    python -m shoal.cluster.supervisor --state-dir DIR --servers 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Sequence

from shoal import config, logs
from shoal.balance.window_source import Way
from shoal.cluster.local import LocalCluster
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.parts import AgentCommand, shoal_agent
from shoal.cluster.state import StateDir, state_dir_at, write_private
from shoal.errors import ShoalError
from shoal.plan.ring import ServerAddress


def main(argv: Sequence[str] | None = None) -> int:
    """Run the supervisor; return 0 after a requested stop, 1 if the cluster could not be started."""
    parser = argparse.ArgumentParser(prog="python -m shoal.cluster.supervisor")
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--agent", default="", help="command of another agent, with {server} and {address} filled in")
    parser.add_argument("--balancers", type=int, default=0)
    parser.add_argument("--policy", default="shoal")
    parser.add_argument("--no-auto", dest="auto", action="store_false")
    parser.add_argument("--servers-min", type=int)
    parser.add_argument("--servers-max", type=int)
    parser.add_argument("--max-out-bytes-per-s", type=float)
    parser.add_argument("--windows", type=Way, default=Way.IN_PROCESS)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--stores", type=int, default=0)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--no-engine", action="store_true")
    args = parser.parse_args(argv)
    logs.configure(level="info")
    directory = state_dir_at(args.state_dir)
    try:
        asyncio.run(_supervise(directory, args))
    except ShoalError as error:
        print(error, file=sys.stderr)
        _write_failure(directory, str(error))
        return 1
    return 0


async def _supervise(directory: StateDir, args: argparse.Namespace) -> None:
    """Run until SIGTERM, SIGINT or a request to stop; a signal during the start ends the start."""
    settings = config.load().settings
    wanted = LocalCluster(
        args.servers,
        directory.root,
        limits=settings.limits,
        resume=True,
        metrics=MetricsPorts(settings.metrics_port, settings.metrics_host),
        agent_command=_agent_from(args.agent) if args.agent else shoal_agent,
        balancers=args.balancers,
        policy=args.policy,
        auto=args.auto,
        servers_min=args.servers_min,
        servers_max=args.servers_max,
        max_out_bytes_per_s=args.max_out_bytes_per_s,
        windows=args.windows,
        tls=args.tls,
        stores=args.stores,
        engine=args.engine,
        engine_when_asked=not args.no_engine,
    )
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    with contextlib.suppress(asyncio.CancelledError):
        async with wanted as cluster:
            await cluster.ended.wait()


def _agent_from(template: str) -> AgentCommand:
    """Return an agent command from a template with placeholders for the server's id and address."""

    def command(server: ServerAddress) -> Sequence[str]:
        address = f"{server.host}:{server.port}"
        return [word.format(server=server.id, address=address) for word in shlex.split(template)]

    return command


def _write_failure(directory: StateDir, why: str) -> None:
    """Record why the start failed, for the process that requested it."""
    directory.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(directory.failure_file, why.encode())


if __name__ == "__main__":
    sys.exit(main())
