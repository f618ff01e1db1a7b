"""The steps of a move: which entry follows which.

Owns the table of phases and events, and how each step changes an entry. When a step is due is decided in
`shoal.plan.mover`.

A placement none of whose servers is in the ring is of no use to publishers: it is left out when a new list of
placements is made, and a channel that has no other one lives at its home. But its servers are helped from then on: if
one comes back before the move is over, subscribers may stand there that know neither of that nor of any other place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import MoveRequest
from shoal.plan.placement import Placement, at_home
from shoal.plan.ring import Ring

MOVE: Final[Mapping[tuple[Phase, str], Phase]] = {
    (Phase.END, "asked"): Phase.PREPARE,
    (Phase.PREPARE, "asked"): Phase.PREPARE,
    (Phase.PREPARE, "old servers gone"): Phase.PREPARE,
    (Phase.PREPARE, "agents know"): Phase.WIDEN,
    (Phase.PREPARE, "given up"): Phase.END,
    (Phase.PREPARE, "given up, some are helped"): Phase.NARROW,
    (Phase.PREPARE, "given up, publishers to follow"): Phase.WIDEN,
    (Phase.PREPARE, "given up, publishers followed"): Phase.SWITCH,
    (Phase.WIDEN, "asked"): Phase.PREPARE,
    (Phase.WIDEN, "subscribers stand"): Phase.SWITCH,
    (Phase.WIDEN, "time over"): Phase.SWITCH,
    (Phase.WIDEN, "given up"): Phase.END,
    (Phase.WIDEN, "given up, some are helped"): Phase.NARROW,
    (Phase.WIDEN, "given up, publishers to follow"): Phase.WIDEN,
    (Phase.WIDEN, "given up, publishers followed"): Phase.SWITCH,
    (Phase.SWITCH, "asked"): Phase.PREPARE,
    (Phase.SWITCH, "handed over"): Phase.NARROW,
    (Phase.SWITCH, "given up"): Phase.END,
    (Phase.SWITCH, "given up, some are helped"): Phase.NARROW,
    (Phase.SWITCH, "given up, publishers followed"): Phase.SWITCH,
    (Phase.NARROW, "asked"): Phase.PREPARE,
    (Phase.NARROW, "others are helped"): Phase.NARROW,
    (Phase.NARROW, "all left"): Phase.END,
}
"""How a move goes. It is given up when the agents do not learn of it in time (prepare), or when none of its new servers
is in the ring any more. `hurried`, which makes a move eager, is possible in every phase but the last and changes none.
"""


def step(phase: Phase, event: str) -> Phase:
    """The phase that follows. An event that the table does not know is a bug of ours."""
    try:
        return MOVE[phase, event]
    except KeyError:
        raise AssertionError(f"a move in phase {phase.value} cannot take {event!r}") from None


def next_revision(ring: Ring, entry: Entry | None) -> int:
    """A revision newer than everything that is known of the channel."""
    return max(ring.version, entry.newness if entry else 0) + 1


def is_alive(placement: Placement, ring: Ring) -> bool:
    """Whether the ring has any of a placement's servers."""
    return any(server in ring.ids for server in placement.servers)


def unended(channel: bytes, entry: Entry | None, ring: Ring) -> tuple[tuple[Placement, ...], Placement]:
    """The placements that subscribers stand by, oldest first, and the one of them that publishers use."""
    standing = tuple(placement for placement in entry.standing if is_alive(placement, ring)) if entry else ()
    if entry is None or not standing:
        home = at_home(ring.version, ring.home(channel))
        return (home,), home
    return standing, entry.publishing if entry.publishing in standing else standing[-1]


def _left_out(entry: Entry, ring: Ring) -> set[str]:
    """The servers of the placements that subscribers stood by and that the ring has nothing left of."""
    return {s for placement in entry.standing if not is_alive(placement, ring) for s in placement.servers}


def begin(entry: Entry | None, ring: Ring, request: MoveRequest, helped: Iterable[str] = ()) -> Entry:
    """The first entry of a move, whatever state the channel is in."""
    phase = step(entry.phase if entry else Phase.END, "asked")
    revision = next_revision(ring, entry)
    earlier, publishing = unended(request.unit, entry, ring)
    newest = Placement(revision, request.mode, request.servers)
    helped = _sorted((*helped, *(_left_out(entry, ring) if entry else ())))
    return Entry(request.unit, newest, phase, earlier, publishing.version, revision, request.eager, helped, revision)


