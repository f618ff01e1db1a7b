"""`shoal plan show --moves`: moving channels, their progress, and the agents they wait for.

Owns the display of moving entries, requests and reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.errors import PlanError, ProtocolError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator
    from shoal.plan.book import PlanBook
    from shoal.plan.entry import Entry
    from shoal.plan.move_request import MoveReport, MoveRequest
    from shoal.plan.placement import Placement


class PlaceView(msgspec.Struct, frozen=True):
    """A placement."""

    mode: str
    servers: tuple[str, ...]
    version: int


class ServerMoveView(msgspec.Struct, frozen=True):
    """An agent's report on a move. `known`: the agent uses the current revision; the counts are None if it has not
    reported yet.
    """

    server: str
    known: bool
    behind: int | None
    here: int | None
    handed: bool


class MoveView(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """A moving channel. For a request that has not started, `phase` is asked and `revision` is 0."""

    channel: str
    phase: str
    from_: tuple[PlaceView, ...]
    to: PlaceView
    publishing: tuple[str, ...]
    revision: int
    eager: bool
    helped: tuple[str, ...]
    requested: bool
    servers: tuple[ServerMoveView, ...]


async def read_moves(coordinator: Coordinator, book: PlanBook) -> tuple[MoveView, ...]:
    """Return the moves of the entries in the book, and the waiting requests."""
    from shoal.plan.entry import Phase
    from shoal.plan.keys import moves_prefix, reports_prefix

    requests = _requests([kept.value for kept in (await coordinator.list(moves_prefix())).values()])
    reports = _reports([kept.value for kept in (await coordinator.list(reports_prefix())).values()])
    moving = {channel: entry for channel, entry in book.entries.items() if entry.phase is not Phase.END}
    views = [
        _moving(book, moving[channel], channel in requests, reports)
        if channel in moving
        else _requested(book, requests[channel])
        for channel in sorted(moving.keys() | requests.keys())
    ]
    return tuple(views)


def _requests(stored: list[bytes]) -> dict[bytes, MoveRequest]:
    """Return the valid requests; the conductor drops the others."""
    from shoal.plan.move_request import decode_request

    found = {}
    for data in stored:
        try:
            request = decode_request(data)
        except PlanError:
            continue
        found[request.unit] = request
    return found


def _reports(stored: list[bytes]) -> dict[str, MoveReport]:
    from shoal.plan.move_request import decode_report

    found = {}
    for data in stored:
        try:
            report = decode_report(data)
        except ProtocolError:
            continue
        found[report.server] = report
    return found


def _moving(book: PlanBook, entry: Entry, requested: bool, reports: dict[str, MoveReport]) -> MoveView:
    ring = book.ring
    assert ring is not None
    concerned = dict.fromkeys((*entry.servers, *entry.helped, ring.home(entry.unit)))
    return MoveView(
        _text(entry.unit),
        entry.phase.value,
        tuple(_place(placement) for placement in entry.earlier),
        _place(entry.placement),
        book.placement(entry.unit).servers,
        entry.newness,
        entry.eager,
        entry.helped,
        requested,
        tuple(_server(server, entry, reports.get(server)) for server in concerned if server in ring.ids),
    )


def _requested(book: PlanBook, request: MoveRequest) -> MoveView:
    now = book.placement(request.unit)
    return MoveView(
        _text(request.unit),
        "asked",
        (_place(now),),
        PlaceView(request.mode.value, request.servers, 0),
        now.servers,
        0,
        request.eager,
        (),
        True,
        (),
    )


def _server(server: str, entry: Entry, report: MoveReport | None) -> ServerMoveView:
    said = report.channels.get(entry.unit) if report else None
    if said is None:
        return ServerMoveView(server, False, None, None, False)
    known = said.revision >= entry.newness
    return ServerMoveView(server, known, said.behind, said.here, known and said.handed >= entry.since)


def _place(placement: Placement) -> PlaceView:
    return PlaceView(placement.mode.value, placement.servers, placement.version)


def _text(channel: bytes) -> str:
    return channel.decode("utf-8", "backslashreplace")


def describe_moves(moves: tuple[MoveView, ...]) -> list[str]:
    """Format the moves as text, one line per channel and one per server involved."""
    lines = [f"{len(moves)} channels move" if len(moves) != 1 else "1 channel moves"]
    for move in moves:
        old = " and ".join(_words(place) for place in move.from_)
        facts = [f"revision {move.revision}"] if move.revision else ["not started"]
        facts += ["eager"] if move.eager else []
        facts += [f"helped: {', '.join(move.helped)}"] if move.helped else []
        name = move.channel if move.channel.isprintable() else move.channel.encode("unicode_escape").decode()
        lines.append(f"  {name}: {move.phase}, from {old} to {_words(move.to)}, {', '.join(facts)}")
        lines += [f"    {_server_words(server)}" for server in move.servers]
    return lines


def _server_words(view: ServerMoveView) -> str:
    if view.behind is None:
        return f"{view.server}  has not reported yet"
    return (
        f"{view.server}  {'has the entry' if view.known else 'does not have the entry yet'}, {view.here} here, "
        f"{view.behind} behind{', handed over' if view.handed else ''}"
    )


def _words(place: PlaceView) -> str:
    return f"{place.mode} on {', '.join(place.servers)}"
