"""`shoal plan show`: the ring, who holds its lease, the entries, where single channels live, and which ones move.

Owns the reading of the plan for people. Believes nothing without a signature: what does not carry the
cluster's is shown as such, and the exit status says so.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, result
from shoal.cli.plan_audit import register_audit
from shoal.cli.plan_move import register_move
from shoal.cli.plan_moves import MoveView, describe_moves, read_moves
from shoal.cli.plan_propose import register_propose
from shoal.errors import CoordinatorError, PlanError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator, LeaseInfo
    from shoal.plan.book import PlanBook

_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "shoal plan show\nshoal plan show tile.3.4 --json\nshoal plan show --moves"


class ServerView(msgspec.Struct, frozen=True):
    """A server of the ring. `lease` is held, none, or unknown to who may not read leases. A guest is no home."""

    id: str
    host: str
    port: int
    lease: str
    lease_remaining_s: float | None
    home: bool = True


class PlacementView(msgspec.Struct, frozen=True):
    """Where a channel lives. `source` is entry or ring; an entry that is not signed is not followed."""

    channel: str
    source: str
    mode: str
    servers: tuple[str, ...]
    version: int
    home: str
    signature_ok: bool


class PlanView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the coordinator holds; `moves` only if they were asked for."""

    ring_version: int
    signature_ok: bool
    servers: tuple[ServerView, ...]
    entries: tuple[PlacementView, ...]
    channels: tuple[PlacementView, ...]
    moves: tuple[MoveView, ...] | None = None

    @property
    def sound(self) -> bool:
        """Whether there is a ring, and nothing unsigned."""
        return self.signature_ok and all(view.signature_ok for view in (*self.entries, *self.channels))


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "plan",
        help="the plan, and why each channel is where it is",
        description="The plan, and why each channel is where it is.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = add_command(
        group,
        "show",
        run_show,
        "show the ring, its servers and the entries, or where channels live",
        example=_EXAMPLE,
    )
    show.add_argument("channels", nargs="*", metavar="CHANNEL", help="say where this channel lives")
    show.add_argument("--moves", action="store_true", help="show the channels that move, and who is waited for")
    register_move(group)
    register_propose(group)
    register_audit(group)


def run_show(args: argparse.Namespace) -> int:
    """Show the plan, or where channels live."""
    from shoal.wire.envelope import check_channel_name

    channels = [check_channel_name(name, args.settings.limits) for name in args.channels]
    url, key = coordinator_of(args)
    view = asyncio.run(read_plan(url, key, channels, moves=args.moves))
    result(args, msgspec.to_builtins(view), describe(view, bool(channels)))
    return 0 if view.sound else 1


def coordinator_of(args: argparse.Namespace) -> tuple[str, bytes | None]:
    """The coordinator's address, and the key to check by if it is known otherwise than from the
    coordinator."""
    if args.settings.coordinator:
        return args.settings.coordinator, None
    from shoal.cluster.acl import ADMIN
    from shoal.cluster.state import find_cluster

    state = find_cluster(args.settings.state_path)
    return state.url_for(ADMIN), bytes.fromhex(state.public_key)


async def read_plan(url: str, key: bytes | None, channels: list[bytes], *, moves: bool = False) -> PlanView:
    """What the coordinator holds, checked by `key`, or by the key that the coordinator names itself."""
    from shoal.coordination.redis import RedisCoordinator
    from shoal.plan import keys
    from shoal.plan.book import PlanBook
    from shoal.plan.format import require_format
    from shoal.plan.signing import Verifier

    async with await RedisCoordinator.connect(url, timeout_s=_TIMEOUT_S) as coordinator:
        await require_format(coordinator)
        stored = {name: kept.value for name, kept in (await coordinator.list(keys.PLAN_PREFIX)).items()}
        leases = await _leases(coordinator)
        key = key or stored.get(keys.PUBLIC_KEY)
        if key is None or keys.RING_KEY not in stored:
            raise PlanError("the coordinator holds no plan yet", do="start the servers' agents and their keeper")
        book = PlanBook(Verifier(key))
        if not _accepted(book, stored[keys.RING_KEY], ring=True):
            return PlanView(0, False, (), (), ())
        signed = {
            channel: _accepted(book, data)
            for name, data in sorted(stored.items())
            if (channel := keys.entry_unit(name)) is not None
        }
        moving = await read_moves(coordinator, book) if moves else None
    ring = book.ring
    assert ring is not None
    return PlanView(
        ring.version,
        True,
        tuple(
            ServerView(server.id, server.host, server.port, *_lease_words(leases, server.id), server.id in ring.homes)
            for server in ring.servers
        ),
        tuple(_placement(book, channel, signed) for channel in signed),
        tuple(_placement(book, channel, signed) for channel in channels),
        moving,
    )


async def _leases(coordinator: Coordinator) -> dict[str, LeaseInfo] | None:
    """The servers' leases; None for who may not read them."""
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
    """The view in words."""
    if not view.signature_ok:
        return "the ring does not carry the cluster's signature: nobody will use it"
    lines = [_line(placement) for placement in view.channels]
    if view.moves is not None:
        lines += describe_moves(view.moves)
    elif not channels_only:
        lines.append(f"ring version {view.ring_version}, {len(view.servers)} servers, signature ok")
        for server in view.servers:
            remaining = f" for {server.lease_remaining_s:.1f} s" if server.lease_remaining_s is not None else ""
            guest = "" if server.home else "  guest"
            lines.append(f"  {server.id}  {server.host}:{server.port}  lease {server.lease}{remaining}{guest}")
        lines.append(f"{len(view.entries)} entries; every other channel lives where the ring says")
        lines += [f"  {_line(placement)}" for placement in view.entries]
    return "\n".join(lines)


def _line(view: PlacementView) -> str:
    name = view.channel if view.channel.isprintable() else view.channel.encode("unicode_escape").decode()
    wrong = "" if view.signature_ok else "; an entry without the cluster's signature is ignored"
    return (
        f"{name}: {view.mode} on {', '.join(view.servers)} by the {view.source}, "
        f"version {view.version}, home {view.home}{wrong}"
    )
