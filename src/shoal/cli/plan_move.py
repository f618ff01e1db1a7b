"""`shoal plan move`: pins a channel, requests its move, and shows the progress.

Owns the request and the wait, also for `shoal plan pin`. The cluster's conductor carries out the move, even if this
command ends.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.plan_pin import printable
from shoal.errors import ConfigError, PlanError, UnknownServerError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator, Versioned
    from shoal.plan.book import PlanBook
    from shoal.plan.entry import Entry
    from shoal.plan.move_request import MoveRequest
    from shoal.plan.placement import Placement

_TIMEOUT_S: Final = 5.0
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.05
_MODES: Final = ("single", "all_subscribers", "all_publishers")
EXAMPLE: Final = "shoal plan move tile.3.4 --to s2\nshoal plan move lobby --to s1,s2 --mode all_subscribers --eager"


class PhaseView(msgspec.Struct, frozen=True):
    """A phase of the move, and the time since the request."""

    phase: str
    revision: int
    after_s: float


class MoveResult(msgspec.Struct, frozen=True):
    """The result of a request. `moved` means that publishers use the new placement; idle clients may not know it
    yet.
    """

    channel: str
    mode: str
    servers: tuple[str, ...]
    moved: bool
    phase: str
    revision: int
    phases: tuple[PhaseView, ...]
    seconds: float
    outcome: str
    pinned: bool


def register_move(group: Subparsers) -> None:
    """Add the command to `shoal plan`."""
    move = add_command(
        group,
        "move",
        run_move,
        "move one channel by hand",
        example=EXAMPLE,
        description="Move one channel to other servers without losing a message. Subscribers move first, then "
        "publishers. Clients are notified with the next message of the channel, or immediately with --eager. The "
        "channel is pinned: the balancer leaves it there until shoal plan release.",
    )
    move.add_argument("channel", metavar="CHANNEL")
    move.add_argument("--to", required=True, metavar="SERVER[,SERVER]", help="target servers of the channel")
    move.add_argument(
        "--mode", choices=_MODES, default="single", help="how the servers share the channel (default single)"
    )
    move.add_argument(
        "--eager", action="store_true", help="notify clients immediately instead of with the next message"
    )
    add_wait_flags(move)


def add_wait_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the wait for a request."""
    parser.add_argument("--no-wait", action="store_true", help="send the request and return")
    parser.add_argument(
        "--timeout", type=float, default=_WAIT_S, metavar="S", help=f"seconds to wait (default {_WAIT_S:g})"
    )


def run_move(args: argparse.Namespace) -> int:
    """Move a channel."""
    return run_request(args, tuple(word.strip() for word in args.to.split(",")))


def run_request(args: argparse.Namespace, servers: tuple[str, ...] | None) -> int:
    """Move a channel to servers, or pin it where it is if there are none, and wait."""
    from shoal.cli.plan import coordinator_of
    from shoal.wire.envelope import check_channel_name

    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout is {args.timeout:g}", do="give a number of seconds above 0")
    channel = check_channel_name(args.channel, args.settings.limits)
    request = None if servers is None else make_request(channel, servers, args.mode, args.eager)
    url, key = coordinator_of(args)
    came = asyncio.run(_move(url, key, channel, request, None if args.no_wait else args.timeout))
    held = f"; pinned until shoal plan release {came.channel}" if came.pinned else ""
    result(args, msgspec.to_builtins(came), f"{came.channel}: {came.outcome}{held}")
    return 0 if came.moved or args.no_wait else 1


def make_request(channel: bytes, servers: tuple[str, ...], mode: str, eager: bool) -> MoveRequest:
    """Create a request; raises PlanError if the placement is invalid."""
    from shoal.plan.move_request import MoveRequest
    from shoal.plan.placement import Mode, check_servers

    try:
        check_servers(Mode(mode), servers)
    except ValueError as error:
        shared = len(set(servers)) > 1
        advice = "give --mode all_subscribers or all_publishers" if shared else "give each server once"
        raise PlanError(str(error), do=advice) from error
    return MoveRequest(channel, servers, Mode(mode), eager, secrets.token_hex(8), lasting=True)


async def _move(
    url: str, key: bytes | None, channel: bytes, request: MoveRequest | None, wait_s: float | None
) -> MoveResult:
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        return await MoveCommand(coordinator, channel, request).run(key, wait_s)


