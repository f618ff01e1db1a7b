"""How the leader creates, configures and drops queues."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.coordination.interface import Versioned
from shoal.limits import Limits
from shoal.plan.conductor import Conductor, ConductorView, DropEntry, DropRequest, PutEntry
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_report import (
    QueueReport,
    QueueStatus,
    decode_queue_report,
    encode_queue_report,
    holds_another,
)
from shoal.plan.queue_request import (
    ConfigureQueue,
    CreateQueue,
    DropQueue,
    MoveShards,
    QueueRequest,
    encode_queue_request,
)
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.queue_steps import QueueSteps, Stores
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer

SIGNER = Signer(Signer.generate())
SETTINGS = QueueSettings(shards=4)


def address(store: str) -> ServerAddress:
    return ServerAddress(store, "127.0.0.1", 7000 + int(store[1:]))


class Leader:
    """A conductor of queues and the coordinator's state. Stores report at once, except those that are away."""

    def __init__(self, *stores: str, queues_max: int = 100) -> None:
        self.stores: Stores = {store: address(store) for store in stores}
        self.reporting = True
        self.refusing = False
        self.leaving: set[str] = set()
        self.limits = Limits(queues_max=queues_max)
        self.entries: dict[bytes, Versioned] = {}
        self.plain: dict[bytes, QueueEntry] = {}
        self.requests: dict[bytes, Versioned] = {}
        self.reports: dict[str, QueueReport] = {}
        self.refused: dict[bytes, str] = {}
        self.version = 0
        self.restart()

    def restart(self) -> None:
        """A new leader."""
        self.conductor = Conductor(QueueSteps(self.limits), SIGNER)

    def ask(self, *requests: QueueRequest) -> None:
        for request in requests:
            self.requests[request.unit] = Versioned(encode_queue_request(request), self._next())
        self.turn()

    def turn(self) -> None:
        """Rounds until nothing more is written."""
        for _ in range(30):
            self._report()
            view = ConductorView(self.stores, self.entries, self.requests, self.reports, self.leaving)
            writes = self.conductor.observe(view, 0.0)
            if not writes:
                return
            for write in writes:
                match write:
                    case PutEntry():
                        assert write.expect == (self.entries[write.unit].version if write.unit in self.entries else 0)
                        self.entries[write.unit] = Versioned(write.data, self._next())
                        self.plain[write.unit] = write.entry
                    case DropEntry():
                        assert write.expect == self.entries.pop(write.unit).version
                        del self.plain[write.unit]
                    case DropRequest():
                        assert write.expect == self.requests.pop(write.unit).version
                        self.refused[write.unit] = write.reason
        raise AssertionError("the leader writes without end")

    def _report(self) -> None:
        if not self.reporting:
            return
        for store in self.stores:
            here = [entry for entry in self.plain.values() if store in {one.id for one in entry.stores}]
            self.reports[store] = QueueReport(store, {entry.unit: self._status(entry) for entry in here})

    def _status(self, entry: QueueEntry) -> QueueStatus:
        """A store that carries out everything, also the copy of a shard."""
        if entry.move is not None and self.refusing:
            return QueueStatus(0, "no memory", refused=entry.move.since)
        return QueueStatus(entry.newness, copied=entry.move.since if entry.move is not None else 0)

    def _next(self) -> int:
        self.version += 1
        return self.version


def create(name: bytes, settings: QueueSettings = SETTINGS) -> CreateQueue:
    return CreateQueue(name, settings, "r")


def homes(leader: Leader, names: Iterable[bytes]) -> list[str]:
    return [leader.plain[name].stores[0].id for name in names]


def test_a_queue_is_created_with_all_shards_on_one_store_and_the_request_ends() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    entry = leader.plain[b"orders"]
    assert entry.stores == (address("q1"),)
    assert entry.places == (0, 0, 0, 0)
    assert entry.settings == SETTINGS
    entry.check()
    assert leader.refused == {b"orders": ""}


