"""The keeper's core: which servers join and leave the ring and when, in fixed and in random histories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ForgedEntryError
from shoal.leader.keeper import MASS_DEATH_LEASES, Keeper, PutRing, Snapshot
from shoal.limits import Limits
from shoal.plan.ring import Members, Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier

LEASE_S = 4.0
DRIFT = 0.25
MARGIN_S = LEASE_S * DRIFT
FULL_S = LEASE_S + MARGIN_S
FIRST_RING_WAIT_S = 10.0
LOOK_S = 0.5
LIMITS = Limits(server_lease_s=LEASE_S, clock_drift_max=DRIFT)
SIGNER = Signer(Signer.generate())
MEMBERS = {f"s{number}": ServerAddress(f"s{number}", "127.0.0.1", 7000 + number) for number in range(1, 5)}


class Store:
    """The coordinator for the keeper: leases that expire, a versioned ring, contact or none."""

    def __init__(self, expected: str = "s1 s2") -> None:
        self.keeper = Keeper(SIGNER, LIMITS, expected.split(), FIRST_RING_WAIT_S)
        self.now = 100.0
        self.members = dict(MEMBERS)
        self.expiry: dict[str, float] = {}
        self.guests: frozenset[str] = frozenset()
        self.outside: frozenset[str] = frozenset()
        self.ring = b""
        self.version = 0

    def snapshot(self) -> Snapshot:
        leases = {server: at - self.now for server, at in self.expiry.items() if at > self.now}
        return Snapshot(True, self.members, leases, self.ring, self.version, self.guests, self.outside)

    def look(self) -> PutRing | None:
        return self.keeper.observe(self.snapshot(), self.now)

    def step(self, alive: str = "", seconds: float = LOOK_S) -> list[str] | None:
        """Lets time pass while these servers renew, and writes the keeper's ring; returns its servers."""
        self.now += seconds
        for server in alive.split():
            self.expiry[server] = self.now + LEASE_S
        put = self.look()
        if put is None:
            return None
        assert put.expect == self.version
        self.ring, self.version = put.data, self.version + 3
        self.keeper.written(put.ring)
        return list(put.ring.ids)

    def run(self, alive: str, seconds: float) -> list[tuple[float, list[str]]]:
        """Many steps; returns the written rings, each with its time after the start."""
        began, written = self.now, []
        while self.now < began + seconds:
            if (ids := self.step(alive)) is not None:
                written.append((self.now - began, ids))
        return written

    def ring_ids(self) -> list[str]:
        return list(Verifier(SIGNER.public).ring(self.ring).ids)


def test_the_first_ring_waits_for_all_expected_servers() -> None:
    store = Store("s1 s2")
    assert store.step("s1") is None
    assert store.step("s1 s2") == ["s1", "s2"]
    assert store.keeper.ring == Ring(1, (MEMBERS["s1"], MEMBERS["s2"]), lease_ms=store.keeper.lease_ms)


def test_the_first_ring_does_not_wait_for_ever() -> None:
    store = Store("s1 s2")
    written = store.run("s1", FIRST_RING_WAIT_S + 2)
    assert [ids for _, ids in written] == [["s1"]]
    assert written[0][0] >= FIRST_RING_WAIT_S


def test_without_any_server_there_is_no_ring() -> None:
    store = Store("s1 s2")
    assert store.run("", 3 * FIRST_RING_WAIT_S) == []


def test_a_lease_without_membership_is_not_enough() -> None:
    store = Store("s1")
    del store.members["s2"]
    assert store.step("s1 s2") == ["s1"]
    assert store.step("s1 s2") is None


def test_a_server_joins_when_it_holds_its_lease() -> None:
    store = Store("s1")
    assert store.step("s1") == ["s1"]
    assert store.step("s1 s3") == ["s1", "s3"]
    assert store.keeper.ring is not None
    assert store.keeper.ring.version == 2


def test_a_server_marked_in_the_pool_joins_as_a_guest_and_may_become_a_home() -> None:
    store = Store("s1")
    store.step("s1")
    store.guests = frozenset({"s2"})
    assert store.step("s1 s2") == ["s1", "s2"]
    assert store.keeper.ring is not None
    assert [*store.keeper.ring.homes] == ["s1"]
    store.guests = frozenset()
    assert store.step("s1 s2") == ["s1", "s2"]
    assert [*store.keeper.ring.homes] == ["s1", "s2"]
    assert store.keeper.ring.earlier[0] == Members(("s1", "s2"), ("s2",))


def test_without_a_home_all_members_are_homes() -> None:
    store = Store("s1 s2")
    store.guests = frozenset({"s1", "s2"})
    assert store.step("s1 s2") == ["s1", "s2"]
    assert store.keeper.ring is not None
    assert store.keeper.ring.homes == ("s1", "s2")


