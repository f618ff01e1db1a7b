"""The balancer's part of `shoal top`: pool states, the last plans, and the last moves with their reasons.

Owns reading the pool and the balancer's records in the coordinator, and their view. It changes nothing. The reasons of
all moves are read again only after a new plan.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.cli.output import plural
from shoal.cli.plan_pin import names_text, printable, read_pins
from shoal.errors import CoordinatorError, PlanError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from shoal.balance.balancer_keys import BalancerState, Why
    from shoal.coordination.interface import Coordinator, Versioned
    from shoal.plan.keys import Mark
    from shoal.plan.ring import Ring

PLANS_SHOWN: Final = 3
MOVES_SHOWN: Final = 8
_DIGEST_CHARACTERS: Final = 12


class MoveRow(msgspec.Struct, frozen=True):
    """The reason for a channel's placement."""

    channel: str
    before: tuple[str, ...]
    mode: str
    servers: tuple[str, ...]
    reason: str
    figures: dict[str, float]
    digest: str
    age_s: float


class PlanRow(msgspec.Struct, frozen=True):
    """A plan and the channels still placed by it: their number, and the reasons."""

    digest: str
    policy: str
    age_s: float
    moves: int
    reasons: dict[str, int]


class BalanceView(msgspec.Struct, frozen=True):
    """The balancer's state in the coordinator. `trouble` explains missing data."""

    ring_version: int
    pool_states: dict[str, str]
    """Pool state by server: home, guest, freeing, drain, out or lost."""
    placed: int = 0
    """Channels placed by the balancer."""
    replicated: int = 0
    """Those with several servers."""
    plan_under_way: str = ""
    adding: tuple[str, ...] = ()
    """Requested servers that have not joined yet."""
    removed: tuple[str, ...] = ()
    """Servers removed last, newest first."""
    plans: tuple[PlanRow, ...] = ()
    moves: tuple[MoveRow, ...] = ()
    pinned: tuple[str, ...] = ()
    """Pinned channels, which the balancer leaves alone."""
    trouble: str | None = None

    def servers_in(self, *how: str) -> tuple[str, ...]:
        """Return the servers in these pool states."""
        return tuple(server for server, state in self.pool_states.items() if state in how)