def test_the_request_stays_until_the_store_reports_that_the_queue_is_there() -> None:
    leader = Leader("q1")
    leader.reporting = False
    leader.ask(create(b"orders"))
    assert b"orders" in leader.plain
    assert b"orders" in leader.requests
    leader.reporting = True
    leader.turn()
    assert not leader.requests


def test_the_request_ends_with_the_reason_if_the_store_holds_an_older_version_which_a_drop_deletes() -> None:
    """It waited for ever, and `shoal queue drop` was refused meanwhile."""
    leader = Leader("q1")
    leader.reporting = False
    leader.ask(create(b"orders"))
    version = leader.plain[b"orders"].version
    for planned, ended in ((version - 1, False), (version, True)):
        status = QueueStatus(0, holds_another(planned - 1, planned))
        leader.reports = {"q1": QueueReport("q1", {b"orders": status})}
        leader.turn()
        assert (b"orders" in leader.refused) == ended, "the trouble of an earlier entry says nothing"
    assert "store q1 holds an older version" in leader.refused[b"orders"]
    others = (ConfigureQueue(b"orders", SETTINGS, "r"), MoveShards(b"orders", {0: "q1"}, "r"))
    for request in others:
        leader.refused.clear()
        leader.ask(request)
        assert "store q1 holds an older version" in leader.refused[b"orders"]
    leader.reporting = True
    leader.ask(DropQueue(b"orders", "r"))
    assert not leader.plain


def test_without_a_store_the_request_waits() -> None:
    leader = Leader()
    leader.ask(create(b"orders"))
    assert not leader.plain
    assert not leader.refused
    leader.stores = {"q1": address("q1")}
    leader.turn()
    assert homes(leader, [b"orders"]) == ["q1"]


def test_queues_go_to_the_store_with_the_fewest_shards_also_within_one_round() -> None:
    leader = Leader("q1", "q2")
    leader.ask(create(b"big", QueueSettings(shards=8)))
    leader.requests = {}
    for name in (b"a", b"b", b"c"):
        leader.requests[name] = Versioned(encode_queue_request(create(name)), leader._next())
    leader.turn()
    assert homes(leader, [b"big", b"a", b"b", b"c"]) == ["q1", "q2", "q2", "q1"]


def test_a_store_that_is_leaving_gets_no_queue() -> None:
    leader = Leader("q1", "q2")
    leader.leaving = {"q1"}
    leader.ask(create(b"a"), create(b"b"))
    assert homes(leader, [b"a", b"b"]) == ["q2", "q2"]


def test_an_existing_queue_stays_as_it_is() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    before = leader.plain[b"orders"]
    leader.stores = {"q2": address("q2")}
    leader.ask(create(b"orders", QueueSettings(shards=9)))
    assert leader.plain[b"orders"] == before


def test_above_the_limit_no_queue_is_created() -> None:
    leader = Leader("q1", queues_max=2)
    leader.ask(create(b"a"), create(b"b"), create(b"c"))
    assert sorted(leader.plain) == [b"a", b"b"]
    assert "queues_max" in leader.refused[b"c"]


def test_a_dropped_queue_is_deleted_on_its_store_before_its_entry_goes() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    leader.reporting = False
    leader.ask(DropQueue(b"orders", "r"))
    assert leader.plain[b"orders"].dropped
    assert b"orders" in leader.requests
    leader.reporting = True
    leader.turn()
    assert not leader.plain
    assert not leader.entries
    assert leader.refused[b"orders"] == ""


def test_another_leader_ends_the_drop_also_without_the_request() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    leader.reporting = False
    leader.ask(DropQueue(b"orders", "r"))
    leader.requests.clear()
    leader.restart()
    leader.reporting = True
    leader.turn()
    assert not leader.entries


def test_a_store_that_is_away_keeps_the_entry_of_a_dropped_queue() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    leader.stores = {"q2": address("q2")}
    leader.ask(DropQueue(b"orders", "r"))
    assert leader.plain[b"orders"].stores == (address("q1"),)


