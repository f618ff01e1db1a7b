"""What a store's agent does with the entries of queues, without a store."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.errors import ForgedEntryError
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_mover import begin
from shoal.plan.queue_report import QueueReport, QueueStatus
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.queues.agent.core import ASKS_MAX, RETRY_S, SCRIPTS, StoreAgentCore
from shoal.queues.queue_state import pack_state
from shoal.queues.script_loader import load_scripts
from shoal.queues.shard_mover import ShardStatus

SIGNER = Signer(Signer.generate())
SCRIPT_TEXTS = load_scripts()
PREFIX = b"__shoal:q:orders:"
LOADS = ["load"] * 3
OPENS = ["open", "load", "load"]
"""The scripts of the agent, then those of clients, the first of which is `put`."""


def entry_of(name: bytes = b"orders", version: int = 5, store: str = "q1", **fields: Any) -> QueueEntry:
    settings = QueueSettings(shards=2, messages_max=fields.pop("messages_max", 1000))
    entry = QueueEntry(name, version, version, settings, (ServerAddress(store, "h", 1),), (0, 0))
    return replace(entry, **fields)


class Store:
    """The agent's core, and the keys of its store. Scripts are carried out by hand."""

    def __init__(self, before: QueueReport | None = None) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.commands: list[str] = []
        self.errors: list[str] = []
        self.pages = 0
        self.now = 0.0
        self.start(before)

    def start(self, before: QueueReport | None = None) -> None:
        """A new agent."""
        self.core = StoreAgentCore("q1", Verifier(SIGNER.public), SCRIPT_TEXTS, before)
        self.core.connected()
        self.core.plan_read()

    def give(self, *entries: QueueEntry) -> None:
        for entry in entries:
            self.core.entry(SIGNER.line(entry))
        self.run()

    def run(self) -> None:
        """Carries out commands until there are none."""
        while asks := self.core.asks(self.now):
            assert len(asks) <= ASKS_MAX
            for ask in asks:
                if self.errors and ask.unit != SCRIPTS:
                    self.core.failed(ask.unit, self.errors.pop(0), self.now)
                else:
                    self.core.replied(ask.unit, [self._command(request) for request in ask.requests], self.now)
        for entry in self.core.ships():
            self.core.shipped(entry.unit, ShardStatus(entry.newness))

    def _command(self, request: Any) -> Any:
        match request:
            case (b"SCRIPT", b"LOAD", text):
                self.commands.append("open" if text == SCRIPT_TEXTS.put.text else "load")
                return b"sha"
            case (b"GET", key):
                return self.keys.get(key)
            case (b"SET", key, value):
                self.commands.append("share")
                self.keys[key] = value
            case (b"UNLINK", key):
                self.commands.append("unshare")
                self.keys.pop(key, None)
            case (b"EVALSHA", _, b"1", prefix, operation, *arguments):
                self.commands.append(operation.decode())
                if operation == b"drop":
                    self.pages -= 1
                    if self.pages > 0:
                        return [3, 3]
                    self.keys.pop(prefix + b"conf", None)
                    return [0, 0]
                self.keys[prefix + b"conf"] = b" ".join(arguments[: 13 if operation == b"create" else 12])
                return 1
        return b"OK"

    def status(self, name: bytes = b"orders") -> QueueStatus:
        return self.core.statuses[name]

    def done(self) -> list[str]:
        """The commands since the last call, without loading scripts and reading."""
        commands, self.commands = [word for word in self.commands if word not in ("load", "open")], []
        return commands


def test_a_queue_is_created_and_its_entry_copied_to_the_store() -> None:
    store, entry = Store(), entry_of()
    store.give(entry)
    assert store.commands == [*LOADS, "create", "share", *OPENS]
    assert store.keys[PREFIX + b"entry"] == SIGNER.line(entry)
    assert store.keys[PREFIX + b"conf"].split()[0] == b"5"
    assert store.status() == QueueStatus(entry.newness)


def test_a_queue_of_another_store_is_left_alone() -> None:
    store = Store()
    store.give(entry_of(store="q2"))
    assert store.done() == []
    assert store.core.statuses == {}


