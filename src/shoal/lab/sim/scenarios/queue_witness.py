"""What the scripts of operators and agents do to a store in the scenario `queue`, seen from outside.

Owns the comparison of a store's keys before and after a call: which messages a purge, a drop or a `forget` deletes,
which dead letter a replay puts back, and whether a put keeps the bounds. Reads keys only, and knows of scripts no more
than their names. Whether a deletion was allowed depends on what the operator does then, not on what it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.errors import QueueError, QueueFullError, TooManyIdsError, TooManyKeysError
from shoal.lab.sim.scenarios.queue_history import StoredQueue
from shoal.queues.script_loader import Scripts
from shoal.wire.commands import Command

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.queue import QueueRun

REPAIRS: Final = (b"purge", b"forget", b"replay", b"release")


class Witness:
    """Watches the stores of a run."""

    def __init__(self, run: QueueRun, scripts: Scripts) -> None:
        self.doing = ""
        """What the operator does now: no other repair may have an effect."""
        self.effects: list[tuple[str, int]] = []
        """What repairs have done: the operation and the number of a message; 0 for a key that was released."""
        self.told: dict[type[QueueError], float] = {}
        """When a batch last met a bound, by the error that says so."""
        self._run = run
        self._names = {script.sha: script.name for script in scripts}

    def around(self, store: str, command: Command, execute: Callable[[], None]) -> None:
        """Executes a command on a store, and looks at what it does."""
        name = self._names.get(command[1]) if len(command) > 4 and command[0] == b"EVALSHA" else None
        if name == "put":
            self._put(store, command[7:], execute)
        elif name == "admin" and b"drop" in command[4:7]:
            self._drop(store, execute)
        elif name == "repair" and (found := {*REPAIRS} & {*command[4:9]}):
            self._repair(store, found.pop().decode(), execute)
        else:
            execute()

    def _stored(self, store: str) -> StoredQueue:
        return StoredQueue(self._run.values(store), self._run.prefix)

    def _repair(self, store: str, operation: str, execute: Callable[[], None]) -> None:
        run, stored = self._run, self._stored(store)
        before, dead, halted = Counter(stored.numbers()), stored.dead(), stored.halted()
        held, delayed = stored.held(), stored.delayed_count()
        execute()
        after = Counter(stored.numbers())
        if operation == "purge":
            gone = [*(before - after).elements()]
            run.exercised["purged held"] += bool(held - stored.held())
            run.exercised["purged delayed"] += delayed > stored.delayed_count()
            run.exercised["purged in a move"] += bool(gone) and run.is_moving
        elif operation == "forget":
            gone = [*({*dead} - {*stored.dead()})]
        elif operation == "replay":
            gone = [*(after - before).elements()]
            run.exercised["replayed halted"] += bool(halted - stored.halted())
            for number in gone:
                run.history.replays.setdefault(number, []).append(run.world.now)
        else:
            gone = [0] * len(halted - stored.halted())
        self.effects += [(operation, number) for number in gone]
        if gone and self.doing != operation:
            run.violated("late", f"{operation} changed {gone[:5]} on {store} at t={run.world.now:.3f}, unasked")
        if operation in ("purge", "forget"):
            run.history.remove(gone)

    def _drop(self, store: str, execute: Callable[[], None]) -> None:
        run, stored, entry = self._run, self._stored(store), self._run.operator.entry
        counted = store in run.current_stores
        before, dead = Counter(stored.numbers()), {*stored.dead()}
        execute()
        gone = [*(before - Counter(stored.numbers())).elements(), *(dead - {*stored.dead()})]
        if not counted:
            return  # what was abandoned, or a copy of a shard that has moved
        if gone and (entry is None or not entry.dropped):
            run.violated("late", f"drop deleted {gone[:5]} on {store} at t={run.world.now:.3f}, not planned")
        run.exercised["dropped messages"] += bool(gone)
        run.history.remove(gone)

    def _put(self, store: str, words: Command, execute: Callable[[], None]) -> None:
        """On one store the bounds are exact."""
        run = self._run
        if run.store_count > 1:
            execute()
            return
        stored, now = self._stored(store), run.world.now
        had = _sizes(stored)
        execute()
        has = _sizes(stored)
        grouped = words[0] != b""  # then key and body; otherwise shard, key, body, id and delay
        fields, body = (2, 1) if grouped else (5, 2)
        messages = [words[at : at + fields] for at in range(1, len(words), fields)]
        largest = max((len(message[body]) for message in messages), default=0)
        delayed = {message[1] for message in messages if not grouped and message[4] != b"0"}
        limits = {name: run.history.limits(name, now, now) for name in has}
        for name, size in has.items():
            if size > had[name] and limits[name] and size > max(limits[name]):
                run.violated("over bound", f"{size} of {max(limits[name])} ({name}) after a put at t={now:.3f}")
        margins = {"messages_max": 1, "bytes_max": largest, "keys_max": 1 + len(delayed), "dedupe_ids_max": 1}
        for name, error in ERRORS.items():
            if limits[name] and has[name] + margins[name] > min(limits[name]):
                self.told[error] = now
                run.exercised["full of bytes"] += name == "bytes_max"

    def check_refusal(self, error: QueueError, since: float) -> None:
        """A put was refused: did a batch meet that bound?"""
        run = self._run
        if run.store_count == 1 and self.told.get(type(error), -1.0) < since:
            run.violated("refused", f"{error} at t={run.world.now:.3f}, but there was room since t={since:.3f}")

    def watch(self, store: str) -> Callable[[Command, Callable[[], None]], None]:
        """The watch of one store."""
        return partial(self.around, store)


ERRORS: Final[dict[str, type[QueueError]]] = {
    "messages_max": QueueFullError,
    "bytes_max": QueueFullError,
    "keys_max": TooManyKeysError,
    "dedupe_ids_max": TooManyIdsError,
}
"""The error of each bound."""


def _sizes(stored: StoredQueue) -> dict[str, int]:
    """What the bounds count."""
    messages = sum(1 for _ in stored.bodies())
    return {
        "messages_max": messages,
        "bytes_max": stored.byte_count(),
        "keys_max": stored.key_count(),
        "dedupe_ids_max": stored.id_count(),
    }