def begin_again(entry: Entry, ring: Ring, *, event: str = "asked", eager: bool | None = None) -> Entry:
    """The same move once more, from where the channel lives now."""
    revision = next_revision(ring, entry)
    earlier, publishing = unended(entry.unit, entry, ring)
    return replace(
        entry,
        placement=replace(entry.placement, version=revision),
        phase=step(entry.phase, event),
        earlier=earlier,
        publish=publishing.version,
        revision=revision,
        eager=entry.eager if eager is None else eager,
        helped=_sorted((*entry.helped, *_left_out(entry, ring))),
        since=revision,
    )


def widen(entry: Entry, ring: Ring) -> Entry:
    """All agents concerned know of the move."""
    return _next(entry, ring, step(entry.phase, "agents know"))


def switch(entry: Entry, ring: Ring, event: str, helped: Iterable[str] = ()) -> Entry:
    """Subscribers stand by the new placement, but for those on the servers that are helped."""
    return replace(_next(entry, ring, step(entry.phase, event)), publish=0, helped=_sorted(helped))


def switch_unwidened(entry: Entry, ring: Ring) -> Entry:
    """Publishers use the new placement before anybody stands by it: the rule `widen_before_switch` is broken."""
    return replace(_next(entry, ring, Phase.SWITCH), publish=0, helped=())


def narrow(entry: Entry, ring: Ring) -> Entry:
    """The new servers know the streams of the old ones."""
    return _next(entry, ring, step(entry.phase, "handed over"))


def help_others(entry: Entry, ring: Ring, helped: Iterable[str]) -> Entry:
    """While subscribers leave, others are in need of help than before. It is the same phase still."""
    phase = step(entry.phase, "others are helped")
    return replace(entry, phase=phase, helped=_sorted(helped), revision=next_revision(ring, entry))


def end(entry: Entry, ring: Ring) -> Entry:
    """Nobody is left at the old servers."""
    ended = _next(entry, ring, step(entry.phase, "all left"))
    return replace(ended, earlier=(), publish=0, eager=False, helped=())


def hurry(entry: Entry, ring: Ring) -> Entry:
    """Whoever is behind is told at once from now on.

    A move in prepare begins again: the revision after that of a placement is always the one that widens.
    """
    if entry.phase is Phase.PREPARE:
        return begin_again(entry, ring, eager=True)
    return replace(entry, eager=True, revision=next_revision(ring, entry))


def give_up(entry: Entry, ring: Ring) -> Entry:
    """What there was before the move: its placements, and the publishers where they are.

    Where one placement remains, the move has ended; but if subscribers elsewhere are still helped, the placement is
    renewed instead, so that the help goes on until they have come.
    """
    left = tuple(placement for placement in entry.earlier if is_alive(placement, ring)) or entry.earlier[-1:]
    newest = left[-1]
    others = {s for placement in entry.earlier if placement not in left for s in placement.servers}
    entry = replace(entry, helped=_sorted((*entry.helped, *others)))
    if len(left) == 1 and not entry.helped:
        ended = _next(entry, ring, step(entry.phase, "given up"))
        return replace(ended, placement=newest, earlier=(), publish=0, eager=False)
    if len(left) == 1:
        narrowed = _next(entry, ring, step(entry.phase, "given up, some are helped"))
        renewed = replace(newest, version=narrowed.revision)
        return replace(narrowed, placement=renewed, earlier=left, publish=0)
    publishing = entry.publishing if entry.publishing in left else newest
    followed = publishing is newest
    event = f"given up, publishers {'followed' if followed else 'to follow'}"
    before = _next(entry, ring, step(entry.phase, event))
    publish = 0 if followed else publishing.version
    return replace(before, placement=newest, earlier=left[:-1], publish=publish)


def _next(entry: Entry, ring: Ring, phase: Phase) -> Entry:
    """An entry in a new phase."""
    revision = next_revision(ring, entry)
    return replace(entry, phase=phase, revision=revision, since=revision)


def _sorted(servers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*servers}))
