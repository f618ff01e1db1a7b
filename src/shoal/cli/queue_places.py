"""`shoal queue move`, `abandon` and `recover`: the stores of queues, and what to do without one.

Owns the checks before a request and the reports after it. `queue_changes` sends requests and waits for them.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.output import Subparsers, note, plural, result
from shoal.cli.queue_changes import Change, add_change, check_timeout
from shoal.errors import ConfigError, QueueError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator
    from shoal.plan.queue_entry import QueueEntry
    from shoal.plan.queue_request import QueueRequest

_TIMEOUT_S: Final = 5.0
_MOVE_S: Final = 600.0
_SHARDS: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def register_places(group: Subparsers) -> None:
    """Add the commands to `shoal queue`."""
    move = add_change(
        group,
        "move",
        run_move,
        "move the shards of a queue to another store",
        "shoal queue move orders --to q2\nshoal queue move orders --to q2 --shards 0,3-5",
        "Move shards of a queue to another store, one at a time, with their messages. Each one stands still for a "
        "moment; producers and consumers follow. If a shard cannot be moved, the rest stays where it is.",
        _MOVE_S,
    )
    move.add_argument("--to", required=True, metavar="STORE", help="the store, as `shoal status` names it")
    move.add_argument("--shards", metavar="LIST", help="shards to move, for example 0,3-5 (default: all)")


# Moving


def run_move(args: argparse.Namespace) -> int:
    """Move shards."""
    from shoal.cli.plan import coordinator_of
    from shoal.plan.queue_request import MoveShards, check_name
    from shoal.runtime import PRODUCTION

    check_timeout(args)
    check_name(args.name.encode())
    wanted = None if args.shards is None else _read_shards(args.shards)
    url, key = coordinator_of(args)
    began = time.monotonic()
    shards: list[int] = []
    moved: list[int] = []

    def make(unit: bytes, entry: QueueEntry | None) -> QueueRequest:
        assert entry is not None, "only a queue that exists is moved"
        shards[:] = range(len(entry.places)) if wanted is None else wanted
        if strangers := [shard for shard in shards if shard >= len(entry.places)]:
            raise ConfigError(
                f"queue {args.name} has no shard {strangers[0]}", do=f"name shards from 0 to {len(entry.places) - 1}"
            )
        return MoveShards(unit, dict.fromkeys(shards, args.to), secrets.token_hex(8))

    def progress(entry: QueueEntry) -> None:
        there = {*entry.shards_at(args.to)}
        now = [shard for shard in shards if shard in there]
        if len(now) > len(moved):
            note(f"{len(now)} of {plural(len(shards), 'shard')} on {args.to}")
        moved[:] = now

    async def run() -> Change:
        async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
            change = Change(coordinator, args.name, key)
            if await change.read() is not None:  # a queue that does not exist is reported first
                await _check_store(coordinator, args.to, key)
            await change.request("moved", make, None if args.no_wait else args.timeout, progress)
            return change

    change = asyncio.run(run())
    if change.entry is not None:
        progress(change.entry)
    done = change.done and len(moved) == len(shards)
    outcome = f"{plural(len(moved), 'shard')} on {args.to}" if done else change.outcome
    if not done and not args.no_wait:
        outcome += f"; {len(moved)} of {plural(len(shards), 'shard')} on {args.to}"
    facts: dict[str, Any] = {
        "queue": args.name,
        "moved": done,
        "outcome": outcome,
        "to": args.to,
        "shards": moved,
        "seconds": round(time.monotonic() - began, 3),
    }
    result(args, facts, f"{args.name}: {outcome}")
    return 0 if done or args.no_wait else 1


def _read_shards(text: str) -> list[int]:
    """The shards of a list such as 0,3-5."""
    found: set[int] = set()
    for part in text.split(","):
        match = _SHARDS.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"--shards {text!r} cannot be read", do="give numbers and ranges, for example 0,3-5")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not found:
        raise ConfigError(f"--shards {text!r} names no shard", do="give numbers and ranges, for example 0,3-5")
    return sorted(found)


# The stores


async def _check_store(coordinator: Coordinator, store: str, key: bytes | None) -> None:
    """Raise an error if a store is not alive, or not known."""
    from shoal.coordination.acl import STORES

    live = await coordinator.members(STORES)
    if store in live:
        return
    there = ", ".join(sorted(live)) or "none is"
    if any(store in {one.id for one in entry.stores} for entry in (await read_entries(coordinator, key)).values()):
        raise QueueError(f"store {store} is away", do=f"start it again, or choose one that is alive: {there}")
    raise QueueError(f"there is no store {store}", do=f"choose one that is alive: {there}")


async def read_entries(coordinator: Coordinator, key: bytes | None) -> dict[str, QueueEntry]:
    """The entries of all queues, by name; without those that are being dropped."""
    from shoal.plan.keys import PUBLIC_KEY, entries_prefix
    from shoal.plan.kinds import QUEUE
    from shoal.plan.queue_entry import QueueEntry
    from shoal.plan.signature import Verifier

    public = await coordinator.get(PUBLIC_KEY)
    if key is None and public is None:
        return {}
    verifier = Verifier(key or (public.value if public else b""))
    stored = await coordinator.list(entries_prefix(QUEUE))
    entries = [verifier.line(one.value, QueueEntry) for one in stored.values()]
    return {entry.unit.decode(): entry for entry in entries if not entry.dropped}