def test_a_server_that_must_leave_becomes_a_home_only_if_there_is_no_other() -> None:
    store = Store("s1 s2 s3")
    store.guests = frozenset({"s2", "s3"})
    store.run("s1 s2 s3", FULL_S)
    store.guests, store.outside = frozenset({"s1", "s2", "s3"}), frozenset({"s2"})
    assert store.step("s1 s2 s3") == ["s1", "s2", "s3"]
    assert store.keeper.ring is not None
    assert store.keeper.ring.homes == ("s1", "s3")
    store.outside = store.guests
    store.step("s1 s2 s3")
    assert list(store.keeper.ring.homes) == ["s1", "s2", "s3"]


def test_a_server_with_a_new_address_is_updated() -> None:
    store = Store("s1")
    store.step("s1")
    store.members["s1"] = ServerAddress("s1", "127.0.0.1", 9999)
    assert store.step("s1") == ["s1"]
    assert store.keeper.ring == Ring(2, (store.members["s1"],), (Members(("s1",)),), lease_ms=store.keeper.lease_ms)


def test_an_expired_lease_waits_for_the_margin_only() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    (after_s, ids), *more = store.run("s1", 3 * FULL_S)
    assert ids == ["s1"]
    assert more == []
    assert LEASE_S + MARGIN_S <= after_s <= LEASE_S + MARGIN_S + 2 * LOOK_S


def test_a_lease_that_disappeared_early_waits_for_a_full_lease() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    del store.expiry["s2"]
    (after_s, ids), *_ = store.run("s1", 3 * FULL_S)
    assert ids == ["s1"]
    assert after_s >= FULL_S


def test_a_server_that_comes_back_in_time_stays() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    store.run("s1", LEASE_S + MARGIN_S / 2)
    assert store.run("s1 s2", 3 * FULL_S) == []


def test_a_server_that_comes_back_late_joins_again() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    store.run("s1", 3 * FULL_S)
    assert store.step("s1 s2") == ["s1", "s2"]


def test_a_server_that_comes_back_at_once_waits_until_it_can_be_marked() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", FULL_S)
    while store.step("s1") is None:
        pass
    assert store.ring_ids() == ["s1"]
    ((after_s, ids),) = store.run("s1 s2", FULL_S)
    assert ids == ["s1", "s2"]
    assert after_s == pytest.approx(LEASE_S / 2, abs=LOOK_S)


def test_the_last_server_is_never_dropped() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", FULL_S)
    assert store.run("", 5 * FULL_S) == []
    assert store.ring_ids() == ["s1", "s2"]
    assert store.step("s3") == ["s1", "s2", "s3"], "they may be alive, and only cut off"


def test_a_mass_death_is_accepted_after_a_while() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", FULL_S)
    store.step("s3")
    written = store.run("s3", (MASS_DEATH_LEASES + 3) * FULL_S)
    assert written[-1][1] == ["s3"]
    assert written[-1][0] >= MASS_DEATH_LEASES * LEASE_S


def test_servers_without_the_new_ring_are_counted_by_the_ring_that_they_know() -> None:
    store = Store("s1 s2 s3")
    store.run("s1 s2 s3", FULL_S)
    store.run("s1", LEASE_S / 4)  # the others are cut off together: two of three, so their agents continue
    assert store.step("s1 s4") == ["s1", "s2", "s3", "s4"]
    assert store.run("s1 s4", 3 * FULL_S) == []  # although they are only two of four now
    written = store.run("s1 s4", MASS_DEATH_LEASES * FULL_S)
    assert [ids for _, ids in written] == [["s1", "s4"]]


def test_servers_with_the_new_ring_are_counted_by_it() -> None:
    store = Store("s1 s2 s3")
    store.run("s1 s2 s3", FULL_S)
    store.run("s1 s2 s3 s4", FULL_S)
    ((after_s, ids),) = store.run("s1 s4", 3 * FULL_S)
    assert ids == ["s1", "s4"]
    assert after_s <= 2 * FULL_S


def test_after_an_outage_no_server_leaves_before_a_full_lease() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    store.keeper.observe(Snapshot(contact=False), store.now)
    store.now += 10 * LEASE_S
    (after_s, ids), *_ = store.run("s1", 3 * FULL_S)
    assert ids == ["s1"]
    assert after_s >= FULL_S


def test_a_long_time_between_two_snapshots_is_an_outage() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", 3 * FULL_S)
    store.now += LEASE_S
    (after_s, ids), *_ = store.run("s1", 3 * FULL_S)
    assert ids == ["s1"]
    assert after_s >= FULL_S


def test_without_contact_nothing_is_decided() -> None:
    store = Store("s1")
    assert store.keeper.observe(Snapshot(False, MEMBERS, {"s1": LEASE_S}), store.now) is None
    assert store.keeper.next_check_s is None


