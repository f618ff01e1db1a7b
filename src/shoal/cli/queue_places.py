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

from shoal.cli.output import Subparsers, add_command, note, plural, result
from shoal.cli.queue_changes import QueueChange, add_change, add_timeout, check_timeout
from shoal.errors import ConfigError, QueueError, QueueNotFoundError, ShoalError
from shoal.plan.queue_report import LOST

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator
    from shoal.plan.queue_entry import QueueEntry
    from shoal.plan.queue_request import QueueRequest

_TIMEOUT_S: Final = 5.0
_MOVE_S: Final = 600.0
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_SHARDS: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def register_places(group: Subparsers) -> None:
    """Add the commands to `shoal queue`."""
    move = add_change(
        group,
        "move",
        run_move,
        "move the shards of a queue to another store",
        "shoal queue move orders --to q2\nshoal queue move orders --to q2 --shards 0,3-5",
        "Move shards of a queue to another store, one at a time, with their messages. Each shard pauses for a moment; "
        "producers and consumers follow. If a shard cannot be moved, the remaining shards stay where they are.",
        _MOVE_S,
    )
    move.add_argument("--to", required=True, metavar="STORE", help="the store, as `shoal status` names it")
    move.add_argument("--shards", metavar="LIST", help="shards to move, for example 0,3-5 (default: all)")
    abandon = add_command(
        group,
        "abandon",
        run_abandon,
        "give up the shards on a store that is gone for good",
        example="shoal queue abandon orders --yes\nshoal queue abandon --store q1 --yes",
        description="Give up the shards of a queue, or of all queues, on a store that does not come back. They begin "
        "again, empty, on a store that is alive: their messages are lost. If the directory of the store exists, use "
        "`shoal queue recover` instead.",
    )
    abandon.add_argument("name", metavar="QUEUE", nargs="?", help="name of the queue")
    abandon.add_argument("--store", metavar="STORE", help="all queues with shards on this store")
    abandon.add_argument("--yes", action="store_true", help="really give them up")
    add_timeout(abandon, _WAIT_S)
    recover = add_command(
        group,
        "recover",
        run_recover,
        "restart a lost store from its directory",
        example="shoal queue recover --dir /backup/stores/q1",
        description="Start a store of the local cluster again from its directory, or from a copy of it, at the same "
        "address: its queues are available again with all messages in the directory. Run it on the machine of the "
        "cluster. In a cluster set up by hand, start a Redis on that directory at the address of the store, then its "
        "agent (docs/operations.md).",
    )
    recover.add_argument("--dir", required=True, metavar="DIR", help="the directory of the store")
    recover.add_argument("--store", metavar="ID", help="fail if it is the directory of another store")
    add_timeout(recover, _WAIT_S)


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

    async def run() -> QueueChange:
        async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
            change = QueueChange(coordinator, args.name, key)
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


# Giving up


def run_abandon(args: argparse.Namespace) -> int:
    """Give up shards."""
    from shoal.cli.plan import coordinator_of
    from shoal.runtime import PRODUCTION

    check_timeout(args)
    if args.name is not None and args.store is not None:
        raise ConfigError("a queue was given, and --store", do="give either; --store is for all queues on a store")
    if args.name is None and args.store is None:
        raise ConfigError("nothing says what to abandon", do="name a queue, or give --store")
    what = f"queue {args.name}" if args.name else f"all queues on store {args.store}"
    if not args.yes:
        raise ConfigError(
            f"this gives up the messages of {what} on a store that is gone", do="repeat the command with --yes"
        )
    url, key = coordinator_of(args)
    began = time.monotonic()

    async def run() -> list[dict[str, Any]]:
        async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
            lost = await _lost_shards(coordinator, key, args.name, args.store)
            return [await _abandon(coordinator, key, name, gone, began + args.timeout) for name, gone in lost.items()]

    abandoned = asyncio.run(run())
    done = all(one["abandoned"] for one in abandoned)
    facts = {"abandoned": done, "queues": abandoned, "seconds": round(time.monotonic() - began, 3)}
    result(args, facts, "\n".join(f"{one['queue']}: {one['outcome']}" for one in abandoned))
    return 0 if done else 1


async def _lost_shards(
    coordinator: Coordinator, key: bytes | None, name: str | None, store: str | None
) -> dict[str, tuple[str, ...]]:
    """By queue: the stores with shards of it that are gone. QueueError if there are none."""
    from shoal.coordination.acl import STORES

    live = await coordinator.members(STORES)
    entries = await read_entries(coordinator, key)
    if store is not None:
        if store in live:
            raise QueueError(f"store {store} is alive", do="nothing needs to be given up; see `shoal status`")
        found: dict[str, tuple[str, ...]] = {
            queue: (store,) for queue, entry in entries.items() if entry.shards_at(store)
        }
        if not found:
            raise QueueError(f"no queue has a shard on store {store}", do="see `shoal status`")
        return found
    assert name is not None
    if name not in entries:
        raise QueueNotFoundError(f"there is no queue {name}", do="see `shoal queue list`")
    used = [one.id for one in entries[name].stores if entries[name].shards_at(one.id)]
    gone = tuple(one for one in used if one not in live)
    if not gone:
        raise QueueError(f"the stores of queue {name} are alive: {', '.join(used)}", do="nothing needs to be given up")
    return {name: gone}


