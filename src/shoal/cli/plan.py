"""`shoal plan show`: the ring, its lease holders, the entries, the placement of single channels, and moves.

Owns the display of the plan. Signatures are always checked: parts without the cluster's signature are shown as such,
and the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.cli.output import HelpFormatter, Subparsers, add_command, plural, result
from shoal.cli.plan_audit import register_audit
from shoal.cli.plan_move import register_move
from shoal.cli.plan_moves import MoveView, describe_moves, read_moves
from shoal.cli.plan_pin import PinView, printable, read_pins, register_pin, view_pin
from shoal.cli.plan_propose import register_propose
from shoal.errors import CoordinatorError, PlanError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator, LeaseInfo
    from shoal.plan.book import PlanBook

_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "shoal plan show\nshoal plan show tile.3.4 --json\nshoal plan show --moves"


class PlanServer(msgspec.Struct, frozen=True):
    """A server of the ring. `lease` is held, none, or unknown if the login cannot read leases. A guest is not a
    home.
    """

    id: str
    host: str
    port: int
    lease: str
    lease_remaining_s: float | None
    home: bool = True


class PlacementView(msgspec.Struct, frozen=True):
    """The placement of a channel. `source` is entry or ring; an unsigned entry is not followed."""

    channel: str
    source: str
    mode: str
    servers: tuple[str, ...]
    version: int
    home: str
    signature_ok: bool


class PlanView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan in the coordinator; `moves` only if requested."""

    ring_version: int
    signature_ok: bool
    servers: tuple[PlanServer, ...]
    entries: tuple[PlacementView, ...]
    channels: tuple[PlacementView, ...]
    moves: tuple[MoveView, ...] | None = None
    public_key: str = ""
    """The key that verified the plan, in hexadecimal: it can be set in a cluster's address (`?cluster_key=`)."""
    pins: tuple[PinView, ...] | None = None
    """The pinned channels; None if the login cannot read them."""

    @property
    def sound(self) -> bool:
        """Whether there is a ring and every part is signed."""
        return self.signature_ok and all(view.signature_ok for view in (*self.entries, *self.channels))


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "plan",
        help="show the plan and explain placements",
        description="Show the plan, explain placements, and move channels.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = add_command(
        group,
        "show",
        run_show,
        "show the ring, its servers and the entries, or the placement of channels",
        example=_EXAMPLE,
    )
    show.add_argument("channels", nargs="*", metavar="CHANNEL", help="show the placement of this channel")
    show.add_argument(
        "--moves", action="store_true", help="show moving channels, and the agents that each move waits for"
    )
    register_move(group)
    register_pin(group)
    register_propose(group)
    register_audit(group)


def run_show(args: argparse.Namespace) -> int:
    """Show the plan, or the placement of channels."""
    from shoal.wire.envelope import check_channel_name

    channels = [check_channel_name(name, args.settings.limits) for name in args.channels]
    url, key = coordinator_of(args)
    view = asyncio.run(read_plan(url, key, channels, moves=args.moves))
    result(args, msgspec.to_builtins(view), describe(view, bool(channels)))
    return 0 if view.sound else 1


def coordinator_of(args: argparse.Namespace) -> tuple[str, bytes | None]:
    """Return the coordinator's address, and the cluster's public key if it is known from elsewhere."""
    if args.settings.coordinator:
        return args.settings.coordinator, None
    from shoal.cluster.acl import ADMIN
    from shoal.cluster.state import find_cluster

    state = find_cluster(args.settings.state_path)
    return state.url_for(ADMIN), bytes.fromhex(state.public_key)


