"""`shoal top`: live load by server, the busiest channels, stores and queues, and the balancer's actions.

Owns the view. It reads the last record of each server's and store's telemetry stream once per second (`top_queues` has
the rows of stores), and the balancer's records in the coordinator (`top_balance`); it measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import (
    Subparsers,
    add_command,
    console,
    count_text,
    engine_line,
    plural,
    result,
    share_text,
    size_text,
)
from shoal.cli.plan_pin import printable
from shoal.cli.top_balance import BalanceReader, BalanceView, render_balance, table
from shoal.cli.top_queues import StoreRow, render_queues, store_row, stores_of
from shoal.cluster.last_record import LastRecord, last_records
from shoal.cluster.queue_rows import STALE_S, QueueRow, queue_rows
from shoal.engine.engine_report import EngineReport, read_report
from shoal.engine.messages import MAIN
from shoal.errors import ClusterNotFoundError, ConfigError, CoordinatorError, ProtocolError
from shoal.load.kinds import CHANNEL

if TYPE_CHECKING:
    from rich.console import Group

    from shoal.coordination.interface import Coordinator
    from shoal.coordination.link import Address
    from shoal.load.record import TelemetryRecord
    from shoal.plan.ring import Ring, ServerAddress
    from shoal.plan.signature import Verifier

REFRESH_S: Final = 1.0
CHANNELS: Final = 20

_ASK_TIMEOUT_S: Final = 2.0
_COORDINATOR_TIMEOUT_S: Final = 5.0


class ServerRow(msgspec.Struct, frozen=True):
    """A server's last recorded second. `trouble` explains missing or outdated data."""

    id: str
    address: str
    trouble: str | None = None
    second: int | None = None
    age_s: float | None = None
    channels: int | None = None
    publications_per_s: float | None = None
    sent_per_s: float | None = None
    bytes_out_per_s: float | None = None
    max_out_bytes_per_s: float | None = None
    load_ratio: float | None = None
    cpu_share: float | None = None
    connections: int | None = None


class ChannelLoad(msgspec.Struct, frozen=True):
    """A channel's last recorded second on one server."""

    channel: str
    server: str
    publications_per_s: float
    sent_per_s: float
    bytes_out_per_s: float
    publishers: int
    subscribers: int
    pattern_subscribers: int


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """All data at one moment, busiest channels first. `balance` is None if the ring is unknown."""

    at: float
    load_mean: float | None
    """Mean load ratio of the servers that report."""
    load_max: float | None
    """Load ratio of the busiest server."""
    servers: tuple[ServerRow, ...]
    channels: tuple[ChannelLoad, ...]
    balance: BalanceView | None
    stores: tuple[StoreRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    """Those with most messages first."""
    engine: EngineReport | None = None
    """The engine that serves; None if there is none."""


class Source:
    """The servers with telemetry, the login for them, and the coordinator if it is reachable."""

    def __init__(
        self,
        servers: tuple[ServerAddress, ...],
        login: Address,
        coordinator: Coordinator | None,
        verifier: Verifier,
    ) -> None:
        self.servers = servers
        self.stores: tuple[ServerAddress, ...] = ()
        self.login = login
        self._coordinator = coordinator
        self._verifier = verifier
        self._balance = BalanceReader(coordinator) if coordinator else None
        self.engine: EngineReport | None = None

    async def look(self) -> BalanceView | None:
        """Read the coordinator's current state, and use the servers of its ring from now on."""
        from shoal.plan.keys import RING_KEY

        if self._coordinator is None or self._balance is None:
            return None
        self.engine = None
        with contextlib.suppress(CoordinatorError, ProtocolError):
            self.engine = await read_report(self._coordinator, MAIN)
        with contextlib.suppress(CoordinatorError):
            stored = await self._coordinator.get(RING_KEY)
            if stored is not None:
                ring: Ring = self._verifier.ring(stored.value)
                self.servers = ring.servers
                self.stores = await stores_of(self._coordinator, self._verifier)
                return await self._balance.look(ring)
        return None


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "top",
        run_top,
        "show live load by server and channel, and the balancer's actions",
        example="shoal top\nshoal top --once --json",
        description="Show the load by server and the busiest channels, and by store and queue, every second, from the "
        "agents' telemetry; and the balancer's last plans and moves with their reasons, and joining and leaving "
        "servers, from the coordinator.",
    )
    parser.add_argument("--once", action="store_true", help="show one snapshot and exit (also with --json alone)")
    parser.add_argument("--seconds", type=float, metavar="N", help="exit after N seconds (default: on Ctrl-C)")
    parser.add_argument(
        "--channels", type=int, default=CHANNELS, metavar="N", help=f"number of channels (default {CHANNELS})"
    )