def test_after_a_restart_of_the_store_scripts_are_loaded_and_the_queue_is_only_read() -> None:
    store = Store()
    store.give(entry_of())
    store.commands.clear()
    store.core.disconnected()
    assert store.core.asks(store.now) == []
    assert not store.core.ready
    store.core.connected()
    store.core.plan_read()
    store.run()
    assert store.commands == [*LOADS, *OPENS]


def test_a_store_that_is_back_is_opened_when_the_plan_was_read_and_carried_out() -> None:
    """Its shards may have been abandoned meanwhile, and clients may not know it."""
    store, entry = Store(), entry_of()
    store.give(entry)
    store.commands.clear()
    store.core.disconnected()
    store.core.connected()
    store.run()
    assert store.commands == LOADS
    assert store.core.ready
    assert not store.core.open
    heir = ServerAddress("q2", "h", 1)
    abandoned = replace(entry, version=9, revision=9, stores=(heir,), inherits=5, heirs=("q2",), began=(9, 9))
    store.core.entry(SIGNER.line(abandoned))
    store.core.plan_read()
    store.run()
    assert store.commands == [*LOADS, "shut", *OPENS]
    assert store.core.open


def test_a_queue_that_the_store_refuses_does_not_keep_the_store_closed() -> None:
    store = Store()
    store.errors = ["OOM no memory"]
    store.give(entry_of())
    assert store.status().trouble
    assert store.core.open


def test_scripts_of_clients_that_cannot_be_loaded_are_tried_again() -> None:
    store = Store()
    (ask,) = store.core.asks(store.now)
    store.core.replied(ask.unit, [b"sha"] * 3, store.now)
    (ask,) = store.core.asks(store.now)
    store.core.failed(ask.unit, "OOM no memory", store.now)
    assert store.core.asks(store.now) == []
    assert store.core.next_check_s(store.now) == pytest.approx(RETRY_S)
    store.now += RETRY_S
    store.run()
    assert store.core.open


def test_another_agent_of_the_store_finds_the_queue_in_force() -> None:
    store, entry = Store(), entry_of()
    store.give(entry)
    store.done()
    store.start()
    store.give(entry)
    assert store.done() == []
    assert store.status() == QueueStatus(entry.newness)


def test_new_limits_are_written_and_a_paused_queue_stays_paused() -> None:
    store, entry = Store(), entry_of()
    store.give(entry)
    store.done()
    words = store.keys[PREFIX + b"conf"].split()[:12]
    store.keys[PREFIX + b"conf"] = b" ".join([*words[:-1], b"1"])
    store.core.connected()
    store.run()
    assert store.done() == []
    newer = entry_of(messages_max=7, revision=6)
    store.give(newer)
    assert store.done() == ["configure", "share"]
    assert store.status() == QueueStatus(newer.newness)


def test_a_dropped_queue_is_deleted_page_by_page_and_reported() -> None:
    store = Store()
    store.give(entry_of())
    store.done()
    store.pages = 3
    gone = entry_of(dropped=True, revision=6)
    store.give(gone)
    assert store.done() == ["drop", "drop", "drop", "unshare"]
    assert store.keys == {}
    assert store.status() == QueueStatus(gone.newness)
    store.core.forget(b"orders")
    assert store.core.statuses == {}


def test_copies_of_a_dropped_queue_whose_shards_had_moved_away_make_room_for_the_next_one() -> None:
    """The agent was away while shards moved and the queue was dropped. It refused the next queue for ever
    (`shoal sim queue`)."""
    old = b"3 2 1000 1000 1000 3 1000 1000 1000 5000 0 0 "
    store = Store()
    store.keys[PREFIX + b"conf"] = old + b"ms"
    store.give(entry_of())
    assert store.done() == ["drop", "create", "share"]
    store = Store()
    store.keys[PREFIX + b"conf"] = old + b"so"
    store.give(entry_of())
    assert store.done() == []
    assert "version 3" in store.status().trouble, "an open shard may have messages that count"