async def read_plan(url: str, key: bytes | None, channels: list[bytes], *, moves: bool = False) -> PlanView:
    """Read the plan, verified with `key`, or with the key that the coordinator holds."""
    from shoal.plan import keys
    from shoal.plan.book import PlanBook
    from shoal.plan.format import require_format
    from shoal.plan.signature import Verifier
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        await require_format(coordinator)
        stored = {name: kept.value for name, kept in (await coordinator.list(keys.PLAN_PREFIX)).items()}
        leases = await _leases(coordinator)
        key = key or stored.get(keys.PUBLIC_KEY)
        if key is None or keys.RING_KEY not in stored:
            raise PlanError("the coordinator has no plan yet", do="start the servers' agents and a balancer")
        book = PlanBook(Verifier(key))
        if not _accepted(book, stored[keys.RING_KEY], ring=True):
            return PlanView(0, False, (), (), ())
        signed = {
            channel: _accepted(book, data)
            for name, data in sorted(stored.items())
            if (channel := keys.entry_unit(name)) is not None
        }
        moving = await read_moves(coordinator, book) if moves else None
        pins = await read_pins(coordinator)
    ring = book.ring
    assert ring is not None
    return PlanView(
        ring.version,
        True,
        tuple(
            PlanServer(server.id, server.host, server.port, *_lease_words(leases, server.id), server.id in ring.homes)
            for server in ring.servers
        ),
        tuple(_placement(book, channel, signed) for channel in signed),
        tuple(_placement(book, channel, signed) for channel in channels),
        moving,
        key.hex(),
        None if pins is None else tuple(view_pin(name, pin, book.placement(name)) for name, pin in pins.items()),
    )


async def _leases(coordinator: Coordinator) -> dict[str, LeaseInfo] | None:
    """Return the servers' leases; None if the login cannot read them."""
    from shoal.coordination.acl import SERVERS

    try:
        return await coordinator.leases(f"{SERVERS}/")
    except CoordinatorError:
        return None


def _lease_words(leases: dict[str, LeaseInfo] | None, server: str) -> tuple[str, float | None]:
    if leases is None:
        return "unknown", None
    lease = leases.get(f"servers/{server}")
    return ("none", None) if lease is None else ("held", lease.remaining_s)


def _accepted(book: PlanBook, data: bytes, *, ring: bool = False) -> bool:
    try:
        if ring:
            book.accept_ring(data)
        else:
            book.accept_entry(data)
    except PlanError:
        return False
    return True


def _placement(book: PlanBook, channel: bytes, signed: dict[bytes, bool]) -> PlacementView:
    from shoal.plan.placement import BY_THE_RING

    placement = book.placement(channel)
    ring = book.ring
    assert ring is not None
    return PlacementView(
        channel.decode("utf-8", "backslashreplace"),
        "entry" if signed.get(channel) and book.entries[channel].publishing == placement else "ring",
        placement.mode.value,
        placement.servers,
        placement.version & ~BY_THE_RING,
        ring.home(channel),
        signed.get(channel, True),
    )


def describe(view: PlanView, channels_only: bool) -> str:
    """Format the view as text."""
    if not view.signature_ok:
        return "the ring is not signed by the cluster: clients and agents reject it"
    pins = {pin.channel: pin for pin in view.pins or ()}
    lines = [_line(placement, pins) for placement in view.channels]
    if view.moves is not None:
        lines += describe_moves(view.moves)
    elif not channels_only:
        lines.append(f"ring version {view.ring_version}, {plural(len(view.servers), 'server')}, signature ok")
        for server in view.servers:
            remaining = f" for {server.lease_remaining_s:.1f} s" if server.lease_remaining_s is not None else ""
            guest = "" if server.home else "  guest"
            lines.append(f"  {server.id}  {server.host}:{server.port}  lease {server.lease}{remaining}{guest}")
        entries = "1 entry" if len(view.entries) == 1 else f"{len(view.entries)} entries"
        others = "all other channels" if view.entries else "all channels"
        lines.append(f"{entries}; {others} are placed by the ring")
        lines += [f"  {_line(placement, pins)}" for placement in view.entries]
    return "\n".join(lines)


def _line(view: PlacementView, pins: dict[str, PinView]) -> str:
    name = printable(view.channel.encode())
    wrong = "" if view.signature_ok else "; an entry without the cluster's signature is ignored"
    return (
        f"{name}: {view.mode} on {', '.join(view.servers)} by the {view.source}, "
        f"version {view.version}, home {view.home}{wrong}" + (f"; {pins[name].text}" if name in pins else "")
    )