def run_top(args: argparse.Namespace) -> int:
    """Show the load; 0 if any server has telemetry."""
    if args.seconds is not None and not 0 < args.seconds < float("inf"):
        raise ConfigError(f"--seconds is {args.seconds}", do="give a number above 0")
    if args.channels < 0:
        raise ConfigError(f"--channels is {args.channels}", do="give 0 or more")
    snapshot = asyncio.run(_show(args))
    result(args, msgspec.to_builtins(snapshot), "")
    return 0 if any(server.second is not None for server in snapshot.servers) else 1


async def _show(args: argparse.Namespace) -> ClusterSnapshot:
    async with _opened(args) as source:
        snapshot = await look(source, args.channels)
        if not args.once and not (args.json and args.seconds is None):
            return await _watch(args, source, snapshot)
        if not args.json:
            console(args).print(render(snapshot))
        return snapshot


async def _watch(args: argparse.Namespace, source: Source, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Show snapshots until the time is over or the user exits."""
    from rich.live import Live

    ends_at = None if args.seconds is None else time.monotonic() + args.seconds
    try:
        with Live(render(snapshot), console=console(args), auto_refresh=False) as live:
            while ends_at is None or time.monotonic() < ends_at:
                left_s = REFRESH_S if ends_at is None else min(REFRESH_S, ends_at - time.monotonic())
                await asyncio.sleep(max(left_s, 0))
                snapshot = await look(source, args.channels)
                live.update(render(snapshot), refresh=True)
    except asyncio.CancelledError:
        pass  # Ctrl-C is the normal way to exit
    return snapshot


@contextlib.asynccontextmanager
async def _opened(args: argparse.Namespace) -> AsyncIterator[Source]:
    """Open the cluster of the settings, or the local one: its servers and its coordinator."""
    from shoal.cluster.acl import READER
    from shoal.cluster.state import find_cluster
    from shoal.plan.signature import Verifier
    from shoal.runtime import PRODUCTION

    async with contextlib.AsyncExitStack() as stack:
        if args.settings.coordinator:
            yield await _named_source(args.settings.coordinator, stack)
            return
        state = find_cluster(args.settings.state_path)
        servers = state.server_addresses()
        coordinator: Coordinator | None = None
        with contextlib.suppress(CoordinatorError):  # telemetry can be read without it
            url = state.url_for(READER)
            opened = await PRODUCTION.coordinator(url, _COORDINATOR_TIMEOUT_S)
            coordinator = await stack.enter_async_context(opened)
        login = state.address_for(READER)
        yield Source(servers, login, coordinator, Verifier(bytes.fromhex(state.public_key)))


async def _named_source(url: str, stack: contextlib.AsyncExitStack) -> Source:
    from shoal.coordination.link import parse_address
    from shoal.plan.format import require_format
    from shoal.plan.keys import PUBLIC_KEY, RING_KEY
    from shoal.plan.signature import Verifier
    from shoal.runtime import PRODUCTION

    address = parse_address(url, None, None)
    coordinator = await PRODUCTION.coordinator(url, _COORDINATOR_TIMEOUT_S)
    await stack.enter_async_context(coordinator)
    await require_format(coordinator)
    key, ring = await coordinator.get(PUBLIC_KEY), await coordinator.get(RING_KEY)
    if key is None or ring is None:
        raise ClusterNotFoundError("the coordinator has no ring yet", do="start the servers' agents")
    verifier = Verifier(key.value)
    return Source(verifier.ring(ring.value).servers, address, coordinator, verifier)


async def look(source: Source, channels_max: int) -> ClusterSnapshot:
    """Read the plan from the coordinator, and the last record of all servers in parallel."""
    balance = await source.look()
    found = await last_records((*source.servers, *source.stores), source.login, _ASK_TIMEOUT_S)
    servers, channels = _loads(source.servers, found, channels_max)
    stores, queues = _store_loads(source.stores, found, channels_max)
    ratios = [load.load_ratio for load in servers if load.load_ratio is not None and load.trouble is None]
    return ClusterSnapshot(
        at=time.time(),
        load_mean=sum(ratios) / len(ratios) if ratios else None,
        load_max=max(ratios, default=None),
        servers=tuple(servers),
        channels=tuple(channels),
        balance=balance,
        stores=tuple(stores),
        queues=queues,
        engine=source.engine,
    )


def _store_loads(
    hosts: Iterable[ServerAddress], found: Mapping[str, LastRecord], queues_max: int
) -> tuple[list[StoreRow], tuple[QueueRow, ...]]:
    now = time.time()
    stores, records = list[StoreRow](), list["TelemetryRecord"]()
    for store in hosts:
        written_at, record, trouble = found[store.id]
        if record is None:
            stores.append(StoreRow(store.id, f"{store.host}:{store.port}", trouble))
        else:
            stores.append(store_row(store, record, now - written_at, STALE_S))
            records += [record] if now - written_at < STALE_S else []
    return stores, queue_rows(records, queues_max)


def _loads(
    hosts: Iterable[ServerAddress], found: Mapping[str, LastRecord], channels_max: int
) -> tuple[list[ServerRow], list[ChannelLoad]]:
    now = time.time()
    servers = []
    channels: list[ChannelLoad] = []
    for server in hosts:
        written_at, record, trouble = found[server.id]
        if record is None:
            servers.append(ServerRow(server.id, f"{server.host}:{server.port}", trouble))
        else:
            servers.append(summarize(server, record, now - written_at))
            if now - written_at < STALE_S:
                channels += busiest(server.id, record, channels_max)
    channels.sort(key=lambda load: (-load.bytes_out_per_s, -load.publications_per_s, load.channel))
    return servers, channels[:channels_max]


def summarize(server: ServerAddress, record: TelemetryRecord, age_s: float) -> ServerRow:
    """Return the row of a server."""
    row: Mapping[str, Any] = record.host
    interval_s = row["interval_s"] or 1.0
    return ServerRow(
        id=server.id,
        address=f"{server.host}:{server.port}",
        trouble=f"no data for {age_s:.0f} s" if age_s >= STALE_S else None,
        second=record.id.second,
        age_s=round(max(age_s, 0.0), 3),
        channels=len(record.tables[CHANNEL]),
        publications_per_s=_sum(record, "publications") / interval_s,
        sent_per_s=_sum(record, "messages_sent") / interval_s,
        bytes_out_per_s=row["bytes_out_per_s"],
        max_out_bytes_per_s=row["max_out_bytes_per_s"],
        load_ratio=row["load_ratio"],
        cpu_share=row["cpu_share"],
        connections=row["connections"],
    )


def _sum(record: TelemetryRecord, column: str) -> int:
    return int(record.tables[CHANNEL][column].sum())


def busiest(server: str, record: TelemetryRecord, channels_max: int) -> Iterable[ChannelLoad]:
    """Return the rows of the channels with the most output, at most `channels_max`."""
    import numpy as np

    channels = record.tables[CHANNEL]
    order = np.lexsort((-channels["publications"], -channels["bytes_out"]))[:channels_max]
    interval_s = record.host["interval_s"] or 1.0
    for name, row in channels.take(order).rows().items():
        yield ChannelLoad(
            channel=name.decode("utf-8", "backslashreplace"),
            server=server,
            publications_per_s=row["publications"] / interval_s,
            sent_per_s=row["messages_sent"] / interval_s,
            bytes_out_per_s=row["bytes_out"] / interval_s,
            publishers=row["publishers"],
            subscribers=row["subscribers"],
            pattern_subscribers=row["pattern_subscribers"],
        )


def render(snapshot: ClusterSnapshot) -> Group:
    """Return tables of servers, channels and the balancer's last moves."""
    from rich.console import Group
    from rich.text import Text

    loads = f"load average {share_text(snapshot.load_mean)}, busiest {share_text(snapshot.load_max)}"
    counts = ("publ./s", "sent/s", "out", "load", "CPU", "clients", "channels")
    servers = table(f"{plural(len(snapshot.servers), 'server')}, {loads}", ("server", "state"), counts)
    pool_states = snapshot.balance.pool_states if snapshot.balance else {}
    for load in snapshot.servers:
        servers.add_row(
            load.id,
            pool_states.get(load.id, "-"),
            *(count_text(load.publications_per_s), count_text(load.sent_per_s), size_text(load.bytes_out_per_s, "/s")),
            *(share_text(load.load_ratio), share_text(load.cpu_share)),
            *(count_text(load.connections), count_text(load.channels)),
        )
    troubles = [Text(f"{load.id} ({load.address}): {load.trouble}") for load in snapshot.servers if load.trouble]
    figures = ("publ./s", "sent/s", "out", "publ.", "subs.", "patterns")
    channels = table("busiest channels", ("channel", "server"), figures)
    pinned = {*snapshot.balance.pinned} if snapshot.balance else set()
    for channel in snapshot.channels:
        name = printable(channel.channel.encode())
        channels.add_row(
            Text(name),
            f"{channel.server} pinned" if name in pinned else channel.server,
            *(
                count_text(channel.publications_per_s),
                count_text(channel.sent_per_s),
                size_text(channel.bytes_out_per_s, "/s"),
            ),
            *(str(channel.publishers), str(channel.subscribers), str(channel.pattern_subscribers)),
        )
    balance = render_balance(snapshot.balance) if snapshot.balance else ()
    queues = render_queues(snapshot.stores, snapshot.queues)
    engine = (Text(engine_line(snapshot.engine)), Text()) if snapshot.engine is not None else ()
    return Group(servers, *troubles, Text(), channels, Text(), *queues, *engine, *balance)