def test_a_queue_that_a_late_call_made_again_after_it_was_dropped_makes_room_for_the_next_one() -> None:
    for puts, commands in ((0, ["drop", "create", "share"]), (1, [])):
        store = Store()
        store.keys[PREFIX + b"conf"] = b"3 2 1000 1000 1000 3 1000 1000 1000 5000 0 0"
        store.keys[PREFIX + b"state"] = pack_state((17, 99, 1, *[0] * 11, puts, 0, 0, 0, 0))
        store.give(entry_of())
        assert store.done() == commands


def test_a_reply_for_a_queue_that_was_dropped_is_not_taken_for_the_next_one_of_its_name() -> None:
    """The agent ended with an error (`shoal sim queue`)."""
    store = Store()
    store.give(entry_of())
    store.core.connected()
    (load,) = store.core.asks(0.0)
    store.core.replied(load.unit, [b"sha"] * len(load.requests), 0.0)
    (read,) = [ask for ask in store.core.asks(0.0) if ask.unit == b"orders"]
    store.core.forget(b"orders")
    store.core.entry(SIGNER.line(entry_of(version=7)))
    store.core.replied(read.unit, [b"OK"], 0.0)
    store.keys.clear()
    store.done()
    store.run()
    assert store.done() == ["create", "share"]
    assert store.keys[PREFIX + b"conf"].split()[0] == b"7"


def test_a_drop_that_a_killed_agent_began_is_ended() -> None:
    store = Store()
    store.give(entry_of())
    del store.keys[PREFIX + b"conf"]
    store.done()
    store.start()
    store.give(entry_of(dropped=True, revision=6))
    assert store.done() == ["unshare"]


def test_a_queue_created_again_is_made_with_its_new_version() -> None:
    store = Store()
    store.give(entry_of(), entry_of(dropped=True, revision=6))
    store.core.forget(b"orders")
    again = entry_of(version=9)
    store.give(again)
    assert store.keys[PREFIX + b"conf"].split()[0] == b"9"
    assert store.status() == QueueStatus(again.newness)


def test_a_queue_that_the_store_has_lost_is_reported_and_not_made_again() -> None:
    store, entry = Store(), entry_of()
    store.give(entry)
    store.keys.clear()
    store.core.connected()
    store.run()
    assert "has lost the queue" in store.status().trouble
    assert PREFIX + b"conf" not in store.keys


def test_another_agent_also_knows_that_the_store_has_lost_it_however_often_agents_restart() -> None:
    store, entry = Store(), entry_of()
    store.give(entry)
    store.keys.clear()
    for _ in range(3):
        store.start(store.core.take_report() or QueueReport("q1", {}))
        store.give(entry)
        assert "has lost the queue" in store.status().trouble
    assert store.keys == {}


def test_a_queue_of_another_version_is_not_touched() -> None:
    store = Store()
    store.give(entry_of(version=5))
    kept = dict(store.keys)
    for entry in (entry_of(version=8), entry_of(version=3), entry_of(version=3, dropped=True, revision=4)):
        store.start()
        store.give(entry)
        assert "version 5" in store.status().trouble
        assert ("drop the queue" in store.status().trouble) == (entry.version == 8)
        assert store.keys == kept


def test_a_drop_deletes_an_older_version_that_a_store_has_still() -> None:
    """The queue was dropped and created again while its store was started without its directory, which is back now. No
    request for the queue ended any more (`shoal sim queue`)."""
    store = Store()
    store.give(entry_of(version=5))
    store.start()
    store.give(entry_of(version=8))
    store.done()
    gone = entry_of(version=8, dropped=True, revision=9)
    store.give(gone)
    assert store.done() == ["drop", "unshare"]
    assert store.keys == {}
    assert store.status() == QueueStatus(gone.newness)