async def _abandon(
    coordinator: Coordinator, key: bytes | None, name: str, gone: tuple[str, ...], until: float
) -> dict[str, Any]:
    from shoal.plan.queue_request import AbandonShards

    shards: list[int] = []

    def make(unit: bytes, entry: QueueEntry | None) -> QueueRequest:
        assert entry is not None
        shards[:] = sorted(shard for store in gone for shard in entry.shards_at(store))
        return AbandonShards(unit, gone, secrets.token_hex(8))

    change = QueueChange(coordinator, name, key)
    await change.request("abandoned", make, max(until - time.monotonic(), 0.0))
    entry, outcome = change.entry, change.outcome
    to = ""
    if change.done and entry is not None:
        to = entry.store_of(shards[0]).id
        outcome = (
            f"{plural(len(shards), 'shard')} of {', '.join(gone)} given up, now empty on {to}; messages lost: unknown"
        )
    # No part of the cluster keeps the number of messages of a store that does not answer.
    facts = {"queue": name, "abandoned": change.done, "outcome": outcome, "stores": [*gone], "shards": shards}
    return {**facts, "to": to, "messages_lost": None}


# Recovering


def run_recover(args: argparse.Namespace) -> int:
    """Start a store again."""
    from pathlib import Path

    from shoal.cluster.acl import ADMIN, CLIENT
    from shoal.cluster.control_socket import request
    from shoal.cluster.state import StateDir, find_cluster
    from shoal.cluster.store_directory import read_store_mark
    from shoal.runtime import PRODUCTION

    check_timeout(args)
    source = Path(args.dir).absolute()
    mark = read_store_mark(source)
    if args.store is not None and args.store != mark.store:
        raise ConfigError(f"{source} is the directory of store {mark.store}, not {args.store}")
    state = find_cluster(args.settings.state_path)
    if mark.cluster != state.cluster:
        raise ConfigError(f"{source} is of cluster {mark.cluster}, not {state.cluster}")
    began = time.monotonic()
    url = state.url_for(ADMIN)

    async def check() -> tuple[list[str], bool]:
        async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
            return await _recoverable(coordinator, bytes.fromhex(state.public_key), mark.store)

    names, replace = asyncio.run(check())
    request(StateDir(args.settings.state_path), "recover", source=str(source), replace=replace)
    note(f"store {mark.store} runs; waiting for its queues")
    troubles = asyncio.run(_until_available(state.url_for(CLIENT), names, began + args.timeout, args))
    outcome = f"store {mark.store} is back with {plural(len(names) - len(troubles), 'queue')}"
    outcome += "".join(f"; {name} is not available: {why}" for name, why in troubles.items())
    facts = {
        "store": mark.store,
        "recovered": not troubles,
        "outcome": outcome,
        "queues": [name for name in names if name not in troubles],
        "unavailable": troubles,
        "seconds": round(time.monotonic() - began, 3),
    }
    result(args, facts, outcome)
    return 1 if troubles else 0


async def _recoverable(coordinator: Coordinator, key: bytes, store: str) -> tuple[list[str], bool]:
    """The queues with shards on a store, and whether the store runs but has lost them. QueueError if there is nothing
    to recover."""
    from shoal.coordination.acl import STORES
    from shoal.plan.keys import report_key
    from shoal.plan.kinds import QUEUE
    from shoal.plan.queue_report import decode_queue_report

    entries = await read_entries(coordinator, key)
    names = sorted(name for name, entry in entries.items() if entry.shards_at(store))
    if not names:
        raise QueueError(
            f"no queue is on store {store} any more: its queues were abandoned, moved or dropped",
            do="the messages in the directory cannot be merged into a queue; keep it to read them by hand",
        )
    if store not in await coordinator.members(STORES):
        return names, False
    stored = await coordinator.get(report_key(store, QUEUE))
    report = decode_queue_report(stored.value).queues if stored is not None else {}
    lost = [name for name in names if (status := report.get(name.encode())) is not None and LOST in status.trouble]
    if len(lost) < len(names):
        raise QueueError(f"store {store} is alive", do="nothing needs to be recovered; see `shoal status`")
    return names, True


async def _until_available(url: str, names: list[str], until: float, args: argparse.Namespace) -> dict[str, str]:
    """Wait until the queues can be used; returns why some cannot."""
    from shoal.bus import connect

    troubles: dict[str, str] = {}
    async with connect(url, limits=args.settings.limits) as bus:
        for name in names:
            while True:
                try:
                    await bus.queue(name).stats()
                    troubles.pop(name, None)
                    break
                except ShoalError as error:
                    troubles[name] = str(error)
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(_POLL_S)
    return troubles


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
