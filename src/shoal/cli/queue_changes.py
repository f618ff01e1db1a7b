"""`shoal queue create`, `configure` and `drop`: what only a leader can do.

Owns the request and the wait, also for the commands of `queue_places`. The request is in the coordinator
(`shoal.plan.queue_request`); the leader carries it out, even if this command ends. If it refuses, it says why.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.errors import ConfigError, ConflictError, PlanError, QueueError, QueueNotFoundError

if TYPE_CHECKING:
    from shoal.coordination.interface import Coordinator
    from shoal.plan.queue_entry import QueueEntry
    from shoal.plan.queue_request import QueueRequest

_TIMEOUT_S: Final = 5.0
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.05
_NONE: Final[Mapping[str, Any]] = {}
_BUSY_S: Final = 5.0
"""How long a command that does not wait for its own request waits for the one before it."""
_FLAGS: Final[dict[str, tuple[Callable[[str], Any], str, str]]] = {
    "messages_max": (int, "N", "messages that the queue holds"),
    "bytes_max": (int, "N", "bytes that the queue holds"),
    "keys_max": (int, "N", "keys with messages"),
    "attempts_max": (int, "N", "how often a message is started before it becomes a dead letter"),
    "dedupe_s": (float, "S", "how long message ids are remembered, in seconds"),
    "dedupe_ids_max": (int, "N", "message ids that are remembered"),
    "dead_max": (int, "N", "dead letters that are kept"),
    "lease_s": (float, "S", "how long a silent consumer keeps its keys, in seconds"),
}
"""Settings that can be changed: type, name of the value, help."""


def register_changes(group: Subparsers) -> None:
    """Add the commands to `shoal queue`."""
    create = add_change(
        group,
        "create",
        run_create,
        "create a queue",
        "shoal queue create orders\nshoal queue create orders --messages-max 100000 --on-dead halt",
        "Create a queue. An existing queue is not changed. The first put or take also creates a queue, with the "
        "default settings.",
    )
    create.add_argument("--shards", type=int, metavar="N", help="parts that can be on different stores (1 to 256)")
    _add_settings(create)
    configure = add_change(
        group,
        "configure",
        run_configure,
        "change the settings of a queue",
        "shoal queue configure orders --messages-max 1000000",
        "Change the settings of a queue. Settings that are not given keep their values.",
    )
    _add_settings(configure)
    drop = add_change(
        group,
        "drop",
        run_drop,
        "delete a queue and its content",
        "shoal queue drop orders --yes",
        "Delete a queue with its messages and dead letters.",
    )
    drop.add_argument("--yes", action="store_true", help="really delete it")


def add_change(
    group: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
    description: str,
    wait_s: float = _WAIT_S,
) -> argparse.ArgumentParser:
    """Add a command about one queue that the leader carries out."""
    parser = add_command(group, name, run, summary, example=example, description=description)
    parser.add_argument("name", metavar="QUEUE", help="name of the queue")
    parser.add_argument("--no-wait", action="store_true", help="send the request and return")
    add_timeout(parser, wait_s)
    return parser


def add_timeout(parser: argparse.ArgumentParser, wait_s: float) -> None:
    """Add --timeout."""
    parser.add_argument(
        "--timeout", type=float, default=wait_s, metavar="S", help=f"seconds to wait (default {wait_s:g})"
    )


def check_timeout(args: argparse.Namespace) -> None:
    """Raise an error if --timeout is impossible."""
    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout is {args.timeout:g}", do="give a number of seconds above 0")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    for name, (kind, unit, what) in _FLAGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=unit, help=what)
    parser.add_argument(
        "--on-dead", choices=("continue", "halt"), help="what a key does when its first message becomes a dead letter"
    )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the command line."""
    names = ("shards", *_FLAGS, "on_dead")
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def run_create(args: argparse.Namespace) -> int:
    """Create a queue."""
    from shoal.plan.queue_request import CreateQueue
    from shoal.plan.queue_settings import QueueSettings

    given = _given(args)
    settings = QueueSettings(**given)
    settings.validate()
    return _run(args, "created", lambda unit, entry: CreateQueue(unit, settings, secrets.token_hex(8)), given)


def run_configure(args: argparse.Namespace) -> int:
    """Change settings."""
    from shoal.plan.queue_request import ConfigureQueue

    given = _given(args)
    if not given:
        raise ConfigError("no setting is given", do="give at least one, for example --messages-max 100000")

    def request(unit: bytes, entry: QueueEntry | None) -> QueueRequest:
        assert entry is not None, "only a queue that exists is configured"
        settings = msgspec.structs.replace(entry.settings, **given)
        settings.validate()
        return ConfigureQueue(unit, settings, secrets.token_hex(8))

    return _run(args, "configured", request)


def run_drop(args: argparse.Namespace) -> int:
    """Delete a queue."""
    from shoal.plan.queue_request import DropQueue

    if not args.yes:
        raise ConfigError(f"this deletes queue {args.name} and everything in it", do="repeat the command with --yes")
    return _run(args, "dropped", lambda unit, entry: DropQueue(unit, secrets.token_hex(8)))