class MoveCommand:
    """One request and its observed progress. Without a request, the channel is pinned where it is."""

    def __init__(self, coordinator: Coordinator, channel: bytes, request: MoveRequest | None) -> None:
        self._coordinator = coordinator
        self._channel = channel
        self._asked = request
        self._request: MoveRequest
        self._pinned = False
        self._began = time.monotonic()
        self._phases: list[PhaseView] = []
        self._book: PlanBook | None = None

    async def run(self, key: bytes | None, wait_s: float | None) -> MoveResult:
        """Send the request and wait for up to `wait_s`; None does not wait."""
        from shoal.balance.balancer_keys import Pin, encode, pin_key
        from shoal.balance.change import Place
        from shoal.plan.keys import move_key
        from shoal.plan.move_request import encode_request

        self._book = book = await self._checked_book(key)
        self._request = self._asked or _stay(self._channel, book)
        pin, before = pin_key(self._channel), await self._coordinator.get(pin_key(self._channel))
        place = Place(self._request.mode, self._request.servers)
        await self._coordinator.put(pin, encode(Pin(place, time.time())))  # first, so that no plan moves it meanwhile
        self._pinned = True
        if self._is_there():
            return self._result(True, "already there" if self._asked else f"stays on {self._target_words()}")
        await self._coordinator.put(move_key(self._channel), encode_request(self._request))
        if wait_s is None:
            return self._result(False, "requested; see shoal plan show --moves")
        came = await self._wait(self._began + wait_s)
        if came.phase == "end" and not came.moved:
            self._pinned = before is not None
            await (self._coordinator.put(pin, before.value) if before else self._coordinator.delete(pin))
            came = msgspec.structs.replace(came, pinned=self._pinned)
        return came

    async def _checked_book(self, key: bytes | None) -> PlanBook:
        """Return the plan after checking that it has the servers and that a conductor is running."""
        from shoal.plan import keys
        from shoal.plan.book import PlanBook
        from shoal.plan.format import require_format
        from shoal.plan.signature import Verifier

        channel = self._channel
        await require_format(self._coordinator)
        stored = await self._coordinator.list(keys.PLAN_PREFIX)
        public = key or (stored[keys.PUBLIC_KEY].value if keys.PUBLIC_KEY in stored else None)
        if public is None or keys.RING_KEY not in stored:
            raise PlanError("the coordinator has no plan yet", do="start the servers' agents and a balancer")
        book = PlanBook(Verifier(public))
        book.accept_ring(stored[keys.RING_KEY].value)
        if (entry := stored.get(keys.entry_key(channel))) is not None:
            book.accept_entry(entry.value)
        assert book.ring is not None
        ids = book.ring.ids
        wanted = self._asked.servers if self._asked else ()
        if unknown := [server for server in wanted if server not in ids]:
            raise UnknownServerError(
                f"the ring has no server {', '.join(map(repr, unknown))}", do=f"choose from {', '.join(sorted(ids))}"
            )
        if await self._coordinator.lease_of(keys.KEEPER_LEASE) is None:
            raise PlanError("no balancer is running: the plan's lease is not held", do="start the cluster (shoal up)")
        return book

    async def _wait(self, until: float) -> MoveResult:
        """Wait until the conductor has dropped the request or finished it."""
        from shoal.plan.entry import Phase
        from shoal.plan.keys import entry_key, move_key
        from shoal.plan.move_request import decode_request

        channel = self._channel
        while True:
            asked = await self._coordinator.get(move_key(channel))
            self._learn(await self._coordinator.get(entry_key(channel)))
            entry = self._entry
            if entry is not None and self._is_target(entry.placement) and entry.phase is Phase.END:
                done = "moved to" if self._asked else "stays on"
                return self._result(True, f"{done} {self._target_words()}")
            if asked is None:
                return self._dropped()
            if decode_request(asked.value).id != self._request.id:
                return self._result(False, "replaced by another request")
            if time.monotonic() >= until:
                phase = entry.phase.value if entry and self._is_target(entry.placement) else "not started"
                return self._result(False, f"not moved yet ({phase}); the move continues, see shoal plan show --moves")
            await asyncio.sleep(_POLL_S)

    def _dropped(self) -> MoveResult:
        """Return the result after the conductor has dropped the request."""
        from shoal.plan.entry import Phase

        entry = self._entry
        if entry is not None and self._is_target(entry.placement) and entry.phase is Phase.NARROW:
            old = sorted({server for placement in entry.earlier for server in placement.servers})
            idle = f"; idle and plain Redis clients on {', '.join(old)} follow later"
            return self._result(True, f"moved to {self._target_words()}{idle}")
        return self._result(False, "the move was cancelled; see the balancer's log")

    def _learn(self, stored: Versioned | None) -> None:
        """Take a new entry of the channel, and print its phase."""
        book = self._book
        assert book is not None
        if stored is None or not book.accept_entry(stored.value)[1]:
            return
        entry = self._entry
        assert entry is not None
        after_s = round(time.monotonic() - self._began, 3)
        self._phases.append(PhaseView(entry.phase.value, entry.newness, after_s))
        note(f"{after_s:.2f} s: {entry.phase.value}, revision {entry.newness}")

    @property
    def _entry(self) -> Entry | None:
        assert self._book is not None
        return self._book.entry(self._channel)

    def _is_there(self) -> bool:
        """Return whether an entry keeps the channel at the target already, and it is not moving."""
        from shoal.plan.entry import Phase

        entry = self._entry
        return entry is not None and entry.phase is Phase.END and self._is_target(entry.placement)

    def _is_target(self, placement: Placement) -> bool:
        return placement.mode is self._request.mode and {*placement.servers} == {*self._request.servers}

    def _target_words(self) -> str:
        return f"{', '.join(self._request.servers)} ({self._request.mode.value})"

    def _result(self, moved: bool, outcome: str) -> MoveResult:
        entry = self._entry
        return MoveResult(
            printable(self._channel),
            self._request.mode.value,
            self._request.servers,
            moved,
            entry.phase.value if entry else "end",
            entry.newness if entry else 0,
            tuple(self._phases),
            round(time.monotonic() - self._began, 3),
            outcome,
            self._pinned,
        )


def _stay(channel: bytes, book: PlanBook) -> MoveRequest:
    """The request that keeps a channel where it is, or where it is moving to."""
    from shoal.plan.move_request import MoveRequest

    entry = book.entry(channel)
    place = entry.placement if entry else book.placement(channel)
    return MoveRequest(channel, place.servers, place.mode, True, secrets.token_hex(8), lasting=True)