def test_a_queue_that_is_created_again_has_a_greater_version_and_is_newer_whatever_happened_before() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    for count in range(20):  # revisions grow faster than the versions of requests
        leader.plain[b"orders"] = before = QueueEntry(
            b"orders",
            leader.plain[b"orders"].revision + 1000,
            leader.plain[b"orders"].version,
            QueueSettings(shards=4, messages_max=count + 1),
            (address("q1"),),
            (0, 0, 0, 0),
        )
    leader.entries[b"orders"] = Versioned(SIGNER.line(before), leader._next())
    leader.ask(DropQueue(b"orders", "r"))
    leader.ask(create(b"orders"))
    after = leader.plain[b"orders"]
    assert after.version > before.version
    assert after.newness > before.newness


def test_settings_change_but_not_the_number_of_shards() -> None:
    leader = Leader("q1")
    leader.ask(create(b"orders"))
    before = leader.plain[b"orders"]
    leader.ask(ConfigureQueue(b"orders", QueueSettings(shards=4, messages_max=5), "r"))
    after = leader.plain[b"orders"]
    assert (after.settings.messages_max, after.version) == (5, before.version)
    assert after.newness > before.newness
    leader.ask(ConfigureQueue(b"orders", QueueSettings(shards=5), "r"))
    assert leader.plain[b"orders"] == after
    assert "4 shards" in leader.refused[b"orders"]


def test_requests_about_no_queue_end_with_a_reason() -> None:
    leader = Leader("q1")
    leader.ask(DropQueue(b"a", "r"), ConfigureQueue(b"b", SETTINGS, "r"))
    assert leader.refused == {b"a": "there is no such queue", b"b": "there is no such queue"}


def test_a_report_is_read_as_it_was_written() -> None:
    report = QueueReport("q1", {b"orders": QueueStatus(7, "no room")})
    assert decode_queue_report(encode_queue_report(report)) == report


def test_shards_move_one_after_the_other_and_the_request_ends_with_the_last_one() -> None:
    leader = Leader("q1", "q2")
    leader.ask(create(b"orders"))
    before = leader.plain[b"orders"]
    source, target = before.stores[0].id, "q2" if before.stores[0].id == "q1" else "q1"
    leader.reporting = False
    leader.ask(MoveShards(b"orders", {0: target, 2: target}, "r"))
    assert leader.plain[b"orders"].move is not None
    assert b"orders" in leader.requests
    leader.restart()  # another leader goes on from the entry
    leader.reporting = True
    leader.turn()
    entry = leader.plain[b"orders"]
    entry.check()
    assert [entry.store_of(shard).id for shard in range(4)] == [target, source, target, source]
    assert entry.version == before.version
    assert leader.refused[b"orders"] == ""
    assert not leader.requests


def test_a_move_that_a_store_refuses_ends_with_the_reason_and_changes_no_place() -> None:
    leader = Leader("q1", "q2")
    leader.ask(create(b"orders"))
    before = leader.plain[b"orders"]
    target = "q2" if before.stores[0].id == "q1" else "q1"
    leader.refusing = True
    leader.ask(MoveShards(b"orders", {1: target}, "r"))
    assert "no memory" in leader.refused[b"orders"]
    assert leader.plain[b"orders"].places == before.places
    assert leader.plain[b"orders"].move is None


def test_impossible_moves_are_refused_with_the_reason() -> None:
    leader = Leader("q1", "q2")
    leader.ask(create(b"orders"))
    for shards, why in (({9: "q1"}, "no shard 9"), ({0: "q7"}, "q7")):
        leader.ask(MoveShards(b"orders", shards, "r"))
        assert why in leader.refused[b"orders"]
    leader.ask(MoveShards(b"others", {0: "q1"}, "r"))
    assert leader.refused[b"others"] == "there is no such queue"
    leader.leaving = {"q1", "q2"}
    home = leader.plain[b"orders"].stores[0].id
    leader.ask(MoveShards(b"orders", {0: "q2" if home == "q1" else "q1"}, "r"))
    assert "removed" in leader.refused[b"orders"]