def _run(
    args: argparse.Namespace,
    action: str,
    make: Callable[[bytes, QueueEntry | None], QueueRequest],
    wanted: Mapping[str, Any] = _NONE,
) -> int:
    """Send a request and wait until the leader has carried it out. It fails if the queue is there afterwards without
    the settings that are wanted: another client has created it."""
    from shoal.cli.plan import coordinator_of
    from shoal.plan.queue_request import check_name
    from shoal.runtime import PRODUCTION

    check_timeout(args)
    check_name(args.name.encode())
    url, key = coordinator_of(args)

    async def run() -> QueueChange:
        async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
            change = QueueChange(coordinator, args.name, key)
            await change.request(action, make, None if args.no_wait else args.timeout)
            return change

    change = asyncio.run(run())
    found = change.entry.settings if change.entry is not None else None
    others = [
        f"{name} {getattr(found, name)}" for name, value in wanted.items() if getattr(found, name, value) != value
    ]
    if others:
        change.existed = True
        change.outcome = f"exists already with {', '.join(others)}, and stays as it is: see `shoal queue configure`"
    facts: dict[str, Any] = {"queue": args.name, action: change.done and not change.existed, "outcome": change.outcome}
    if change.entry is not None and action != "dropped":
        facts["stores"] = [store.id for store in change.entry.stores]
        facts["settings"] = msgspec.to_builtins(change.entry.settings)
    result(args, facts, f"{args.name}: {change.outcome}")
    return 0 if (change.done or args.no_wait) and not others else 1


class QueueChange:
    """One request about a queue, and what came of it."""

    def __init__(self, coordinator: Coordinator, name: str, key: bytes | None) -> None:
        self._coordinator = coordinator
        self._name = name
        self._unit = name.encode()
        self._key = key
        self.entry: QueueEntry | None = None
        self.done = False
        self.existed = False
        self.outcome = ""
        self._version = 0

    async def request(
        self,
        action: str,
        make: Callable[[bytes, QueueEntry | None], QueueRequest],
        wait_s: float | None,
        progress: Callable[[QueueEntry], None] | None = None,
    ) -> None:
        """Send the request; with `wait_s`, wait for it. `progress` gets the entry again and again meanwhile."""
        from shoal.plan.keys import KEEPER_LEASE, move_key
        from shoal.plan.kinds import QUEUE
        from shoal.plan.queue_request import CreateQueue, decode_queue_request, encode_queue_request

        self.entry = await self.read()
        if action == "created" and self.entry is not None:
            self.done, self.existed, self.outcome = True, True, "exists already, and was not changed"
            return
        if action != "created" and self.entry is None:
            raise QueueNotFoundError(f"there is no queue {self._name}", do="see `shoal queue list`")
        if await self._coordinator.lease_of(KEEPER_LEASE) is None:
            raise PlanError("no balancer is running: the plan's lease is not held", do="start the cluster (shoal up)")
        key = move_key(self._unit, QUEUE)
        until = time.monotonic() + (_BUSY_S if wait_s is None else wait_s)
        while True:
            request = make(self._unit, self.entry)
            try:
                self._version = await self._coordinator.put(key, encode_queue_request(request), expect=0)
                break
            except ConflictError as error:
                before = await self._coordinator.get(key)
                if before is None:
                    continue  # it has ended meanwhile
                if action == "created" and isinstance(decode_queue_request(before.value), CreateQueue):
                    self._version = before.version
                    note("a client has asked for this queue already")
                    break
                if time.monotonic() >= until:
                    raise QueueError(
                        f"another request about queue {self._name} is under way", do="wait a moment and try again"
                    ) from error
            await asyncio.sleep(_POLL_S)
            self.entry = await self.read()
            if self.entry is None:
                raise QueueNotFoundError(f"there is no queue {self._name} any more", do="see `shoal queue list`")
        if wait_s is None:
            self.outcome = "requested"
            return
        while (asked := await self._coordinator.get(key)) is not None and asked.version == self._version:
            if progress is not None and (entry := await self.read()) is not None:
                progress(entry)
            if time.monotonic() >= until:
                self.outcome = f"not {action} yet; the leader continues: see shoal status for stores and leader"
                return
            await asyncio.sleep(_POLL_S)
        await self._conclude(action, request)

    async def _conclude(self, action: str, request: QueueRequest) -> None:
        """The leader has ended the request: find out whether it was carried out."""
        from shoal.plan.keys import refusals_key
        from shoal.plan.kinds import QUEUE
        from shoal.plan.queue_request import ConfigureQueue
        from shoal.plan.refusal import reason_of

        self.entry = await self.read()
        refusals = await self._coordinator.get(refusals_key(QUEUE))
        why = reason_of(QUEUE, refusals.value if refusals else None, self._unit, self._version)
        if why is not None:
            self.outcome = f"not {action}: {why}"
            return
        if action == "dropped":
            self.done = self.entry is None
        elif isinstance(request, ConfigureQueue):
            self.done = self.entry is not None and self.entry.settings == request.settings
        else:
            self.done = self.entry is not None
        self.outcome = action if self.done else f"not {action}: another request followed; see the balancer's log"
        if self.done and self.entry is not None and action == "created":
            self.outcome += f" on {', '.join(store.id for store in self.entry.stores)}"

    async def read(self) -> QueueEntry | None:
        """The queue's entry; None if there is no such queue."""
        from shoal.plan.keys import PUBLIC_KEY, entry_key
        from shoal.plan.kinds import QUEUE
        from shoal.plan.queue_entry import QueueEntry
        from shoal.plan.signature import Verifier

        key, stored = await self._coordinator.get_all((PUBLIC_KEY, entry_key(self._unit, QUEUE)))
        if key is None:
            raise PlanError("the coordinator has no plan yet", do="start the cluster (shoal up)")
        if stored is None:
            return None
        entry = Verifier(self._key or key.value).line(stored.value, QueueEntry)
        return None if entry.dropped else entry