class BalanceReader:
    """Reads a coordinator repeatedly."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._whys: dict[bytes, Why] = {}
        self._read_at: int | None = None

    async def look(self, ring: Ring) -> BalanceView:
        """Read the current state; missing permissions are shown in the view."""
        from shoal.balance.balancer_keys import STATE_KEY, BalancerState, decode
        from shoal.plan import keys

        try:
            marks = {
                keys.pool_server(key): keys.read_mark(stored.value)
                for key, stored in (await self._coordinator.list(keys.POOL_PREFIX)).items()
            }
            pins = await read_pins(self._coordinator) or ()
            stored = await self._coordinator.get(STATE_KEY)
            state = decode(stored.value, BalancerState) if stored else BalancerState()
            await self._read_whys(stored)
        except (CoordinatorError, PlanError) as error:
            return BalanceView(ring.version, pool_states_of(ring, {}), trouble=str(error))
        return view_of(ring, marks, state, self._whys, time.time(), pins)

    async def _read_whys(self, state: Versioned | None) -> None:
        from shoal.balance.balancer_keys import WHY_PREFIX, Why, decode, why_channel

        version = state.version if state else 0
        if version == self._read_at:
            return
        listed = await self._coordinator.list(WHY_PREFIX)
        self._whys = {
            channel: decode(stored.value, Why)
            for key, stored in listed.items()
            if (channel := why_channel(key)) is not None
        }
        self._read_at = version


def pool_states_of(ring: Ring, marks: Mapping[str, Mark]) -> dict[str, str]:
    """Return the pool states of servers in the ring and of servers with a mark."""
    found = {server: "home" if server in ring.homes else "guest" for server in ring.ids}
    return found | {server: mark.value for server, mark in marks.items()}


def view_of(
    ring: Ring,
    marks: Mapping[str, Mark],
    state: BalancerState,
    whys: Mapping[bytes, Why],
    now_s: float,
    pins: Iterable[bytes] = (),
) -> BalanceView:
    """Build the view from the records."""
    newest = sorted(whys.items(), key=lambda item: (-item[1].at_s, -item[1].figures.get("bytes_out", 0.0), item[0]))
    return BalanceView(
        ring_version=ring.version,
        pool_states=pool_states_of(ring, marks),
        placed=len(whys),
        replicated=sum(len(why.after.servers) > 1 for why in whys.values()),
        plan_under_way=state.digest,
        adding=tuple(state.adding),
        removed=state.removed,
        pinned=tuple(map(printable, pins)),
        plans=tuple(_plans((why for _, why in newest), now_s))[:PLANS_SHOWN],
        moves=tuple(
            MoveRow(
                channel=channel.decode("utf-8", "backslashreplace"),
                before=why.before.servers,
                mode=why.after.mode.value,
                servers=why.after.servers,
                reason=why.reason,
                figures=why.figures,
                digest=why.digest,
                age_s=round(max(now_s - why.at_s, 0.0), 1),
            )
            for channel, why in newest[:MOVES_SHOWN]
        ),
    )


def _plans(newest_first: Iterable[Why], now_s: float) -> Iterable[PlanRow]:
    by_digest: dict[str, list[Why]] = {}
    for why in newest_first:
        by_digest.setdefault(why.digest, []).append(why)
    for digest, group in by_digest.items():
        reasons = dict(Counter(why.reason for why in group).most_common())
        yield PlanRow(digest, group[0].policy, round(max(now_s - group[0].at_s, 0.0), 1), len(group), reasons)


# -- Display -------------------------------------------------------------------------------------------------


def render_balance(view: BalanceView) -> list[RenderableType]:
    """Return a few lines about the plan, and a table of the last moves."""
    from rich.text import Text

    if view.trouble:
        return [Text(f"ring version {view.ring_version}; balancer: {view.trouble}")]
    lines: list[RenderableType] = [Text(text) for text in _lines(view)]
    if view.moves:
        moves = table("last moves", ("ago", "channel", "from", "load", "to", "reason"), ())
        for move in view.moves:
            mode = "" if move.mode == "single" else f" ({move.mode})"
            left = move.figures.get("left_before")
            moves.add_row(
                _ago(move.age_s),
                Text(printable(move.channel.encode())),
                ", ".join(move.before),
                "-" if left is None else f"{100 * left:.0f} %",
                f"{', '.join(move.servers)}{mode}",
                Text(move.reason),
            )
        lines.append(moves)
    return lines


def table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    """A table without borders, so that it fits 80 columns; long names of channels and queues take several lines."""
    from rich.table import Table

    found = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in left:
        found.add_column(heading, no_wrap=heading not in ("channel", "queue"), overflow="fold")
    for heading in right:
        found.add_column(heading, justify="right", no_wrap=True)
    return found


def _lines(view: BalanceView) -> Iterable[str]:
    under_way = f"plan {_short(view.plan_under_way)} is under way" if view.plan_under_way else "no plan is under way"
    yield (
        f"ring version {view.ring_version}, {plural(view.placed, 'channel')} placed by the balancer, "
        f"{view.replicated} of them replicated; {under_way}"
    )
    if view.pinned:
        yield f"pinned, so left alone: {names_text(view.pinned)}"
    for plan in view.plans:
        reasons = ", ".join(f"{count} {reason}" for reason, count in plan.reasons.items())
        moves = f"{plural(plan.moves, 'move')} ({reasons})"
        yield f"plan {_short(plan.digest)} by {plan.policy}, {_ago(plan.age_s)} ago: {moves}"
    groups = {
        "being added": view.adding,
        "being drained": view.servers_in("freeing", "drain"),
        "out of the ring": tuple(server for server in view.servers_in("out") if server not in view.removed),
        "lost": view.servers_in("lost"),
        "removed": view.removed[:MOVES_SHOWN],
    }
    changes = [f"{what} {', '.join(servers)}" for what, servers in groups.items() if servers]
    if changes:
        yield f"servers: {'; '.join(changes)}"


def _short(digest: str) -> str:
    return digest[:_DIGEST_CHARACTERS]


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