def test_a_second_keeper_continues_from_the_stored_ring() -> None:
    first = Store("s1 s2")
    first.step("s1 s2")
    second = Store("s1 s2 s3")
    second.ring, second.version = first.ring, first.version
    assert second.step("s1 s2") is None
    assert second.step("s1 s2 s4") == ["s1", "s2", "s4"]
    assert second.keeper.ring is not None
    assert second.keeper.ring.version == 2


def test_a_ring_that_the_coordinator_lost_is_written_again_under_a_newer_version() -> None:
    store = Store("s1")
    store.step("s1")
    store.ring, store.version = b"", 0
    assert store.step("s1") == ["s1"]
    assert store.keeper.ring is not None
    assert store.keeper.ring.version == 2


def test_a_ring_that_the_coordinator_lost_is_written_again_even_when_all_servers_are_dead() -> None:
    store = Store("s1 s2")
    store.run("s1 s2", FULL_S)
    store.run("", 3 * FULL_S)
    store.ring, store.version = b"", 0
    assert store.step("") == ["s1", "s2"]


def test_after_a_conflict_the_ring_is_decided_again() -> None:
    store = Store("s1")
    store.step("s1")
    store.expiry["s2"] = store.now + LEASE_S
    assert store.look() is not None  # the write fails: another writer was first
    other = Ring(2, (MEMBERS["s1"], MEMBERS["s3"]), lease_ms=store.keeper.lease_ms)
    store.ring, store.version = SIGNER.ring(other), store.version + 1
    store.expiry["s3"] = store.now + LEASE_S
    put = store.look()
    assert put is not None
    assert put.ring == other.next((MEMBERS["s1"], MEMBERS["s3"], MEMBERS["s2"]))
    assert put.expect == store.version


def test_a_forged_ring_is_refused() -> None:
    store = Store("s1")
    store.ring, store.version = Signer(Signer.generate()).ring(Ring(9, (MEMBERS["s1"],))), 1
    with pytest.raises(ForgedEntryError):
        store.step("s1")


def test_next_check_s() -> None:
    store = Store("s1 s2")
    store.step("s1")
    assert store.keeper.next_check_s == pytest.approx(FIRST_RING_WAIT_S)
    store.run("s1 s2", 3 * FULL_S)
    assert store.keeper.next_check_s is None
    del store.expiry["s2"]
    store.step("s1")
    assert store.keeper.next_check_s == pytest.approx(FULL_S)


steps = st.lists(
    st.tuples(
        st.sets(st.sampled_from(sorted(MEMBERS))),
        st.sampled_from([0.3, 0.5, 0.9, LEASE_S, 3 * LEASE_S]),
        st.sampled_from(["look", "look", "look", "no contact", "new keeper", "forget the ring"]),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=75)
@given(steps)
def test_in_any_history_no_trusted_server_leaves_and_versions_only_grow(
    history: list[tuple[set[str], float, str]],
) -> None:
    """A server whose lease was renewed less than a lease and its drift ago is never dropped from the ring."""
    store = Store("s1 s2 s3")
    renewed: dict[str, float] = {}
    newest = 0
    for alive, seconds, event in history:
        before = Verifier(SIGNER.public).ring(store.ring) if store.ring else None
        if event == "no contact":
            store.now += seconds
            store.keeper.observe(Snapshot(contact=False), store.now)
            continue
        if event == "new keeper":
            store.keeper = Keeper(SIGNER, LIMITS, ["s1", "s2", "s3"], FIRST_RING_WAIT_S)
        if event == "forget the ring" and store.keeper.ring is not None:
            store.ring, store.version = b"", 0
        renewed.update(dict.fromkeys(alive, store.now + seconds))
        written = store.step(" ".join(alive), seconds)
        if written is None:
            continue
        ring = Verifier(SIGNER.public).ring(store.ring)
        assert ring.servers
        assert store.keeper.ring == ring
        if event == "look" and before is not None:
            assert ring.version > newest
            dropped = {*before.ids} - {*ring.ids}
            assert all(store.now - renewed.get(server, 0.0) >= FULL_S for server in dropped)
        newest = ring.version


def test_live_servers_marked_out_leave_after_the_full_wait() -> None:
    store = Store("s1 s2 s3")
    store.step("s1 s2 s3")
    store.outside = frozenset({"s2", "s3"})
    ((after_s, ids),) = store.run("s1 s2 s3", 2 * FULL_S)
    assert ids == ["s1"]  # and it does not count as a mass death
    assert after_s == pytest.approx(FULL_S, abs=2 * LOOK_S)
    store.outside = frozenset({"s3"})
    assert store.step("s1 s2 s3") == ["s1", "s2"]


def test_a_server_marked_out_does_not_join() -> None:
    store = Store("s1")
    store.outside = frozenset({"s2"})
    store.step("s1 s2")
    assert store.ring_ids() == ["s1"]
    assert store.run("s1 s2", 2 * FULL_S) == []