def test_an_older_version_on_a_store_that_has_no_part_of_the_queue_is_shut_and_makes_room_when_it_has() -> None:
    """The shards of the store were abandoned, and the queue was dropped and created again, before the store came back.
    It stayed open for clients with the old entry, and could take no shard of the queue any more (`shoal sim queue`)."""
    store = Store()
    store.give(entry_of(version=5))
    store.done()
    store.start()
    store.give(entry_of(version=8, store="q2"))
    assert store.commands == [*LOADS, "shut", *OPENS]
    store.done()
    conf = b"5 2 1000 1000 1000 3 1000 1000 1000 5000 0 1 xx"
    store.keys[PREFIX + b"conf"] = conf
    store.start()
    store.give(entry_of(version=8, store="q2"))
    assert store.done() == []
    assert store.keys[PREFIX + b"conf"] == conf, "what was abandoned stays until the queue comes to the store"
    moving = begin(entry_of(version=8, store="q2"), {1: ServerAddress("q1", "h", 1)})
    assert moving is not None
    store.give(moving)
    assert store.done() == ["drop", "share"], "the mover makes the queue"
    assert store.status() == QueueStatus(moving.newness)


def test_what_the_store_refuses_is_reported_and_repeated() -> None:
    store, entry = Store(), entry_of()
    store.core.entry(SIGNER.line(entry))
    store.errors = ["OOM command not allowed"]
    store.run()
    assert "OOM" in store.status().trouble
    assert store.core.next_check_s(store.now) == pytest.approx(RETRY_S)
    store.now += RETRY_S
    store.run()
    assert store.status() == QueueStatus(entry.newness)


def test_scripts_that_were_flushed_are_loaded_again() -> None:
    store, entry = Store(), entry_of()
    store.core.entry(SIGNER.line(entry))
    store.errors = ["NOSCRIPT No matching script"]
    store.run()
    assert store.commands == [*LOADS, *LOADS, "create", "share", *OPENS]
    assert store.status() == QueueStatus(entry.newness)


def test_an_entry_that_comes_while_a_command_is_under_way_is_carried_out_after_it() -> None:
    store = Store()
    store.run()
    store.core.entry(SIGNER.line(entry_of()))
    (ask,) = store.core.asks(0.0)
    newer = entry_of(messages_max=7, revision=6)
    store.core.entry(SIGNER.line(newer))
    assert store.core.asks(0.0) == []
    store.core.replied(ask.unit, [None, None], 0.0)
    store.run()
    assert store.keys[PREFIX + b"entry"] == SIGNER.line(newer)
    assert store.status() == QueueStatus(newer.newness)


def test_an_agent_without_the_lease_does_nothing() -> None:
    store = Store()
    store.core.lease(False)
    store.give(entry_of())
    assert store.commands == []
    store.core.lease(True)
    store.run()
    assert store.status().newness


def test_entries_with_another_signature_and_older_ones_are_refused() -> None:
    store = Store()
    newer = entry_of(messages_max=7, revision=6)
    store.give(newer)
    store.give(entry_of())
    assert store.keys[PREFIX + b"entry"] == SIGNER.line(newer)
    with pytest.raises(ForgedEntryError):
        store.core.entry(Signer(Signer.generate()).line(entry_of(version=9)))


def test_many_queues_are_created_a_bounded_number_at_a_time() -> None:
    store = Store()
    names = [b"q%d" % number for number in range(3 * ASKS_MAX)]
    store.give(*(entry_of(name) for name in names))
    assert all(store.status(name).newness for name in names)
    report = store.core.take_report()
    assert report is not None
    assert len(report.queues) == len(names)
    assert store.core.take_report() is None


def test_the_agent_loads_none_of_the_heavy_packages() -> None:
    text = (
        "import sys, shoal.queues.agent.process, shoal.queues.agent.metrics\n"
        "print([name for name in ('numba', 'pyarrow', 'pandas', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_queue_that_a_client_has_damaged_is_reported_and_does_not_end_the_agent() -> None:
    """Clients have the right to write to the keys of queues: the scripts need it."""
    for damaged in (b"", b"no numbers", b"1 2 3", b"1" * 40):
        store, entry = Store(), entry_of()
        store.give(entry)
        store.done()
        store.keys[PREFIX + b"conf"] = damaged
        store.core.connected()
        store.run()
        assert "damaged" in store.status().trouble
